"""Worker side of `select`: metadata rows to their partitions, and a partition sorted by speaker and time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megahour.core.schemas import SELECTION
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.select.sample import Layout

if TYPE_CHECKING:
    from megahour.core.stage import Inputs
    from megahour.select.stage import SelectParams

BATCH_ROWS = 4096
REASONS = ("usable", "duplicate", "other-split", "other-tier", "low-confidence", "before-from", "after-until")
USABLE = 0
# Recordings of one speaker one after the other, each in order of time; the key completes the order, so that it does
# not depend on how the utterances are sharded.
ORDER = ("speaker", "created_s", "recording", "start_samples", "key")


def speaker_hours(p: SelectParams, inputs: Inputs) -> dict[str, float]:
    """Hours of each speaker among the usable utterances, read shard by shard.

    Counted in whole microseconds: sums of integers do not depend on how the utterances are sharded.
    """
    total: dict[str, int] = defaultdict(int)
    utterances = inputs["utterances"]
    for receipt in utterances.receipts():
        columns = ["key", "speaker", "samples", "rate_hz", "confidence", "created_s", "split", "tier"]
        table = utterances.read_table(receipt.shard, columns=columns)
        table = table.filter(pa.array(_reasons(p, table, inputs.get("duplicates")) == USABLE))
        time_us = pc.divide(pc.multiply(table["samples"], 1_000_000), pc.cast(table["rate_hz"], pa.int64()))
        sums = table.append_column("time_us", time_us).group_by("speaker").aggregate([("time_us", "sum")])
        for speaker, value in zip(sums["speaker"].to_pylist(), sums["time_us_sum"].to_pylist(), strict=True):
            total[speaker] += value
    return {speaker: value / 3.6e9 for speaker, value in total.items()}


def _reasons(p: SelectParams, table: pa.Table, duplicates: Artifact | None) -> NDArray[np.int8]:
    """(rows,) places in `REASONS`. The list of duplicates is read through, shard by shard."""
    twice = np.zeros(table.num_rows, np.bool_)
    if duplicates is not None:
        for receipt in duplicates.receipts():
            listed = duplicates.read_table(receipt.shard, columns=["key"])["key"]
            twice |= pc.is_in(table["key"], value_set=listed.combine_chunks()).to_numpy()
    split, tier = (_outside(table[name], wanted) for name, wanted in (("split", p.splits), ("tier", p.tiers)))
    confidence, created_s = table["confidence"].to_numpy(), table["created_s"].to_numpy()
    late = created_s > p.until_s if p.until_s else np.zeros(created_s.size, np.bool_)
    wrong = [twice, split, tier, confidence < p.min_confidence, created_s < p.from_s, late]
    return np.select(wrong, range(1, len(REASONS)), default=USABLE).astype(np.int8)


def _outside(column: pa.ChunkedArray, wanted: list[str]) -> NDArray[np.bool_]:
    """(rows,) which values are not among those `wanted`; none are if all are wanted."""
    if not wanted:
        return np.zeros(len(column), np.bool_)
    outside: NDArray[np.bool_] = ~pc.is_in(column, value_set=pa.array(wanted, pa.string())).to_numpy()
    return outside


def split_shard(p: SelectParams, layout: Layout, inputs: Inputs, shard: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(partition, rows) of one utterances shard. Unusable rows go along, so that they are counted where they end."""
    table = inputs["utterances"].read_table(shard)
    place = {speaker: layout.shard_of(speaker) for speaker in pc.unique(table["speaker"]).to_pylist()}
    places = [place[speaker] for speaker in table["speaker"].to_pylist()]
    numbers = np.array([-1 if number is None else number for number in places], np.int64)
    for partition in np.unique(numbers[numbers >= 0]).tolist():
        rows = table.take(np.flatnonzero(numbers == partition))
        name = layout.shards[partition].set
        rows = rows.append_column("set", pa.array([name] * rows.num_rows, pa.string()))
        rows = rows.append_column("shard", pa.array([shard] * rows.num_rows, pa.int32())).cast(SELECTION)
        for batch in rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
            yield partition, batch


def merge_shard(
    p: SelectParams, name: str, batches: Iterator[pa.RecordBatch], duplicates: Artifact | None, out: ShardWriter
) -> None:
    """Write one partition: the usable rows, sorted by `ORDER`."""
    table = pa.Table.from_batches(list(batches), SELECTION)
    out.came_in(table.num_rows)
    reasons = _reasons(p, table, duplicates)
    for number, reason in enumerate(REASONS):
        if number != USABLE:
            out.drop(reason, int((reasons == number).sum()))
    table = table.filter(pa.array(reasons == USABLE)).sort_by([(column, "ascending") for column in ORDER])
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


def _within_cap(table: pa.Table, limit_s: float) -> NDArray[np.bool_]:
    used: dict[str, float] = defaultdict(float)
    keep = np.zeros(table.num_rows, np.bool_)
    rows = zip(table["speaker"].to_pylist(), table["samples"].to_pylist(), table["rate_hz"].to_pylist(), strict=True)
    for at, (speaker, samples, rate_hz) in enumerate(rows):
        used[speaker] += samples / rate_hz
        keep[at] = used[speaker] <= limit_s
    return keep
