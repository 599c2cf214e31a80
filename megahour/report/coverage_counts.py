"""Worker side of `coverage`: the records and seconds of one shard by name, kept ones or left out ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megahour.core.store import Artifact
from megahour.report.dimensions import COLUMNS, TEACHER, Names, Sums, named, sums

ALL = "all"  # the dimension with one name, "": everything
REASON = "reason"
FRAME_S = 0.01
SMALL = ["key", "speaker", "text", "set", "condition", "frames"]  # of features
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ShardCount:
    """What to count: a shard, and the shards of another artifact that its rows are looked up in.

    count: table (of recordings, utterances or a selection), features, targets, dropped (of `cut`), left-out (of
    `ingest`) or duplicates. taught: sets whose labels are a teacher's. column: whose sums these are. part: (i, n) takes
    those keys of duplicates that leave i when divided by n.
    """

    column: int
    count: str
    url: str
    shard: int
    columns: tuple[str, ...] = ()
    beside: str = ""
    beside_shards: tuple[int, ...] = ()
    taught: tuple[str, ...] = ()
    part: tuple[int, int] = (0, 1)


def count_shard(task: ShardCount) -> tuple[int, Sums]:
    """The column that the sums of this shard belong to, and they. Raises StoreError: a table is missing or damaged."""
    names, seconds = _COUNTED[task.count](task)
    return task.column, {ALL: [("", len(seconds), float(seconds.sum()))]} | sums(names, seconds)


def _table(task: ShardCount) -> tuple[dict[str, Names], Floats]:
    table = Artifact(task.url).read_table(task.shard, columns=list(task.columns))
    return named(table, task.taught), _seconds(table)


def _features(task: ShardCount) -> tuple[dict[str, Names], Floats]:
    """Features or partitions; what they lack is looked up in the shard of the selection that they were made of."""
    table = Artifact(task.url).read_table(task.shard, ".arrow", columns=SMALL)
    seconds = FRAME_S * table["frames"].to_numpy()
    if task.beside_shards:
        table = _looked_up(task, table["key"])
    return named(table, task.taught), seconds


def _targets(task: ShardCount) -> tuple[dict[str, Names], Floats]:
    """An utterance has a row for each offset, one after the other."""
    keys = Artifact(task.url).read_table(task.shard, ".arrow", columns=["key"])["key"]
    table = _looked_up(task, pa.chunked_array([pc.unique(keys)]))
    names = named(table)
    return names | {"label": [TEACHER] * len(table)}, _seconds(table)


def _dropped(task: ShardCount) -> tuple[dict[str, Names], Floats]:
    """Stretches that `cut` left out; whose they are tells the shard of recordings. Without a place they have 0 s."""
    wanted = ["recording", "start_samples", "end_samples", REASON]
    table = Artifact(task.url).read_table(task.shard, ".dropped.parquet", columns=wanted)
    recordings = _looked_up(task, table["recording"])
    start, end = (table[f"{name}_samples"].to_numpy() for name in ("start", "end"))
    rates_hz = _numbers(recordings["rate_hz"])
    known = (start >= 0) & (end > start) & (rates_hz > 0)
    seconds = np.where(known, (end - start) / np.maximum(rates_hz, 1), 0.0)
    return named(recordings) | {REASON: table[REASON].to_pylist()}, seconds


def _left_out(task: ShardCount) -> tuple[dict[str, Names], Floats]:
    table = Artifact(task.url).read_table(task.shard, ".left_out.parquet")
    names = named(table.select(["source", "licence"]))
    return names | {REASON: table[REASON].to_pylist()}, np.nan_to_num(table["seconds"].to_numpy())


def _duplicates(task: ShardCount) -> tuple[dict[str, Names], Floats]:
    """Those utterances of a shard that are listed as duplicates, of one part of the keys."""
    table = Artifact(task.url).read_table(task.shard, columns=list(task.columns))
    listed = _listed(task.beside, task.part)
    keys = table["key"].to_numpy()
    at = np.minimum(np.searchsorted(listed, keys), max(len(listed) - 1, 0))
    table = table.filter(pa.array(listed[at] == keys if len(listed) else np.zeros(len(keys), bool)))
    return named(table), _seconds(table)


@lru_cache(maxsize=1)
def _listed(url: str, part: tuple[int, int]) -> NDArray[np.int64]:
    """The keys of a part of the list, in order and once each: the tasks of a part come one after the other."""
    artifact, keys = Artifact(url), np.zeros(0, np.int64)
    for receipt in artifact.each_receipt():
        more = artifact.read_table(receipt.shard, columns=["key"])["key"].to_numpy()
        keys = np.concatenate([keys, more[more % part[1] == part[0]]])
    return np.unique(keys)


def _looked_up(task: ShardCount, keys: pa.ChunkedArray) -> pa.Table:
    """The rows of these keys in the other artifact, in their order; nulls where it has none."""
    other = Artifact(task.beside)
    parts = [other.read_table(shard, columns=list(task.columns)) for shard in task.beside_shards]
    table = pa.concat_tables(parts).combine_chunks()
    return table.take(pc.index_in(keys, value_set=table["key"].combine_chunks()))


def _seconds(table: pa.Table) -> Floats:
    return _numbers(table["samples"]) / np.maximum(_numbers(table["rate_hz"]), 1)


def _numbers(column: Any) -> Floats:
    """float64 (rows,), 0 of nulls."""
    numbers: Floats = pc.fill_null(column, 0).to_numpy().astype(np.float64)
    return numbers


def wanted_columns(has: list[str]) -> tuple[str, ...]:
    """Of a table's columns those that are read."""
    return tuple(name for name in COLUMNS if name in has)


_COUNTED = {
    "table": _table,
    "features": _features,
    "targets": _targets,
    "dropped": _dropped,
    "left-out": _left_out,
    "duplicates": _duplicates,
}
