"""What a stage left out: counts by reason from its receipts, and some examples of each reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.store import Artifact
from megahour.report.clips import ClipSpan, Coding, ReportClip, rows_by_key, spans
from megahour.report.counters import Sample

MOST_REASONS = 200  # examples are kept for at most this many reasons
Int64 = NDArray[np.int64]
CueTimes = dict[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Lost:
    """An example of a dropped record: its time in seconds (None: unknown), its text, and the reason."""

    reason: str
    name: str
    text: str
    detail: str
    start_s: float | None = None
    end_s: float | None = None
    cue: tuple[int, int] | None = None  # keys of recording and cue
    cue_s: tuple[float, float] | None = None  # time of the cue in the transcript
    clip: ReportClip | None = None
    span: ClipSpan | None = None


def examples(artifact: Artifact, *, each: int, seed: int) -> dict[str, list[Lost]]:
    """Up to `each` examples per reason: a sample of `.dropped.parquet` or, of an alignment, of the recordings that it
    refused whole; then the first in quarantine and receipts.

    Receipts list good records that a policy leaves out, as in `ingest` (`examples` in their statistics).
    """
    by_reason: dict[str, list[Lost]] = {}
    for suffix, rows_of, lost_in in (
        (".dropped.parquet", _all_rows, _dropped),
        (".segments.parquet", _whole, _refused),
    ):
        for reason, sample in _sampled(artifact, suffix, rows_of, each, seed).items():
            by_reason[reason] = list(lost_in(artifact, sample))
    for lost in _first(artifact):
        here = (
            by_reason.setdefault(lost.reason, []) if lost.reason in by_reason or len(by_reason) < MOST_REASONS else None
        )
        if here is not None and len(here) < each:
            here.append(lost)
    return by_reason


def _first(artifact: Artifact) -> Iterator[Lost]:
    for bad in artifact.bad_records() if artifact.manifest.counts.bad else ():
        yield Lost(bad.get("reason", ""), bad.get("id", ""), bad.get("source", ""), bad.get("detail", ""))
    for receipt in artifact.each_receipt():
        for reason, left_out in receipt.stats.get("examples", {}).items():
            yield from (Lost(reason, each["name"], "", each["detail"]) for each in left_out)


def _sampled(artifact: Artifact, suffix: str, rows_of: RowsOf, each: int, seed: int) -> dict[str, Sample]:
    samples: dict[str, Sample] = {}
    for receipt in artifact.each_receipt():
        if suffix not in receipt.files:
            continue
        keys, among, reasons = rows_of(artifact, receipt.shard)
        for reason in sorted(set(reasons[among])):
            if reason in samples or len(samples) < MOST_REASONS:
                rows = among[reasons[among] == reason]
                samples.setdefault(reason, Sample(each, seed)).add(receipt.shard, keys[rows], rows)
    return samples


RowsOf = Callable[[Artifact, int], tuple[Int64, Int64, NDArray[np.object_]]]
"""From an artifact and a shard to the key of each row of a table, the rows to sample, and the reason of each row."""


def _all_rows(artifact: Artifact, shard: int) -> tuple[Int64, Int64, NDArray[np.object_]]:
    """All rows of what `cut` left out."""
    columns = ["recording", "cue", "start_samples", "reason"]
    table = artifact.read_table(shard, ".dropped.parquet", columns=columns)
    recording, cue, start = (table[name].to_numpy().astype(np.int64) for name in columns[:3])
    reasons = np.array(table["reason"].to_pylist(), dtype=object)
    return recording ^ (cue << 40) ^ start, np.arange(len(table)), reasons


def _whole(artifact: Artifact, shard: int) -> tuple[Int64, Int64, NDArray[np.object_]]:
    """The recordings that an alignment refused whole: segments with cue -1, but untranscribed speech."""
    table = artifact.read_table(shard, ".segments.parquet", columns=["key", "cue", "kept", "reason"])
    reasons = np.array(table["reason"].to_pylist(), dtype=object)
    dropped = list(artifact.receipt_of(shard).counts.dropped)
    refused = (table["cue"].to_numpy() < 0) & ~table["kept"].to_numpy() & np.isin(reasons, dropped)
    return table["key"].to_numpy(), np.flatnonzero(refused), reasons


def _refused(artifact: Artifact, sample: Sample) -> Iterator[Lost]:
    for shard, rows in sample.by_shard().items():
        for row in artifact.read_table(shard, ".segments.parquet").take(rows).to_pylist():
            span = ClipSpan(f"r{shard}-{row['key']}", row["key"], row["start_samples"], row["end_samples"])
            yield Lost(row["reason"], "", "", "", span=span)


def _dropped(artifact: Artifact, sample: Sample) -> Iterator[Lost]:
    for shard, rows in sample.by_shard().items():
        for row in artifact.read_table(shard, ".dropped.parquet").take(rows).to_pylist():
            key, start, end = row["recording"], row["start_samples"], row["end_samples"]
            span = ClipSpan(f"d{shard}-{key}-{row['cue']}-{start}", key, start, end)
            yield Lost(
                row["reason"],
                row["name"] or "",
                row["text"] or "",
                row["detail"] or "",
                cue=(key, row["cue"]) if row["cue"] >= 0 else None,
                span=span if 0 <= span.start < span.stop else None,
            )


def with_sound(
    found: dict[str, list[Lost]], recordings: Artifact, *, longest_s: float, coding: Coding
) -> dict[str, list[Lost]]:
    """Add to the examples their times and their cues' times in seconds, and up to `longest_s` seconds of audio; and its
    name to a recording that was refused whole.

    An example without times of its own uses those of its cue.
    """
    every = [lost for here in found.values() for lost in here]
    keys = {lost.span.recording for lost in every if lost.span} | {lost.cue[0] for lost in every if lost.cue}
    index, cues = _index(recordings, keys), _cue_times(recordings, {lost.cue for lost in every if lost.cue})
    placed = {reason: [_placed(lost, index, cues) for lost in here] for reason, here in found.items()}
    wanted = {}
    for lost in (lost for here in placed.values() for lost in here):
        if lost.span and lost.start_s is not None:
            most = lost.span.start + round(longest_s * index[lost.span.recording][0])
            wanted[lost.span.name] = replace(lost.span, stop=min(lost.span.stop, most))
    sounds = spans(recordings, list(wanted.values()), coding)
    return {
        reason: [replace(lost, clip=sounds.get(lost.span.name) if lost.span else None) for lost in here]
        for reason, here in placed.items()
    }


def _placed(lost: Lost, index: dict[int, tuple[int, str]], cues: CueTimes) -> Lost:
    if lost.cue in cues and lost.cue is not None and lost.cue[0] in index:
        rate, (start, stop) = index[lost.cue[0]][0], cues[lost.cue]
        span = ClipSpan(f"c{lost.cue[0]}-{lost.cue[1]}", lost.cue[0], start, stop)
        lost = replace(lost, cue_s=(start / rate, stop / rate), span=lost.span or span)
    if lost.span is None or lost.span.recording not in index:
        return lost
    rate, name = index[lost.span.recording]
    return replace(lost, start_s=lost.span.start / rate, end_s=lost.span.stop / rate, name=lost.name or name)


def _cue_times(recordings: Artifact, wanted: set[tuple[int, int]]) -> CueTimes:
    """(start, end) in samples of the cues that have both."""
    times: CueTimes = {}
    keys: Any = np.array(sorted({key for key, _ in wanted}), np.int64)
    for receipt in recordings.each_receipt() if wanted else ():
        if ".cues.parquet" in receipt.files:
            names = ["key", "cue", "start_samples", "end_samples"]
            table = recordings.read_table(receipt.shard, ".cues.parquet", columns=names)
            for row in table.filter(np.isin(table["key"].to_numpy(), keys)).to_pylist():
                if (row["key"], row["cue"]) in wanted and 0 <= row["start_samples"] < row["end_samples"]:
                    times[row["key"], row["cue"]] = row["start_samples"], row["end_samples"]
    return times


HoursByReason = tuple[dict[str, float], float]


def hours_by_reason(artifact: Artifact, rate_hz: int) -> HoursByReason:
    """Hours that a stage left out by reason, if its tables have times, and its input hours.

    rate_hz: sampling rate of the recordings, which the times in these tables use.
    """
    hours: dict[str, float] = {}
    came_in = 0.0
    for receipt in artifact.each_receipt():
        came_in += float(receipt.stats.get("audio_s", 0.0)) / 3600
        for suffix in receipt.files.keys() & {".left_out.parquet", ".dropped.parquet", ".segments.parquet"}:
            table = artifact.read_table(receipt.shard, suffix)
            if suffix == ".left_out.parquet":
                seconds = np.nan_to_num(table["seconds"].to_numpy())
                came_in += float(seconds.sum()) / 3600
            else:
                start, end = (table[f"{name}_samples"].to_numpy() for name in ("start", "end"))
                seconds = np.where((start >= 0) & (end > start), (end - start) / max(rate_hz, 1), 0.0)
            left = ~table["kept"].to_numpy() if "kept" in table.schema.names else np.ones(len(seconds), bool)
            for reason, value in zip(table["reason"].to_numpy()[left], seconds[left], strict=True):
                hours[reason] = hours.get(reason, 0.0) + float(value) / 3600
    return hours, came_in


def _index(recordings: Artifact, keys: set[int]) -> dict[int, tuple[int, str]]:
    """Rate and name of these recordings."""
    found = (rows for _, rows in rows_by_key(recordings, keys, ["rate_hz", "name"]))
    return {key: (row["rate_hz"], row["name"]) for rows in found for key, row in rows.items()}
