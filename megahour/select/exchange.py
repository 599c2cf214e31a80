"""Worker side of `select`: metadata rows to their partitions, and a partition sorted by speaker and time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from megahour.core.schemas import SELECTION
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.select.sample import Layout

if TYPE_CHECKING:
    from megahour.select.stage import SelectParams

BATCH_ROWS = 4096


def speaker_hours(p: SelectParams, utterances: Artifact) -> dict[str, float]:
    """Hours of each speaker among the usable utterances, read shard by shard."""
    hours: dict[str, float] = defaultdict(float)
    for receipt in utterances.receipts():
        columns = ["speaker", "samples", "rate_hz", "confidence", "created_s"]
        table = _usable(p, utterances.read_table(receipt.shard, columns=columns))
        seconds = pc.divide(pc.cast(table["samples"], pa.float64()), pc.cast(table["rate_hz"], pa.float64()))
        for speaker, value in zip(table["speaker"].to_pylist(), seconds.to_pylist(), strict=True):
            hours[speaker] += value / 3600
    return dict(hours)


def _usable(p: SelectParams, table: pa.Table) -> pa.Table:
    keep = pc.greater_equal(table["confidence"], p.min_confidence)
    keep = pc.and_(keep, pc.greater_equal(table["created_s"], p.from_s))
    if p.until_s:
        keep = pc.and_(keep, pc.less_equal(table["created_s"], p.until_s))
    return table.filter(keep)


def split_shard(
    p: SelectParams, layout: Layout, utterances: Artifact, shard: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(partition, rows) of one utterances shard."""
    table = _usable(p, utterances.read_table(shard))
    places = [layout.shard_of(speaker) for speaker in table["speaker"].to_pylist()]
    numbers = np.array([-1 if place is None else place for place in places], np.int64)
    for partition in np.unique(numbers[numbers >= 0]).tolist():
        rows = table.take(np.flatnonzero(numbers == partition))
        name = layout.shards[partition].set
        rows = rows.append_column("set", pa.array([name] * rows.num_rows, pa.string()))
        rows = rows.append_column("shard", pa.array([shard] * rows.num_rows, pa.int32())).cast(SELECTION)
        for batch in rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
            yield partition, batch


def merge_shard(p: SelectParams, name: str, batches: Iterator[pa.RecordBatch], out: ShardWriter) -> None:
    """Write one partition, sorted by (speaker, time, key)."""
    table = pa.Table.from_batches(list(batches), SELECTION)
    table = table.sort_by([("speaker", "ascending"), ("created_s", "ascending"), ("start_samples", "ascending")])
    out.came_in(table.num_rows)
    if p.speaker_hours and table.num_rows:
        within = _within_cap(table, p.speaker_hours * 3600)
        out.drop("over-speaker-hours", table.num_rows - int(within.sum()))
        table = table.filter(pa.array(within))
    seconds = table["samples"].to_numpy() / np.maximum(table["rate_hz"].to_numpy(), 1)
    out.kept(table.num_rows)
    out.stat("audio_s", round(float(seconds.sum()), 4))
    out.stat("speakers", len(pc.unique(table["speaker"])))
    out.tags["set"] = name
    out.table(table)


def _within_cap(table: pa.Table, limit_s: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    used: dict[str, float] = defaultdict(float)
    keep = np.zeros(table.num_rows, np.bool_)
    rows = zip(table["speaker"].to_pylist(), table["samples"].to_pylist(), table["rate_hz"].to_pylist(), strict=True)
    for at, (speaker, samples, rate_hz) in enumerate(rows):
        used[speaker] += samples / rate_hz
        keep[at] = used[speaker] <= limit_s
    return keep
