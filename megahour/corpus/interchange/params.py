"""What a user may set of `interchange`: parameters, their defaults and what they change."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from megahour.core.config import Params, Share
from megahour.corpus.ingest.licences import DEFAULT_ALLOWED

Format = Literal["webdataset", "shar", "nemo", "parquet", "kaldi", "ctm", "textgrid", "srt", "files"]


class ExportParams(Params):
    """Utterances as WebDataset, lhotse Shar, NeMo, Kaldi, Hugging Face parquet, CTM, TextGrid and SRT."""

    formats: list[Format] = Field(
        ["webdataset", "nemo"],
        min_length=1,
        description="what to write: webdataset shar nemo parquet kaldi ctm textgrid srt files",
    )
    splits: list[str] = Field([], description="only utterances of these splits; empty = all")
    tiers: list[str] = Field([], description="only utterances of these tiers; empty = all")
    sets: list[str] = Field([], description="only utterances of these sets of the selection; empty = all selected")
    max_tar_mb: float = Field(1000.0, gt=0, description="audio of one output shard at most, megabytes")
    with_text: bool = Field(False, description="a .txt beside each .flac and .json of WebDataset")
    prefix: str = Field("", description="put before the paths in Kaldi's and lhotse's files: the export's own address")
    title: str = Field("speech", min_length=1, description="name of the data set in its README")

    @model_validator(mode="after")
    def _formats_fit(self) -> ExportParams:
        if len(set(self.formats)) != len(self.formats):
            raise ValueError(f"formats = {self.formats} names one of them twice")
        if "nemo" in self.formats and "webdataset" not in self.formats:
            raise ValueError("nemo describes the tars of webdataset: add webdataset to formats")
        if self.prefix and (not self.prefix.endswith("/") or any(c.isspace() for c in self.prefix)):
            raise ValueError(f'prefix = "{self.prefix}" must end with "/" and have no space')
        return self


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
    max_clipped: Share = Field(0.05, description="largest share of samples at full scale")

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
        from megahour.corpus.ingest.sources import source_digest

        paths = [path for path in (self.source, self.audio, self.supervisions) if path]
        return {**super().identity(), "digests": [source_digest(path) for path in paths]}
