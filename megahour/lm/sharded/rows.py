"""n-grams as records of fixed size, which stages on an engine exchange and keep in files.

Each n-gram goes to two partitions: that of its history, which needs its probability (role NGRAM), and that of the
n-grams with it as history, which needs its back-off weight (role CONTEXT).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from megahour.core.stage import Artifact, Batches, ShardWriter
from megahour.lm.text.arrays import Float64, Int32, Int64, Records

NGRAM, CONTEXT = 1, 2
NO_WORD = -1  # follows the last word of an n-gram; sorts before all words


def row_type(order: int) -> np.dtype[np.void]:
    """The type of a record. words (order,): NO_WORD after the last; length; model: number; role: NGRAM, CONTEXT or
    both; logp, weight: log10 p and log10 α; context: log10 p(h) of the n-gram as a history (for pruning)."""
    numbers = [(name, "u1") for name in ("length", "model", "role", "spare")]
    values = [(name, "<f8") for name in ("logp", "weight", "context")]
    return np.dtype([("words", "<i4", (order,)), *numbers, *values])


def make_rows(order: int, grams: Int32, role: int, logp: Float64 | float, weight: Float64 | float = 0.0) -> Records:
    """Records of n-grams (n, k) of one length."""
    rows = np.zeros(len(grams), row_type(order))
    rows["words"] = NO_WORD
    rows["words"][:, : grams.shape[1]] = grams
    rows["length"], rows["role"], rows["logp"], rows["weight"] = grams.shape[1], role, logp, weight
    return rows


def to_batch(rows: Records) -> pa.RecordBatch:
    """Records as a column of bytes, one value per record."""
    kind = pa.binary(rows.dtype.itemsize)
    values = pa.FixedSizeBinaryArray.from_buffers(kind, len(rows), [None, pa.py_buffer(rows.tobytes())])
    return pa.record_batch([values], names=["row"])


def from_batch(batch: pa.RecordBatch, order: int) -> Records:
    """The records of `to_batch`."""
    column, kind = batch.column(0), row_type(order)
    data = np.frombuffer(column.buffers()[1], kind)
    return data[column.offset : column.offset + len(column)]


def batches_by_place(rows: Records, places: Int64) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(partition, batch) of rows (n,) by their partitions (n,), each in the order of the rows."""
    if len(rows) == 0:
        return
    order = np.argsort(places, kind="stable")
    found, starts = np.unique(places[order], return_index=True)
    for place, begin, end in zip(found.tolist(), starts, [*starts[1:], len(order)], strict=True):
        yield int(place), to_batch(rows[order[begin:end]])


def write_rows(batches: Batches, out: ShardWriter) -> int:
    """Write records to `.rows` as they arrive; return their number."""
    count = 0
    with out.open(".rows") as file:
        for batch in batches:
            column = batch.column(0)
            size = column.type.byte_width
            begin = column.offset * size
            file.write(memoryview(column.buffers()[1])[begin : begin + size * len(column)])
            count += len(column)
    out.kept_all(count)
    return count


def read_rows(artifact: Artifact, shard: int, order: int) -> Records:
    """The records of a shard's `.rows`."""
    return np.frombuffer(artifact.read_bytes(shard, ".rows"), row_type(order))


def all_rows(batches: Batches, order: int) -> Records:
    """All records of a partition."""
    held: list[Any] = [from_batch(batch, order) for batch in batches]
    return np.concatenate(held) if held else np.zeros(0, row_type(order))
