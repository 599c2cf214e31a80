"""The stage `ingest`: raw audio and transcripts → the *recordings* artifact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, LaidOut, Receipt, ShardWriter, Stage, Task
from megahour.corpus.ingest.counts import DIVIDED, PREFERRED, WHOLE, replaced_remark
from megahour.corpus.ingest.licences import check_policy, licence_remedies
from megahour.corpus.ingest.params import IngestParams, TranscriptTableParams
from megahour.corpus.media.networks import parse_networks
from megahour.corpus.text.language_id import check_language

ODD_AUDIO = {
    "unfinished_files": "files that end early or declare no samples, read to their end",
    "files_with_opposite_channels": "files whose channels cancel each other, of which one was taken",
    "files_with_separate_channels": "files whose two channels hold different voices, which were mixed",
}
"""By statistic: what is odd about files that were kept, named in the shards' `examples` under `odd-audio`."""
SIDES = {
    DIVIDED: "transcripts whose lines were divided between channels",
    WHOLE: "transcripts given whole to every channel, without channels or speakers to divide them by",
    PREFERRED: "recordings with a transcript that names speakers or channels, which was taken before those without",
}
"""By statistic: what became of transcripts with `channels: split`; `examples` name the latter under `not-divided`."""
VOICES = {
    "paths_without_speaker": "recordings that are each a speaker, as --speaker-pattern matches no path below the source"
}


