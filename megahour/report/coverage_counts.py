"""Worker side of `coverage`: records and seconds of one shard by name, kept or left out."""

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

ALL = "all"  # the dimension of totals; its only name is ""
REASON = "reason"
SMALL = ["key", "speaker", "text", "set", "condition", "frames"]  # of features
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ShardCount:
    """What to count: a shard, and the shards of another artifact in which to look up its rows.

    count: table (of recordings, utterances or a selection), features, targets, dropped (of `cut`), left-out (of
    `ingest`) or duplicates. taught: sets labelled by a teacher. column: number of the column to add the sums to.
    part: (i, n) selects the duplicates whose key modulo n is i. frame_s: of features.
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
    frame_s: float = 0.01


def count_shard(task: ShardCount) -> tuple[int, Sums]:
    """The number of the column, and the shard's sums. Raises StoreError: a table is missing or damaged."""
    names, seconds = _COUNTED[task.count](task)
    return task.column, {ALL: [("", len(seconds), float(seconds.sum()))]} | sums(names, seconds)


def _table(task: ShardCount) -> tuple[dict[str, Names], Floats]:
    table = Artifact(task.url).read_table(task.shard, columns=list(task.columns))
    return named(table, task.taught), _seconds(table)


def _features(task: ShardCount) -> tuple[dict[str, Names], Floats]:
    """Count features or partitions; missing columns come from the shard of the selection that they were made of."""
    table = Artifact(task.url).read_table(task.shard, ".arrow", columns=SMALL)
    seconds = task.frame_s * table["frames"].to_numpy()
    if task.beside_shards:
        table = _looked_up(task, table["key"])
    return named(table, task.taught), seconds


def _targets(task: ShardCount) -> tuple[dict[str, Names], Floats]:
    """Count targets, where each utterance has one row per offset; `unique` keeps one of them."""
    keys = Artifact(task.url).read_table(task.shard, ".arrow", columns=["key"])["key"]
    table = _looked_up(task, pa.chunked_array([pc.unique(keys)]))
    names = named(table)
    return names | {"label": [TEACHER] * len(table)}, _seconds(table)


def _dropped(task: ShardCount) -> tuple[dict[str, Names], Floats]:
    """Count spans that `cut` left out; names come from the shard of recordings. Spans without times count as 0 s."""
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
    """Count the utterances of a shard that are in one part of the list of duplicates."""
    table = Artifact(task.url).read_table(task.shard, columns=list(task.columns))
    listed = _listed(task.beside, task.part)
    keys = table["key"].to_numpy()
    at = np.minimum(np.searchsorted(listed, keys), max(len(listed) - 1, 0))
    table = table.filter(pa.array(listed[at] == keys if len(listed) else np.zeros(len(keys), bool)))
    return named(table), _seconds(table)


@lru_cache(maxsize=1)
def _listed(url: str, part: tuple[int, int]) -> NDArray[np.int64]:
    """Sorted unique keys of a part of the list; cached, since the tasks of a part are consecutive."""
    artifact, keys = Artifact(url), np.zeros(0, np.int64)
    for receipt in artifact.each_receipt():
        more = artifact.read_table(receipt.shard, columns=["key"])["key"].to_numpy()
        keys = np.concatenate([keys, more[more % part[1] == part[0]]])
    return np.unique(keys)


def _looked_up(task: ShardCount, keys: pa.ChunkedArray) -> pa.Table:
    """Rows of the other artifact for these keys, in their order; nulls for missing keys."""
    other = Artifact(task.beside)
    parts = [other.read_table(shard, columns=list(task.columns)) for shard in task.beside_shards]
    table = pa.concat_tables(parts).combine_chunks()
    return table.take(pc.index_in(keys, value_set=table["key"].combine_chunks()))


def _seconds(table: pa.Table) -> Floats:
    return _numbers(table["samples"]) / np.maximum(_numbers(table["rate_hz"]), 1)


def _numbers(column: Any) -> Floats:
    """A column as float64 (rows,), with 0 for nulls."""
    numbers: Floats = pc.fill_null(column, 0).to_numpy().astype(np.float64)
    return numbers


def wanted_columns(has: list[str]) -> tuple[str, ...]:
    """The columns to read, of those that a table has."""
    return tuple(name for name in COLUMNS if name in has)


_COUNTED = {
    "table": _table,
    "features": _features,
    "targets": _targets,
    "dropped": _dropped,
    "left-out": _left_out,
    "duplicates": _duplicates,
}
