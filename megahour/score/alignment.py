"""How right an alignment is: its word times against the true ones, and what it kept and lost of the transcript.

The transcript's words are matched with the truly spoken words by edit distance, in order. A cue is spoken when at least
half of its words have an equal partner. Times are compared for equal words of kept cues, where the truth knows them: in
composed recordings a clip of several words has true times at its two ends only, and -1 between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit
from numpy.typing import NDArray

from megahour.core.store import Artifact

Row = dict[str, Any]
TOLERANCES_MS = (50, 100, 200)
FAR_MS = 1000


@dataclass
class Tally:
    """What is added up over the recordings of a condition. Errors are aligned minus true, milliseconds."""

    start_ms: list[NDArray[np.float64]] = field(default_factory=list)
    end_ms: list[NDArray[np.float64]] = field(default_factory=list)
    recordings: int = 0
    refused: int = 0
    spoken_cues: int = 0
    spoken_lost: int = 0
    unspoken_cues: int = 0
    unspoken_kept: int = 0

    def row(self, condition: str) -> Row:
        """The figures of a condition; None where there is nothing to measure."""
        start, end = (np.concatenate(e) if e else np.zeros(0) for e in (self.start_ms, self.end_ms))
        return {
            "condition": condition,
            "recordings": self.recordings,
            "refused": self.refused,
            "words": len(start),
            **_errors("start", start),
            **_errors("end", end),
            "spoken_cues": self.spoken_cues,
            "spoken_lost": self.spoken_lost,
            "unspoken_cues": self.unspoken_cues,
            "unspoken_kept": self.unspoken_kept,
        }


def _errors(edge: str, errors_ms: NDArray[np.float64]) -> Row:
    size = np.abs(errors_ms)
    names = ["median_ms", "mean_ms", "p95_ms", "bias_ms", *(f"within_{limit}_ms" for limit in TOLERANCES_MS), "far"]
    if not len(size):
        return {f"{edge}_{name}": None for name in names}
    figures = [np.median(size), size.mean(), np.percentile(size, 95), np.median(errors_ms)]
    figures += [(size <= limit).mean() for limit in TOLERANCES_MS]
    figures.append((size > FAR_MS).mean())
    return {f"{edge}_{name}": round(float(figure), 4) for name, figure in zip(names, figures, strict=True)}


def score_alignment(raw: Artifact, recordings: Artifact, alignment: Artifact, truth_rate_hz: int = 0) -> list[Row]:
    """A row of figures for each condition, and one for all.

    truth_rate_hz: rate of the truth's samples; 0 when it is that of the recordings.
    """
    tallies: dict[str, Tally] = {}
    for receipt in recordings.receipts():
        index = recordings.read_table(receipt.shard).to_pylist()
        truth = _truth(raw, {row["name"] for row in index}, receipt.shard)
        cues = _grouped(recordings.read_table(receipt.shard, ".cues.parquet").to_pylist(), "key")
        words = _grouped(alignment.read_table(receipt.shard).to_pylist(), "key")
        segments = _grouped(alignment.read_table(receipt.shard, ".segments.parquet").to_pylist(), "key")
        for row in index:
            if row["name"] in truth:
                key = row["key"]
                ratio = row["rate_hz"] / (truth_rate_hz or row["rate_hz"])
                for condition in (row["condition"], "all"):
                    tally = tallies.setdefault(condition, Tally())
                    aligned = words.get(key, []), segments.get(key, [])
                    compare(truth[row["name"]], cues.get(key, []), *aligned, row["rate_hz"], ratio, tally)
    total = tallies.pop("all", Tally())
    return [*(tallies[name].row(name) for name in sorted(tallies)), total.row("all")]


def compare(
    truth: list[Row], cues: list[Row], words: list[Row], segments: list[Row], rate_hz: int, ratio: float, tally: Tally
) -> None:
    """Add one recording to `tally`. ratio: samples of the recording per sample of the truth."""
    tally.recordings += 1
    tally.refused += not segments
    written = [(cue["cue"], place, word) for cue in cues for place, word in enumerate(cue["text"].split())]
    partner = match([word for _, _, word in written], [word["text"] for word in truth])
    kept = {segment["cue"] for segment in segments if segment["kept"]}
    for cue in cues:
        found = [bool(partner[i] >= 0) for i, (number, _, _) in enumerate(written) if number == cue["cue"]]
        if not found:
            continue
        spoken = sum(found) * 2 >= len(found)
        tally.spoken_cues += spoken
        tally.unspoken_cues += not spoken
        tally.spoken_lost += spoken and cue["cue"] not in kept
        tally.unspoken_kept += not spoken and cue["cue"] in kept
    place_of = {(cue, place): i for i, (cue, place, _) in enumerate(written)}
    pairs = [(word, partner[place_of[word["cue"], word["word"]]]) for word in words]
    true = [(word, truth[at]) for word, at in pairs if at >= 0]
    for edge, errors in (("start_samples", tally.start_ms), ("end_samples", tally.end_ms)):
        offsets = [word[edge] - spoken[edge] * ratio for word, spoken in true if spoken[edge] >= 0]
        errors.append(np.array(offsets, np.float64) * (1000 / rate_hz))


def match(written: Sequence[str], spoken: Sequence[str]) -> NDArray[np.int64]:
    """For each written word the position of its equal spoken partner, or -1, by least edit distance in order."""
    symbols = {word: i for i, word in enumerate(dict.fromkeys([*written, *spoken]))}
    a, b = (np.array([symbols[word] for word in words], np.int64) for words in (written, spoken))
    partner: NDArray[np.int64] = _match(a, b)
    return partner


@njit(cache=True)
def _match(a, b):  # type: ignore[no-untyped-def]
    rows, columns = a.shape[0], b.shape[0]
    came = np.zeros((rows + 1, columns + 1), np.uint8)  # 0 diagonal, 1 from above (deletion), 2 from the left
    cost = np.arange(columns + 1)
    came[0, 1:] = 2
    for i in range(1, rows + 1):
        diagonal = cost[0]
        cost[0] = i
        came[i, 0] = 1
        for j in range(1, columns + 1):
            best, move = diagonal + (0 if a[i - 1] == b[j - 1] else 2), 0
            if cost[j] + 1 < best:
                best, move = cost[j] + 1, 1
            if cost[j - 1] + 1 < best:
                best, move = cost[j - 1] + 1, 2
            diagonal = cost[j]
            cost[j] = best
            came[i, j] = move
    partner = np.full(rows, -1, np.int64)
    i, j = rows, columns
    while i > 0 or j > 0:
        if came[i, j] == 0:
            i, j = i - 1, j - 1
            if a[i] == b[j]:
                partner[i] = j
        elif came[i, j] == 1:
            i -= 1
        else:
            j -= 1
    return partner


def to_markdown(rows: Sequence[Row]) -> str:
    """The table of `score_alignment`."""
    head = (
        "| condition | words | start median / mean / p95 ms | end median / mean / p95 ms | start ≤ 50 / 100 / 200 ms "
        "| > 1 s | unspoken cues kept | spoken cues lost | refused |\n|" + "---|" * 9
    )
    return "\n".join([head, *(_line(row) for row in rows)]) + "\n"


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


def _truth(raw: Artifact, names: set[str], likely: int) -> dict[str, list[Row]]:
    """True words of the recordings `names`, in order. Shard `likely` of `raw` is read first: ingest keeps shards."""
    found: dict[str, list[Row]] = {}
    shards = [receipt.shard for receipt in raw.receipts() if ".truth.parquet" in receipt.files]
    for shard in sorted(shards, key=lambda shard: (shard != likely, shard)):
        table = raw.read_table(shard, ".truth.parquet")
        for row in table.filter(pc.is_in(table["name"], pa.array(sorted(names), pa.string()))).to_pylist():
            found.setdefault(row["name"], []).append(row)
        if len(found) == len(names):  # a recording's truth is in one shard
            break
    for rows in found.values():
        rows.sort(key=lambda row: int(row["word"]))
    return found


def _grouped(rows: list[Row], column: str) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups
