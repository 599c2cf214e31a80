"""Scores an alignment: its word times against the true ones, and the cues that it wrongly kept or lost.

The transcript's words are matched with the truly spoken words by edit distance, in order. A cue is spoken if at least
half of its words have an equal partner. Times are compared for equal words of kept cues with known true times: in
composed recordings a clip of several words has true times only at its two ends, and -1 between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megahour.core.store import Artifact
from megahour.corpus.text.edit_distance import match
from megahour.score.sentences import (
    TOLERANCES_MS,
    SentenceTally,
    Truth,
    compare_lines,
    compare_untranscribed,
    errors,
    sentence_table,
)

Row = dict[str, Any]
FAR_MS = 1000
EDGES_MS = tuple(range(-500, 501, 20))  # of the histogram; errors beyond are in its first and last bar
_TABLES = (
    (".truth.parquet", "word"),
    (".sentences.parquet", "sentence"),
    (".lines.parquet", "line"),
    (".passages.parquet", "start_samples"),
)


@dataclass
class AlignmentCounts:
    """Counts and errors over the recordings of a condition. Errors are aligned minus true, in milliseconds."""

    start_ms: list[NDArray[np.float64]] = field(default_factory=list)
    end_ms: list[NDArray[np.float64]] = field(default_factory=list)
    recordings: int = 0
    refused: int = 0
    spoken_cues: int = 0
    spoken_lost: int = 0
    unspoken_cues: int = 0
    unspoken_kept: int = 0
    by_line: SentenceTally = field(default_factory=SentenceTally)

    def add(self, other: AlignmentCounts) -> None:
        self.by_line.add(other.by_line)
        for name, value in vars(other).items():
            if name != "by_line":
                vars(self)[name] += value

    def row(self, condition: str) -> Row:
        """The figures of a condition; None if there is nothing to measure."""
        start, end = (np.concatenate(e) if e else np.zeros(0) for e in (self.start_ms, self.end_ms))
        return {
            "condition": condition,
            "recordings": self.recordings,
            "refused": self.refused,
            "words": len(start),
            **errors("start", start, FAR_MS),
            **errors("end", end, FAR_MS),
            "spoken_cues": self.spoken_cues,
            "spoken_lost": self.spoken_lost,
            "unspoken_cues": self.unspoken_cues,
            "unspoken_kept": self.unspoken_kept,
            **self.by_line.row(),
        }


@dataclass(frozen=True)
class AlignmentScores:
    """`table` has a row of figures per condition, and a last row for all; `recordings` has one per recording.

    `histogram`: `edges_ms`, and how many word errors (aligned minus true) of `start` and `end` lie between them.
    """

    table: list[Row]
    recordings: list[Row]
    histogram: dict[str, list[int]]


def score_alignment(
    raw: Artifact, recordings: Artifact, alignment: Artifact, truth_rate_hz: int = 0
) -> AlignmentScores:
    """Figures by condition and by recording.

    truth_rate_hz: rate of the truth's samples; 0 if it is that of the recordings.
    """
    total, tallies, each = AlignmentCounts(), dict[str, AlignmentCounts](), list[Row]()
    for receipt in recordings.each_receipt():
        index = recordings.read_table(receipt.shard).to_pylist()
        names = {row["name"] for row in index}
        truth = [_truth(raw, suffix, order, names, receipt.shard) for suffix, order in _TABLES]
        cues = _grouped(recordings.read_table(receipt.shard, ".cues.parquet").to_pylist(), "key")
        words = _grouped(alignment.read_table(receipt.shard).to_pylist(), "key")
        segments = _grouped(alignment.read_table(receipt.shard, ".segments.parquet").to_pylist(), "key")
        for row in index:
            key, known = row["key"], Truth(*(rows.get(row["name"], []) for rows in truth))
            if known.words:
                aligned = words.get(key, []), segments.get(key, [])
                one = _of_recording(known, row, cues.get(key, []), *aligned, truth_rate_hz or row["rate_hz"])
                each.append({"key": key, "name": row["name"], **one.row(row["condition"])})
                tallies.setdefault(row["condition"], AlignmentCounts()).add(one)
                total.add(one)
    table = [*(tallies[name].row(name) for name in sorted(tallies)), total.row("all")]
    edges = [*EDGES_MS]
    histogram = {"edges_ms": edges, "start": spread(total.start_ms, edges), "end": spread(total.end_ms, edges)}
    return AlignmentScores(table, each, histogram)


def spread(errors_ms: Sequence[NDArray[np.float64]], edges_ms: Sequence[int]) -> list[int]:
    """How many errors lie between each two edges; errors beyond are in the first and the last bar."""
    clipped = np.clip(np.concatenate([np.zeros(0), *errors_ms]), edges_ms[0], edges_ms[-1])
    return [int(n) for n in np.histogram(clipped, edges_ms)[0]]


def recordings_table(rows: Sequence[Row]) -> pa.Table:
    """The rows of recordings, with fixed columns and types even if values are missing."""
    kinds = {int: pa.int64(), str: pa.string()}
    named = {"key": pa.int64(), "name": pa.string()}
    figures = {name: kinds.get(type(value), pa.float64()) for name, value in AlignmentCounts().row("").items()}
    return pa.Table.from_pylist(list(rows), pa.schema({**named, **figures}))


def _of_recording(
    truth: Truth, row: Row, cues: list[Row], words: list[Row], segments: list[Row], truth_rate_hz: int
) -> AlignmentCounts:
    """Score the recording `row` by words, and by lines if its truth has them."""
    tally, rate_hz = AlignmentCounts(), row["rate_hz"]
    compare(truth.words, cues, words, segments, rate_hz, rate_hz / truth_rate_hz, tally)
    if truth.lines:
        compare_lines(truth, cues, words, row["language"], (1000 / truth_rate_hz, 1000 / rate_hz), tally.by_line)
    if truth.sentences:
        compare_untranscribed(truth, words, segments, rate_hz, truth_rate_hz, tally.by_line)
    return tally


def compare(
    truth: list[Row],
    cues: list[Row],
    words: list[Row],
    segments: list[Row],
    rate_hz: int,
    ratio: float,
    tally: AlignmentCounts,
) -> None:
    """Add one recording to `tally`. ratio: samples of the recording per sample of the truth."""
    tally.recordings += 1
    tally.refused += not any(segment["cue"] >= 0 for segment in segments)
    written = [(cue["cue"], position, word) for cue in cues for position, word in enumerate(cue["text"].split())]
    partner = match([word for _, _, word in written], [word["text"] for word in truth])
    kept = {segment["cue"] for segment in segments if segment["kept"]}
    having = Counter(number for number, _, _ in written)
    equal = Counter(number for (number, _, _), at in zip(written, partner.tolist(), strict=True) if at >= 0)
    for number, count in having.items():
        spoken = equal[number] * 2 >= count
        tally.spoken_cues += spoken
        tally.unspoken_cues += not spoken
        tally.spoken_lost += spoken and number not in kept
        tally.unspoken_kept += not spoken and number in kept
    place_of = {(cue, position): i for i, (cue, position, _) in enumerate(written)}
    pairs = [(word, partner[place_of[word["cue"], word["word"]]]) for word in words]
    true = [(word, truth[at]) for word, at in pairs if at >= 0]
    for edge, into in (("start_samples", tally.start_ms), ("end_samples", tally.end_ms)):
        offsets = [word[edge] - spoken[edge] * ratio for word, spoken in true if spoken[edge] >= 0]
        into.append(np.array(offsets, np.float64) * (1000 / rate_hz))


def to_markdown(rows: Sequence[Row]) -> str:
    """The tables of `score_alignment`: by words, and by lines where the transcripts' lines are known."""
    head = (
        "| condition | words | start median / mean / p95 ms | end median / mean / p95 ms | start ≤ 50 / 100 / 200 ms "
        "| > 1 s | unspoken cues kept | spoken cues lost | refused |\n|" + "---|" * 9
    )
    by_word = "\n".join([head, *(_line(row) for row in rows)]) + "\n"
    by_line = sentence_table(rows)
    return by_word + ("\n" + by_line if by_line else "")