class Ingest(Stage[IngestParams]):
    """One task per shard of the raw input, or per archive, `shard_mb` of files and rows of the source."""

    name = "ingest"
    version = 30
    params = IngestParams
    inputs = (Input("raw", optional=True, kinds=("raw", "clips")),)

    def check(self, p: IngestParams, roles: Collection[str]) -> None:
        check_policy(p.licences, p.licence)
        check_language(p.language)
        parse_networks(p.allow_private)
        _check_pattern(p.speaker_pattern)
        if p.text_languages:
            from megahour.corpus.text.language_id import check_languages

            check_languages(p.text_languages)
        if bool(p.source) == ("raw" in roles):
            raise ConfigError(
                "both `source` and the input `raw` are given" if p.source else "no `source` and no input `raw`",
                where=self.name,
                remedy="give --source FOLDER (in a recipe `source`), or an artifact of `synthesise` as the input `raw`",
            )

    def layouts(self, p: IngestParams, inputs: Inputs) -> Mapping[str, LaidOut]:
        from megahour.corpus.ingest.transcript_table import LayOutTranscripts

        params = TranscriptTableParams.model_validate({"transcripts": p.transcripts, "language": p.language})
        return {"transcripts": LaidOut(LayOutTranscripts(), params, {})} if p.transcripts else {}

    def plan(self, p: IngestParams, inputs: Inputs) -> list[Task]:
        if p.audio_language:  # not in `check`: only a machine that runs the stage needs the package
            from megahour.corpus.ingest.audio_language import load_hook

            load_hook(p.audio_language)
        if p.recognised:
            from megahour.corpus.ingest.transcript_sources import recognised_folder

            recognised_folder(p.recognised)
        if "raw" in inputs:
            return [Task({"shard": receipt.shard}) for receipt in inputs["raw"].each_receipt()]
        from megahour.corpus.ingest.sources import open_source, plan_files
        from megahour.corpus.ingest.tables import is_table, plan_table

        shard_bytes = int(p.shard_mb * 1e6)
        if is_table(p.source):
            return [Task(spec) for spec in plan_table(p.source, shard_bytes, p.shard_rows)]
        root = open_source(p.source)[1]  # once here, as it may list the source
        return [Task({**spec, "root": root}) for spec in plan_files(p.source, shard_bytes, p.pairing, p.transcripts)]

    def run(self, p: IngestParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.corpus.ingest.items import task_items
        from megahour.corpus.ingest.shard import ingest_shard

        if raw := inputs.get("raw"):
            out.tags.update(raw.receipt_of(task["shard"]).tags)
        with task_items(p, raw, task.spec, ctx.work) as items:
            ingest_shard(p, items, out, ctx.work, inputs.get("transcripts"))

    def remedies(self, p: IngestParams, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        licences = _added_up(receipt.stats.get("licences", {}) for receipt in receipts)
        spoken = f"set --language (now {p.language}), or accept other languages with --on-language-mismatch keep"
        return {
            **licence_remedies(name for name, numbers in licences.items() if numbers.get("dropped")),
            "no-transcript": _find_transcripts(p, receipts),
            **dict.fromkeys(("language-mismatch", "script-mismatch", "audio-language-mismatch"), spoken),
            "truncated-audio": "keep what there is with --on-cut-short keep",
            "silent-channel": "lower --silent-peak if they are not silent",
        }

    def finish(self, p: IngestParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        samples = sum(receipt.stats.get("audio_samples_out", 0) for receipt in receipts)
        return {
            "recordings": sum(receipt.counts.kept for receipt in receipts),
            "hours": round(samples / p.rate_hz / 3600, 4),
            "cues": sum(receipt.stats.get("cues", 0) for receipt in receipts),
            "words": sum(receipt.stats.get("words", 0) for receipt in receipts),
            "rate_hz": p.rate_hz,
            "not_read": dict(_not_read(receipts)),
            "licences": _added_up(receipt.stats.get("licences", {}) for receipt in receipts),
            "languages": _added_up(receipt.stats.get("languages", {}) for receipt in receipts),
            **_remarks(receipts),
        }


def _remarks(receipts: Sequence[Receipt]) -> dict[str, Any]:
    """The summary's `remark`: replaced characters, and odd audio that was kept."""
    summary = replaced_remark(receipts)
    remarks = [summary["remark"]] if summary else []
    for name, what in (ODD_AUDIO | SIDES | VOICES).items():
        if n := sum(receipt.stats.get(name, 0) for receipt in receipts):
            remarks.append(f"{what}: {n:,}")
    return summary | ({"remark": "; ".join(remarks)} if remarks else {})


def _find_transcripts(p: IngestParams, receipts: Sequence[Receipt]) -> str:
    remedy = "--no-require-transcript keeps recordings without one"
    if p.transcripts:
        lists = (receipt.stats.get("examples", {}).get("no-transcript", []) for receipt in receipts)
        example = next((first["detail"] for first, *_ in filter(None, lists)), "")
        return f"for example {example}; {remedy}" if example else remedy
    unread = _not_read(receipts)
    beside = [suffix for suffix in (".txt", ".csv", ".tsv") if unread[suffix]]
    here = f", such as '{p.source.rstrip('/')}/**/*{beside[0]}' if these hold the texts" if beside else ""
    return f"--transcripts FILE takes a file of all texts{here}; --pairing folder, one of another name; {remedy}"


def _not_read(receipts: Iterable[Receipt]) -> Counter[str]:
    """Files of a source that belong to no recording, by kind."""
    counts: Counter[str] = Counter()
    for receipt in receipts:
        counts.update(receipt.stats.get("not_read", {}))
    return counts


def _added_up(parts: Iterable[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Sums over all shards by name and key, the most frequent names first."""
    total: dict[str, dict[str, float]] = {}
    for part in parts:
        for name, numbers in part.items():
            into = total.setdefault(name, {})
            for key, number in numbers.items():
                into[key] = round(into.get(key, 0) + number, 3)
    return dict(sorted(total.items(), key=lambda each: (-sum(each[1].values()), each[0])))


def _check_pattern(pattern: str) -> None:
    import re

    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ConfigError(f'"{pattern}" is not a regular expression: {error}', where="speaker_pattern") from None
    if pattern and groups != 1:
        raise ConfigError(f'"{pattern}" has {groups} groups', where="speaker_pattern", remedy="give it one: _(\\w+)_")
