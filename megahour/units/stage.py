"""Stage `senones`: senone labels for hybrid acoustic models, from features, transcripts and a lexicon."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.units.params import SenonesParams

if TYPE_CHECKING:
    from megahour.units.lexicon import Lexicon
    from megahour.units.utterances import LabelledCorpus


class Senones(Stage[SenonesParams]):
    """Trains the alignment model in rounds over the features shards of the labelled sets, then aligns each shard.

    Memory does not grow with the hours: a task holds one shard, and the driver one sum of statistics. Sums are exact,
    so the alignment does not depend on how the utterances are sharded.
    """

    name = "senones"
    version = 3
    params = SenonesParams
    inputs = (Input("features"), Input("lexicon"), Input("selection", optional=True))
    rounds = True

    def check(self, p: SenonesParams, roles: Collection[str]) -> None:
        from megahour.units.noises import Noises

        if p.transform == "lda-mllt" and not p.senone_mixtures:
            raise ConfigError("lda-mllt needs Gaussians of senones", where=self.name, remedy="set senone_mixtures")
        Noises(p.noises).check(unknown=p.unknown)

    def plan(self, p: SenonesParams, inputs: Inputs) -> list[Task]:
        from megahour.features.sets import tasks_of_sets
        from megahour.units.utterances import labelled_frames

        features = inputs["features"]
        frames = labelled_frames(features, p.sets)
        tasks = tasks_of_sets(features, p.sets, where=self.name, beside=inputs.get("selection"))
        return [Task({**task.spec, "frames": frames}) for task in tasks]

    def opening(self, p: SenonesParams, inputs: Inputs) -> bytes:
        from megahour.units.alignment_model import AlignmentModel
        from megahour.units.hmm import SILENCE

        corpus = self._corpus(p, inputs)
        entries = (ways for word, ways in corpus.lexicon.items() if word.casefold() not in corpus.noises.by_tag)
        phones = {phone for ways in entries for way in ways for phone in way} | ({p.unknown} if p.unknown else set())
        noises = corpus.noises.names
        if spoken := sorted(phones.intersection(noises)):
            what = f"the phone {spoken[0]} of `noises` is in words of the lexicon"
            raise ConfigError(what, where=inputs["lexicon"].url, remedy="give noises phones of their own")
        every = tuple(sorted((phones | {*noises}) - {SILENCE}))
        return AlignmentModel(0, every, noises=noises, cross_word=p.cross_word).to_bytes()

    def rounds_left(self, p: SenonesParams, model: bytes) -> int:
        from megahour.units.alignment_model import AlignmentModel
        from megahour.units.passes import passes_of

        return len(passes_of(p)) - AlignmentModel.from_bytes(model).done

    def measure(self, p: SenonesParams, inputs: Inputs, task: Task, ctx: Context) -> bytes:
        from megahour.units.alignment_model import AlignmentModel
        from megahour.units.passes import PassWork

        model = AlignmentModel.from_bytes(ctx.model)
        work = PassWork(p, self._corpus(p, inputs), model, inputs.get("selection"))
        return work.measure(task).to_bytes()

    def add(self, left: bytes, right: bytes) -> bytes:
        from megahour.units.sums import ExactSums

        both = ExactSums.from_bytes(left)
        both.merge(ExactSums.from_bytes(right))
        return both.to_bytes()

    def learn(self, p: SenonesParams, inputs: Inputs, statistics: bytes, ctx: Context) -> bytes:
        from megahour.units.alignment_model import AlignmentModel
        from megahour.units.passes import learn
        from megahour.units.sums import ExactSums

        known, sums = AlignmentModel.from_bytes(ctx.model), ExactSums.from_bytes(statistics)
        return learn(p, known, sums, where=inputs["features"].url).to_bytes()

    def run(self, p: SenonesParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.units.align_shard import align_shard
        from megahour.units.alignment_model import AlignmentModel

        model = AlignmentModel.from_bytes(ctx.model)
        align_shard(self._corpus(p, inputs), model, task, out)
        if out.shard == 0:
            assert model.units is not None
            out.text(model.units.to_json(), ".units.json")
            out.text(inputs["lexicon"].read_bytes(0, ".lexicon.txt").decode(), ".lexicon.txt")

    def remedies(self, p: SenonesParams, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        return {
            "no-pronunciation": "`missing_words` in the receipts lists them: add them to the lexicon, or set --unknown",
            "too-short-for-text": "the texts belong to other utterances, or the lexicon has too many phones",
        }

    def finish(self, p: SenonesParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        from megahour.units.align_shard import summary

        return summary(receipts, where=inputs["features"].url)

    def _corpus(self, p: SenonesParams, inputs: Inputs) -> LabelledCorpus:
        from megahour.units.noises import Noises
        from megahour.units.utterances import LabelledCorpus

        lexicon = inputs["lexicon"]
        entries = _lexicon(lexicon.url, lexicon.manifest.digest)
        return LabelledCorpus(inputs["features"], entries, p.unknown, Noises(p.noises), inputs.get("selection"))


@lru_cache(maxsize=1)
def _lexicon(url: str, digest: str) -> Lexicon:
    """The lexicon, read once per process rather than in each task. The digest is part of the cache key."""
    from megahour.core.store import Artifact
    from megahour.units.lexicon import lexicon_of

    return lexicon_of(Artifact(url))
