"""Stage `listening-test`: make a page on which people compare voices."""

from __future__ import annotations

from collections.abc import Collection

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, ShardWriter, SingleShard, Task
from megahour.tts.params import ListeningTestParams

ROLES = ("reference", "first", "second", "third", "fourth")


class MakeListeningTest(SingleShard[ListeningTestParams]):
    """Write `.html` for the listeners and, for a blind test, `.key.json` for `megahour listening-results`."""

    name = "listening-test"
    version = 2
    params = ListeningTestParams
    inputs = tuple(Input(role, optional=role not in ("first",), kinds=("utterances",)) for role in ROLES)

    def check(self, p: ListeningTestParams, roles: Collection[str]) -> None:
        if p.names and (p.kind != "samples" or len(set(p.names)) != len(roles)):
            what = f"{len(set(p.names))} different names for {len(roles)} systems in a page of kind {p.kind}"
            remedy = "give a different name for each system, with kind: samples only"
            raise ConfigError(what, where=self.name, remedy=remedy)
        least = {"mos": 1, "cmos": 2, "mushra": 2, "samples": 1}[p.kind]
        if len(roles) < least or (p.kind == "cmos" and len(roles) != 2):
            what = f"{len(roles)} systems in a test of kind {p.kind}"
            raise ConfigError(what, where=self.name, remedy="give two systems for cmos, two or more for mushra")
        if p.kind == "mushra" and "reference" not in roles:
            what = "mushra needs the input `reference`"
            raise ConfigError(what, where=self.name, remedy="give it, or set kind: mos")

    def run(self, p: ListeningTestParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.tts.listening import make_samples, make_test

        if p.kind == "samples":
            given = [inputs[role] for role in ROLES if role in inputs]
            systems = dict(zip(p.names or [role for role in ROLES if role in inputs], given, strict=True))
            out.text(make_samples(p.title, systems, utterances=p.utterances, seed=p.seed), ".html")
            out.kept_all(len(systems))
            return
        made = make_test(p.kind, p.title, dict(inputs), utterances=p.utterances, seed=p.seed)
        out.text(made.page, ".html")
        out.json(made.key, ".key.json")
        out.kept_all(len(made.key["clips"]))
        out.stats.update(kind=p.kind, clips=len(made.key["clips"]), test=made.key["test"])
