"""Encodes the Arrow batches of an exchange as bounded blocks of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pyarrow.ipc

from megahour.engine.base import Call, EngineError

BLOCK_BYTES = 8 << 20
ROW_BYTES = 512 << 20  # far below the 2 GB limit of Spark and of Arrow's 32-bit offsets


def sliced(batch: pa.RecordBatch, limit: int = BLOCK_BYTES) -> Iterator[pa.RecordBatch]:
    """Halve a batch into pieces of at most `limit` bytes or one row. Raises EngineError for a row above `ROW_BYTES`."""
    if batch.nbytes <= limit:
        yield batch
    elif batch.num_rows <= 1:
        if batch.nbytes > ROW_BYTES:
            raise EngineError(
                f"one row of an exchange has {batch.nbytes} bytes, the limit is {ROW_BYTES}",
                remedy="exchange an address of the data instead of the data",
            )
        yield batch
    else:
        half = batch.num_rows // 2
        yield from sliced(batch.slice(0, half), limit)
        yield from sliced(batch.slice(half), limit)


def encode(batch: pa.RecordBatch) -> bytes:
    """One batch as an Arrow IPC stream, lz4 within unless all columns are numbers.

    Numbers shrink by a third, texts by more, and lz4 takes ten times as long as the copy. In this thread: handing each
    small buffer to a pool costs four times what compressing it does.
    """
    sink = pa.BufferOutputStream()
    compression = None if all(_is_numbers(field.type) for field in batch.schema) else "lz4"
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return cast(bytes, sink.getvalue().to_pybytes())


def _is_numbers(kind: pa.DataType) -> bool:
    """Whether a column has numbers, or lists of numbers of one size."""
    return pa.types.is_primitive(kind) or (pa.types.is_fixed_size_list(kind) and _is_numbers(kind.value_type))


def decode(block: bytes) -> pa.RecordBatch:
    """The batch of `encode`."""
    with pa.ipc.open_stream(block, options=pa.ipc.IpcReadOptions(use_threads=False)) as reader:
        return reader.read_next_batch()


def blocks_of(split: Call, item: Any, partitions: int) -> Iterator[tuple[int, bytes]]:
    """(partition, block) pairs of one split task, in order. Raises EngineError for a partition out of range."""
    for partition, batch in split(item):
        if not 0 <= partition < partitions:
            raise EngineError(f"split yielded partition {partition}, there are {partitions}")
        for piece in sliced(batch):
            yield int(partition), encode(piece)