def _line(row: Row) -> str:
    def times(edge: str) -> str:
        values = [row[f"{edge}_{name}_ms"] for name in ("median", "mean", "p95")]
        return " / ".join("–" if value is None else f"{value:.0f}" for value in values)

    shares = [row[f"start_within_{limit}_ms"] for limit in TOLERANCES_MS]
    within = " / ".join("–" if share is None else f"{share:.1%}" for share in shares)
    far = "–" if row["start_far"] is None else f"{row['start_far']:.2%}"
    kept, lost = (
        f"{row[a]} of {row[b]}" for a, b in (("unspoken_kept", "unspoken_cues"), ("spoken_lost", "spoken_cues"))
    )
    refused = f"{row['refused']} of {row['recordings']}"
    cells = (row["condition"], row["words"], times("start"), times("end"), within, far, kept, lost, refused)
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _truth(raw: Artifact, suffix: str, order: str, names: set[str], likely: int) -> dict[str, list[Row]]:
    """Rows of a table of truth for the recordings `names`, by the column `order`.

    Shard `likely` of `raw` is read first, since `ingest` keeps shards.
    """
    rows_of: dict[str, list[Row]] = {}
    shards = [receipt.shard for receipt in raw.each_receipt() if suffix in receipt.files]
    for shard in sorted(shards, key=lambda shard: (shard != likely, shard)):
        table = raw.read_table(shard, suffix)
        for row in table.filter(pc.is_in(table["name"], pa.array(sorted(names), pa.string()))).to_pylist():
            rows_of.setdefault(row["name"], []).append(row)
        if len(rows_of) == len(names):  # a recording's truth is in one shard
            break
    for rows in rows_of.values():
        rows.sort(key=lambda row: int(row[order]))
    return rows_of


def _grouped(rows: list[Row], column: str) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups
