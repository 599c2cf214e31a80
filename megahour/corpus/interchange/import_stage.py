"""The `import` stage: data sets of other tools → the *utterances* artifact, or *recordings* to align and cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from megahour.core.config import Params
from megahour.core.stage import Context, Inputs, Stage, Task
from megahour.corpus.licences import DEFAULT_ALLOWED, check_policy

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter


class ImportParams(Params):
    """Data sets of lhotse, NeMo, Kaldi, Hugging Face and WebDataset, as utterances or as recordings."""

    format: Literal["lhotse", "shar", "nemo", "nemo-tarred", "kaldi", "parquet", "webdataset"] = Field(
        description="what the source is"
    )
    source: str = Field(
        min_length=1, description="file, glob, directory or URL: manifests, tars, parquet files, or Kaldi's directory"
    )
    audio: str = Field("", description="glob of the tars that belong to shar's or nemo-tarred's manifests, in order")
    supervisions: str = Field("", description="lhotse: supervisions.jsonl, where the source is recordings.jsonl")
    root: str = Field("", description="folder of relative paths, and the only one to read from; default: the source's")
    allow_outside: bool = Field(False, description="follow paths in manifests that lead out of the root")
    kind: Literal["utterances", "recordings"] = Field(
        "utterances", description="utterances for select and features, or recordings with cues for align"
    )
    corpus: str = Field("", description="name of the corpus; part of every key")
    rate_hz: int = Field(16_000, ge=8_000, le=48_000, description="sampling rate of what is written")
    licences: list[str] = Field(
        list(DEFAULT_ALLOWED), description="SPDX identifiers that are allowed; without a version, any version"
    )
    licence: str = Field("", description="licence of entries that name none")
    attribution: str = Field("", description="attribution of entries that name none")
    language: str = Field("en", min_length=2, description="language of entries that name none (BCP 47)")
    condition: str = Field("", description="recording condition of the entries")
    shard_rows: int = Field(2000, ge=1, description="lines of a manifest per shard, about")
    max_hours: float = Field(12.0, gt=0, description="longest recording, hours")
    min_seconds: float = Field(0.1, ge=0, description="shortest utterance, seconds")
    max_bytes: int = Field(8 << 30, gt=0, description="largest file, once unpacked")
    silent_peak: float = Field(0.001, ge=0, lt=1, description="audio that stays below is silent (1 = full scale)")
    max_clipped: float = Field(0.05, ge=0, le=1, description="largest share of samples at full scale")

    @model_validator(mode="after")
    def _parts_fit(self) -> ImportParams:
        tarred = self.format in ("shar", "nemo-tarred")
        if tarred != bool(self.audio):
            raise ValueError(f"{self.format} {'needs' if tarred else 'takes no'} audio = GLOB OF TARS")
        if self.supervisions and self.format != "lhotse":
            raise ValueError(f"supervisions belong to lhotse, not to {self.format}")
        return self

    def identity(self) -> dict[str, Any]:
        """A changed source is another job."""
        from megahour.corpus.sources import source_digest

        paths = [path for path in (self.source, self.audio, self.supervisions) if path]
        return {**super().identity(), "digests": [source_digest(path) for path in paths]}


class Import(Stage[ImportParams]):
    """One task per tar or parquet file, and per `shard_rows` lines of a manifest (whole recordings each)."""

    name = "import"
    version = 2
    params = ImportParams
    inputs = ()

    def plan(self, p: ImportParams, inputs: Inputs) -> list[Task]:
        from megahour.corpus.interchange.import_plan import plan_source

        check_policy(p.licences)
        return [Task(spec) for spec in plan_source(p)]

    def run(self, p: ImportParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.corpus.interchange.import_plan import task_entries
        from megahour.corpus.interchange.importing import import_shard

        with task_entries(p, task.spec) as entries:
            import_shard(p, entries, out, ctx)

    def finish(self, p: ImportParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        samples = sum(receipt.stats.get("audio_samples", 0) for receipt in receipts)
        return {
            p.kind: sum(receipt.counts.kept for receipt in receipts),
            "hours": round(samples / p.rate_hz / 3600, 4),
            "rate_hz": p.rate_hz,
        }
