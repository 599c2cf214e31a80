"""Stage `listening-test`: a page on which people compare voices."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, SingleShard, Task
from megahour.tts.params import ListeningTestParams

if TYPE_CHECKING:
    from megahour.core.writer import ShardWriter

ROLES = ("reference", "first", "second", "third", "fourth")


class MakeListeningTest(SingleShard[ListeningTestParams]):
    """Writes `.html`, to be opened by listeners, and `.key.json`, for `megahour listening-results`."""

    name = "listening-test"
    params = ListeningTestParams
    inputs = tuple(Input(role, optional=role not in ("first",), kinds=("utterances",)) for role in ROLES)

    def check(self, p: ListeningTestParams, roles: Collection[str]) -> None:
        least = {"mos": 1, "cmos": 2, "mushra": 2}[p.kind]
        if len(roles) < least or (p.kind == "cmos" and len(roles) != 2):
            what = f"{len(roles)} systems in a test of kind {p.kind}"
            raise ConfigError(what, where=self.name, remedy="cmos compares two, mushra two and more")
        if p.kind == "mushra" and "reference" not in roles:
            raise ConfigError("mushra compares with a `reference`", where=self.name, remedy="give it, or kind: mos")

    def run(self, p: ListeningTestParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.tts.listening import make_test

        made = make_test(p.kind, p.title, dict(inputs), utterances=p.utterances, seed=p.seed)
        out.text(made.page, ".html")
        out.json(made.key, ".key.json")
        out.came_in(len(made.key["clips"]))
        out.kept(len(made.key["clips"]))
        out.stats.update(kind=p.kind, clips=len(made.key["clips"]), test=made.key["test"])
