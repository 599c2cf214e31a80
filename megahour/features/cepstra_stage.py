"""Stage `import-features`: published cepstra take the place of `ingest` … `features`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from megahour.core.config import Params
from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Inputs, Stage, Task

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter


class ImportFeaturesParams(Params):
    """Published cepstra and transcriptions in Sphinx's formats, as features with a causal mean per speaker."""

    source: str = Field("", description="directory, glob or URL of files of cepstra, 100 frames per second")
    extension: str = Field(".mfc", min_length=1, description="how the names of these files end")
    dims: int = Field(13, ge=1, le=256, description="cepstra per frame")
    train: str = Field("", description="transcription file of the training set, lines `WORDS (utterance)`")
    test: str = Field("", description="transcription file of the test set")
    speaker_pattern: str = Field(
        r"([^/]+)/[^/]+$", description="regular expression whose group finds the speaker in a file's path"
    )
    labelled: float = Field(
        0.2, ge=0, le=1, description="share of the training speakers in `labelled`, of the others in `unlabelled`"
    )
    tune: float = Field(0.0, ge=0, lt=1, description="share of the training speakers in `tune`, kept from the others")
    shards: int = Field(2, ge=1, description="most shards of each set")
    corpus: str = Field("", description="name of the corpus; part of every key")
    condition: str = Field("", description="recording condition")
    prior: list[float] = Field([], description="`dims` values that a speaker's causal mean starts from; empty: zeros")
    stats_sets: list[str] = Field([], description="sets that the global mean and variance come from; empty: not test*")
    seed: int = Field(0, ge=0, description="of the order in which speakers are taken")

    @model_validator(mode="after")
    def _check(self) -> ImportFeaturesParams:
        if self.prior and len(self.prior) != self.dims:
            raise ValueError(f"prior has {len(self.prior)} values, dims is {self.dims}")
        try:
            groups = re.compile(self.speaker_pattern).groups
        except re.error as error:
            raise ValueError(f"speaker_pattern {self.speaker_pattern!r}: {error}") from None
        if groups != 1:
            raise ValueError(f"speaker_pattern {self.speaker_pattern!r} has {groups} groups, not one")
        return self

    def identity(self) -> dict[str, Any]:
        """A changed source is another job, as for `ingest`."""
        from megahour.corpus.sources import source_digest

        paths = [path for path in (self.source, self.train, self.test) if path]
        return {**super().identity(), "digests": [source_digest(path) for path in paths]}


class ImportFeatures(Stage[ImportFeaturesParams]):
    """One task per shard, which names its utterances; sets are made by speaker."""

    name = "import-features"
    version = 1
    params = ImportFeaturesParams
    inputs = ()

    def plan(self, p: ImportFeaturesParams, inputs: Inputs) -> list[Task]:
        from megahour.features.cepstra import plan_import

        if not p.source or not p.train:
            raise ConfigError(
                "no source" if p.train else "no transcriptions", where=self.name, remedy="give source= and train="
            )
        return [Task({"set": name, "utterances": [list(u) for u in shard]}) for name, shard in plan_import(p)]

    def run(self, p: ImportFeaturesParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.features.cepstra import Utterance, import_shard

        import_shard(p, task["set"], (Utterance(*fields) for fields in task["utterances"]), out)

    def finish(self, p: ImportFeaturesParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        from megahour.features.stage import global_statistics

        return {"mels": p.dims, **global_statistics(receipts, p.stats_sets)}
