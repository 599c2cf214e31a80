"""The `ingest` stage: raw audio and transcripts from anywhere → the *recordings* artifact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from megahour.core.config import Params
from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, Stage, Task
from megahour.corpus.licences import DEFAULT_ALLOWED, check_policy

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter


class IngestParams(Params):
    """Audio and transcripts from anywhere to checked recordings."""

    source: str = Field(
        "",
        description="directory, glob or URL of media (or tar) files, transcripts beside them, or a table of addresses "
        "(.csv, .tsv, .jsonl, .parquet); not with the raw input",
    )
    pairing: Literal["name", "folder"] = Field(
        "name",
        description="transcripts of a medium: those of its name, or also those of its folder that name no medium",
    )
    transcripts: str = Field("", description='file of all transcripts, a line "name: text" or "name TAB text" each')
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
    min_language_probability: float = Field(0.8, ge=0, le=1, description="below, no language is named")
    audio_language: str = Field(
        "", description="package.module:function that tells the language of (samples int16 [T], rate_hz)"
    )
    audio_language_seconds: float = Field(30.0, gt=0, description="of each recording for that function")
    speaker: str = Field("", description="speaker of recordings that name none")
    speaker_pattern: str = Field("", description="regular expression whose group finds the speaker in a file's path")
    condition: str = Field("", description="recording condition of recordings that name none")
    require_transcript: bool = Field(True, description="drop recordings without a transcript")
    max_hours: float = Field(12.0, gt=0, description="longest recording, hours")
    min_seconds: float = Field(0.2, ge=0, description="shortest recording, seconds")
    max_bytes: int = Field(8 << 30, gt=0, description="largest media file, and largest archive once unpacked")
    max_channels: int = Field(16, ge=1, description="most channels of a recording")
    silent_peak: float = Field(0.001, ge=0, lt=1, description="a recording that stays below is silent (1 = full scale)")
    max_clipped: float = Field(0.05, ge=0, le=1, description="largest share of samples at full scale")
    shard_mb: float = Field(256.0, gt=0, description="media per task, megabytes (a shard of recordings is one task)")
    shard_rows: int = Field(16, ge=1, description="rows per task of a table that has no column `bytes`")

    def identity(self) -> dict[str, Any]:
        """A changed source is another job: files that came, went or were written again make `ingest` run again."""
        from megahour.corpus.sources import media_digest, source_digest

        digests = [media_digest(self.source, self.pairing)] if self.source else []
        digests += [source_digest(self.transcripts)] if self.transcripts else []
        return {**super().identity(), "digests": digests}


class Ingest(Stage[IngestParams]):
    """One task per shard of the raw input; from a source, one per archive and per `shard_mb` of files or rows."""

    name = "ingest"
    version = 4
    params = IngestParams
    inputs = (Input("raw", optional=True),)

    def plan(self, p: IngestParams, inputs: Inputs) -> list[Task]:
        check_policy(p.licences)
        _check_pattern(p.speaker_pattern)
        _check_languages(p)
        if bool(p.source) == ("raw" in inputs):
            raise ConfigError(
                "both a source and the raw input" if p.source else "neither a source nor the raw input",
                where=self.name,
                remedy="give source=DIRECTORY, or the artifact of synthesise as raw",
            )
        if "raw" in inputs:
            return [Task({"shard": receipt.shard}) for receipt in inputs["raw"].receipts()]
        from megahour.corpus.sources import plan_files
        from megahour.corpus.tables import is_table, plan_table

        shard_bytes = int(p.shard_mb * 1e6)
        if is_table(p.source):
            return [Task(spec) for spec in plan_table(p.source, shard_bytes, p.shard_rows)]
        return [Task(spec) for spec in plan_files(p.source, shard_bytes, p.pairing)]

    def run(self, p: IngestParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.corpus.ingest import ingest_shard
        from megahour.corpus.items import task_items

        if raw := inputs.get("raw"):
            out.tags.update(next(receipt.tags for receipt in raw.receipts() if receipt.shard == task["shard"]))
        with task_items(p, raw, task.spec, ctx.work) as items:
            ingest_shard(p, items, out, ctx.work)

    def finish(self, p: IngestParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        samples = sum(receipt.stats.get("audio_samples_out", 0) for receipt in receipts)
        return {
            "recordings": sum(receipt.counts.kept for receipt in receipts),
            "hours": round(samples / p.rate_hz / 3600, 4),
            "cues": sum(receipt.stats.get("cues", 0) for receipt in receipts),
            "words": sum(receipt.stats.get("words", 0) for receipt in receipts),
            "rate_hz": p.rate_hz,
            "not_read": dict(sum((Counter(receipt.stats.get("not_read", {})) for receipt in receipts), Counter())),
            "licences": _added_up(receipt.stats.get("licences", {}) for receipt in receipts),
            "languages": _added_up(receipt.stats.get("languages", {}) for receipt in receipts),
        }


def _added_up(parts: Iterable[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Numbers by name and key, those of all shards together; the most frequent names come first."""
    total: dict[str, dict[str, float]] = {}
    for part in parts:
        for name, numbers in part.items():
            into = total.setdefault(name, {})
            for key, number in numbers.items():
                into[key] = round(into.get(key, 0) + number, 3)
    return dict(sorted(total.items(), key=lambda each: (-sum(each[1].values()), each[0])))


def _check_languages(p: IngestParams) -> None:
    if p.text_languages:
        from megahour.corpus.language_id import check_languages

        check_languages(p.text_languages)
    if p.audio_language:
        from megahour.corpus.audio_language import load_hook

        load_hook(p.audio_language)


def _check_pattern(pattern: str) -> None:
    import re

    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ConfigError(f'"{pattern}" is no regular expression: {error}', where="speaker_pattern") from None
    if pattern and groups != 1:
        raise ConfigError(f'"{pattern}" has {groups} groups', where="speaker_pattern", remedy="give it one: _(\\w+)_")
