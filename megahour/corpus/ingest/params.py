"""The parameters of `ingest` and `copies`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from megahour.core.config import LATER, Params, Share
from megahour.corpus.ingest.licences import DEFAULT_ALLOWED

NO_TEXTS = (
    "Let a recogniser write some (megahour transcribe AUDIO --model MODEL --format json --out TEXTS, or Whisper), and"
    " ingest the audio with --recognised TEXTS"
)


class IngestParams(Params):
    """Turn audio and transcripts into checked recordings."""

    source: str = ""
    """Directory, glob or URL of media files (or tar and zip archives) with transcripts beside them, or a table of
    addresses (.csv, .tsv, .jsonl, .parquet). Leave it empty with the input `raw`."""
    root: str = Field("", json_schema_extra=LATER)
    """With a table: folder that relative addresses start from. Empty: the table's folder."""
    allow_private: list[str] = Field([])
    """Private networks, such as 10.0.0.0/8, whose addresses a table may name. All others on this machine or a private
    network are refused."""
    pairing: Literal["name", "folder"] = "name"
    """Which transcripts belong to a media file. name: those with its name. folder: also those in its folder that match
    no media file's name."""
    transcripts: str = ""
    """File of all transcripts, or a glob of several, with lines "name: text", "name TAB text", "name|text" or "name
    text", or a table with a header (.csv, .tsv)."""
    recognised: str = Field("", json_schema_extra=LATER)
    """Folder of JSON files from a recogniser such as Whisper, NAME.json for each media file. `cut` checks texts against
    them, and they are the transcript of recordings without one. Their times may be wrong."""
    corpus: str = ""
    """Name of the corpus. It is part of every key."""
    rate_hz: int = Field(16_000, ge=8_000, le=48_000)
    """Sampling rate of the recordings, in Hz."""
    channels: Literal["mix", "split"] = "mix"
    """mix: mix all channels into one recording. split: make a recording of each channel, such as the two sides of a
    call. If a transcript names the channel of its lines (CTM, STM, JSON), each channel gets its own. If it names its
    speakers and has times, each gets the lines of those who are louder on it. Otherwise each gets the whole transcript,
    in which the other side's lines are not spoken."""
    licences: list[str] = Field(list(DEFAULT_ALLOWED))
    """Allowed licences, as SPDX identifiers. One without a version allows all versions."""
    licence: str = ""
    """Licence of recordings that name none."""
    attribution: str = ""
    """Attribution of recordings that name none."""
    language: str = Field("en", min_length=2)
    """Language (BCP 47) of recordings that name none. "und": detect it from the text."""
    on_language_mismatch: Literal["drop", "keep"] = "drop"
    """Drop or keep transcripts in another language or script than the declared one."""
    text_languages: list[str] = Field([])
    """Languages that a text can be in. Name them if texts are taken for other languages; empty: all known ones."""
    min_language_probability: Share = 0.8
    """Treat the language of a text as unknown below this probability."""
    audio_language: str = ""
    """Language identification of audio: package.module:function, called with (samples int16 [T], rate_hz). It returns
    (language, probability) or only the language; "": unsure."""
    audio_language_seconds: float = Field(30.0, gt=0)
    """Seconds of each recording passed to `audio_language`."""
    speaker: str = ""
    """Speaker of recordings that name none."""
    speaker_pattern: str = ""
    """Regular expression whose group matches the speaker in a file's path below the source."""
    condition: str = ""
    """Recording condition of recordings that name none."""
    require_transcript: bool = True
    """Drop recordings without a transcript."""
    max_hours: float = Field(12.0, gt=0)
    """Longest recording, in hours."""
    min_seconds: float = Field(0.2, ge=0)
    """Shortest recording, in seconds."""
    max_bytes: int = Field(8 << 30, gt=0)
    """Largest media file, and largest archive after unpacking, in bytes."""
    max_channels: int = Field(16, ge=1)
    """Largest number of channels in a recording."""
    silent_peak: float = Field(0.001, ge=0, lt=1)
    """Treat recordings with a lower peak as silent (1 is full scale)."""
    max_clipped: Share = 0.05
    """Largest share of samples at full scale."""
    on_cut_short: Literal["quarantine", "keep"] = "quarantine"
    """Quarantine or keep what there is of WAV, AIFF, CAF, AU, W64, SPHERE, FLAC, Ogg and MP3 files that end early, as
    after an interrupted copy, and of WAV files that go on behind the length in their header, as of a recorder stopped
    between two updates."""
    shard_mb: float = Field(256.0, gt=0)
    """Megabytes of media per task. Smaller tasks spread better over workers, larger ones write fewer files."""
    shard_rows: int = Field(16, ge=1)
    """Rows per task of a table without a column `bytes`."""

    def identity(self) -> dict[str, Any]:
        """With digests of the sources: added, removed and rewritten files make `ingest` run again."""
        from megahour.corpus.ingest.sources import source_digest

        digests = [source_digest(self.source, self.pairing)] if self.source else []
        beside = {"transcripts": self.transcripts, "recognised": self.recognised}
        digests += [source_digest(url, where=name) for name, url in beside.items() if url]
        return {**super().identity(), "digests": digests}

    def reach(self) -> None:
        """The sources, and what lies beside them."""
        from megahour.corpus.ingest.sources import check_sources

        check_sources(self, "source", "transcripts", "recognised")


class TranscriptTableParams(Params):
    """Sort the file of all transcripts by name, so that each task of `ingest` reads only its own."""

    transcripts: str = ""
    """As in `ingest`."""
    language: str = "en"
    """As in `ingest`. It tells which encodings are likely."""

    def identity(self) -> dict[str, Any]:
        """With a digest of the file: a rewritten one is laid out again."""
        from megahour.corpus.ingest.sources import source_digest

        return {**super().identity(), "digest": source_digest(self.transcripts, where="transcripts")}


class CopiesParams(Params):
    """Find recordings with the same sound, to keep one of each.

    The one with the best transcript stays.
    """

    partitions: int = Field(0, ge=0)
    """Number of output shards. 0: as many as the recordings have."""
