"""The parameters of `export` and `import`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from megahour.core.config import Params, Share
from megahour.corpus.ingest.licences import DEFAULT_ALLOWED

Format = Literal["webdataset", "shar", "nemo", "parquet", "kaldi", "ctm", "textgrid", "srt", "files"]


class ExportParams(Params):
    """Export utterances for lhotse, NeMo, Kaldi, WebDataset …

    The formats are WebDataset, lhotse Shar, NeMo, Kaldi, Hugging Face parquet, CTM, TextGrid and SRT.
    """

    formats: list[Format] = Field(["webdataset", "nemo"], min_length=1)
    """Formats to write: webdataset, shar, nemo, parquet, kaldi, ctm, textgrid, srt, files. nemo needs webdataset."""
    splits: list[str] = Field([])
    """Export only utterances in these splits. Empty: all."""
    tiers: list[str] = Field([])
    """Export only utterances in these tiers. Empty: all."""
    sets: list[str] = Field([])
    """Export only utterances in these sets of the selection. Empty: all that are selected."""
    max_tar_mb: float = Field(1000.0, gt=0)
    """Most audio per output shard, in megabytes."""
    with_text: bool = False
    """Add a .txt beside each .flac and .json of WebDataset."""
    prefix: str = ""
    """Prefix for the paths in Kaldi's and lhotse's files: the final address of the export, with a slash at the end."""
    title: str = Field("speech", min_length=1)
    """Name of the data set in its README."""

    @model_validator(mode="after")
    def _formats_fit(self) -> ExportParams:
        if len(set(self.formats)) != len(self.formats):
            raise ValueError(f"formats = {self.formats} has a format twice")
        if "nemo" in self.formats and "webdataset" not in self.formats:
            raise ValueError("nemo describes the tars of webdataset: add webdataset to formats")
        if self.prefix and (not self.prefix.endswith("/") or any(c.isspace() for c in self.prefix)):
            raise ValueError(f'prefix = "{self.prefix}" must end with "/" and have no space')
        return self


class ImportParams(Params):
    """Import lhotse, NeMo, Kaldi, Hugging Face, WebDataset data.

    They become utterances for select and features, or recordings with cues for align.
    """

    format: Literal["lhotse", "shar", "nemo", "nemo-tarred", "kaldi", "parquet", "webdataset"]
    """Format of the source."""
    source: str = Field(min_length=1)
    """File, glob, directory or URL: manifests, tars, parquet files or a Kaldi data directory."""
    audio: str = ""
    """With shar or nemo-tarred: glob of the tars that belong to the manifests, in the same order."""
    supervisions: str = ""
    """With lhotse: supervisions.jsonl, if the source is recordings.jsonl."""
    root: str = ""
    """Folder that relative paths start from, and the only one that files are read from. Empty: the source's folder."""
    allow_outside: bool = False
    """Follow paths in manifests that lead out of `root`."""
    kind: Literal["utterances", "recordings"] = "utterances"
    """utterances: for select and features. recordings: with cues, for align."""
    corpus: str = ""
    """Name of the corpus. It is part of every key."""
    rate_hz: int = Field(16_000, ge=8_000, le=48_000)
    """Sampling rate of the output, in Hz."""
    licences: list[str] = Field(list(DEFAULT_ALLOWED))
    """Allowed licences, as SPDX identifiers. One without a version allows all versions."""
    licence: str = ""
    """Licence of entries that name none."""
    attribution: str = ""
    """Attribution of entries that name none."""
    language: str = Field("en", min_length=2)
    """Language (BCP 47) of entries that name none."""
    condition: str = ""
    """Recording condition of the entries."""
    shard_rows: int = Field(2000, ge=1)
    """Approximate number of manifest lines per shard."""
    max_hours: float = Field(12.0, gt=0)
    """Longest recording, in hours."""
    min_seconds: float = Field(0.1, ge=0)
    """Shortest utterance, in seconds."""
    max_bytes: int = Field(8 << 30, gt=0)
    """Largest file after unpacking, in bytes."""
    silent_peak: float = Field(0.001, ge=0, lt=1)
    """Treat audio with a lower peak as silent (1 is full scale)."""
    max_clipped: Share = 0.05
    """Largest share of samples at full scale."""

    @model_validator(mode="after")
    def _parts_fit(self) -> ImportParams:
        tarred = self.format in ("shar", "nemo-tarred")
        if tarred != bool(self.audio):
            raise ValueError(f"{self.format} {'needs' if tarred else 'takes no'} audio = GLOB OF TARS")
        if self.supervisions and self.format != "lhotse":
            raise ValueError(f"supervisions belong to lhotse, not to {self.format}")
        return self

    def identity(self) -> dict[str, Any]:
        """With digests of the sources: added, removed and rewritten files make `import` run again."""
        from megahour.corpus.ingest.sources import source_digest

        paths = [path for path in (self.source, self.audio, self.supervisions) if path]
        return {**super().identity(), "digests": [source_digest(path) for path in paths]}

    def reach(self) -> None:
        """The sources."""
        from megahour.corpus.ingest.sources import check_sources

        check_sources(self, "source", "audio", "supervisions")
