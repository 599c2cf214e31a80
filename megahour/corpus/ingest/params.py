"""What a user may set of `ingest`: parameters, their defaults and what they change."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from megahour.core.config import LATER, Params, Share
from megahour.corpus.ingest.licences import DEFAULT_ALLOWED


class IngestParams(Params):
    """Audio and transcripts from anywhere to checked recordings."""

    source: str = Field(
        "",
        description="directory, glob or URL of media (or tar, zip) files, transcripts beside them, or a table of "
        "addresses (.csv, .tsv, .jsonl, .parquet); not with the raw input",
    )
    allow_private: list[str] = Field(
        [], description="networks of this machine or a private network that a table may name, such as 10.0.0.0/8"
    )
    pairing: Literal["name", "folder"] = Field(
        "name",
        description="transcripts of a medium: those of its name, or also those of its folder that name no medium",
    )
    transcripts: str = Field("", description='file of all transcripts, a line "name: text" or "name TAB text" each')
    recognised: str = Field(
        "",
        description="folder of JSON that a recogniser such as Whisper wrote, NAME.json for each medium; `cut` checks "
        "texts by it, and it is the transcript where there is no other; its times need not be right",
        json_schema_extra=LATER,
    )
    corpus: str = Field("", description="name of the corpus; part of every key")
    rate_hz: int = Field(16_000, ge=8_000, le=48_000, description="sampling rate of the recordings")
    channels: Literal["mix", "split"] = Field("mix", description="mix all channels, or make a recording of each")
    licences: list[str] = Field(
        list(DEFAULT_ALLOWED), description="SPDX identifiers that are allowed; without a version, any version"
    )
    licence: str = Field("", description="licence of recordings that name none")
    attribution: str = Field("", description="attribution of recordings that name none")
    language: str = Field(
        "en", min_length=2, description='language of recordings that name none (BCP 47); "und": that of the text'
    )
    on_language_mismatch: Literal["drop", "keep"] = Field(
        "drop", description="transcripts in another language or script than the declared one"
    )
    text_languages: list[str] = Field([], description="languages that a text may be in; empty: all that are known")
    min_language_probability: Share = Field(
        0.8, description="probability below which a text's language counts as unknown"
    )
    audio_language: str = Field(
        "", description="package.module:function that identifies the language of (samples int16 [T], rate_hz)"
    )
    audio_language_seconds: float = Field(30.0, gt=0, description="seconds of each recording that this function gets")
    speaker: str = Field("", description="speaker of recordings that name none")
    speaker_pattern: str = Field("", description="regular expression whose group finds the speaker in a file's path")
    condition: str = Field("", description="recording condition of recordings that name none")
    require_transcript: bool = Field(True, description="drop recordings without a transcript")
    max_hours: float = Field(12.0, gt=0, description="longest recording, hours")
    min_seconds: float = Field(0.2, ge=0, description="shortest recording, seconds")
    max_bytes: int = Field(8 << 30, gt=0, description="largest media file, and largest archive once unpacked")
    max_channels: int = Field(16, ge=1, description="most channels of a recording")
    silent_peak: float = Field(0.001, ge=0, lt=1, description="a recording that stays below is silent (1 = full scale)")
    max_clipped: Share = Field(0.05, description="largest share of samples at full scale")
    shard_mb: float = Field(
        256.0,
        gt=0,
        description="media per task, in megabytes; smaller tasks spread better, larger ones write fewer files",
    )
    shard_rows: int = Field(16, ge=1, description="rows per task of a table that has no column `bytes`")

    def identity(self) -> dict[str, Any]:
        """A changed source is another job: files that came, went or were written again make `ingest` run again."""
        from megahour.corpus.ingest.sources import media_digest, source_digest

        digests = [media_digest(self.source, self.pairing)] if self.source else []
        digests += [source_digest(each) for each in (self.transcripts, self.recognised) if each]
        return {**super().identity(), "digests": digests}


class TranscriptTableParams(Params):
    """The file of all transcripts, laid out for the tasks of `ingest`."""

    transcripts: str = Field("", description="as of `ingest`")
    language: str = Field("en", description="as of `ingest`: which encodings are likely")

    def identity(self) -> dict[str, Any]:
        """A file that was written again is another."""
        from megahour.corpus.ingest.sources import source_digest

        return {**super().identity(), "digest": source_digest(self.transcripts)}


class CopiesParams(Params):
    """Recordings whose sound another one has: the one with the best transcript stays."""

    partitions: int = Field(0, ge=0, description="output shards; 0: as many as the recordings have")
