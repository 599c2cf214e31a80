"""Arrow batches on their way through an exchange: bounded blocks, and the spill files of the local engine.

A spill file holds everything that one split task yielded, indexed by partition:

    blocks …                      Arrow IPC streams of one batch each, in the order they were yielded
    starts   int64[P + 1]         entries of partition p are starts[p] .. starts[p + 1]
    entries  int64[n, 2]          (offset, size) in bytes, by partition, then in the order they were yielded
    n, P     int64[2]

so a merge task reads two small pieces of the index and then its own blocks, one at a time.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from megahour.core.surroundings import explaining
from megahour.engine.base import Call, EngineError

if TYPE_CHECKING:
    from numpy.typing import NDArray

BLOCK_BYTES = 8 << 20
ROW_BYTES = 512 << 20  # Spark and Arrow's 32-bit offsets end at 2 GB; one row must stay far below
WORD = 8  # bytes of an int64


def sliced(batch: pa.RecordBatch, limit: int = BLOCK_BYTES) -> Iterator[pa.RecordBatch]:
    """Pieces of at most `limit` bytes, by halving, or of one row. Raises EngineError for a row above `ROW_BYTES`."""
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
    """One batch as an Arrow IPC stream, lz4 within."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
    return cast(bytes, sink.getvalue().to_pybytes())


def decode(block: bytes) -> pa.RecordBatch:
    """The batch of `encode`."""
    with pa.ipc.open_stream(block) as reader:
        return reader.read_next_batch()


def blocks_of(split: Call, item: Any, partitions: int) -> Iterator[tuple[int, bytes]]:
    """(partition, block) pairs of one split task, in order. Raises EngineError for a partition out of range."""
    for partition, batch in split(item):
        if not 0 <= partition < partitions:
            raise EngineError(f"split yielded partition {partition}, there are {partitions}")
        for piece in sliced(batch):
            yield int(partition), encode(piece)


def spill_path(folder: Path, task: int) -> Path:
    return folder / f"{task:06d}.spill"


def spill(split: Call, folder: str, partitions: int, task: int, item: Any) -> None:
    """Worker side of a local exchange, map half: one split task into its spill file.

    Committed by rename from a name of its own, so that a killed attempt leaves nothing that a merge would read and a
    second attempt writes the same file again.
    """
    target = spill_path(Path(folder), task)
    scratch = target.with_suffix(f".{uuid.uuid4().hex}.tmp")
    with explaining(folder, folder), scratch.open("wb") as file:
        owners, sizes = [], []
        for partition, block in blocks_of(split, item, partitions):
            file.write(block)
            owners.append(partition)
            sizes.append(len(block))
        _write_index(file, np.array(owners, np.int64), np.array(sizes, np.int64), partitions)
    scratch.replace(target)


def _write_index(file: BinaryIO, owners: NDArray[np.int64], sizes: NDArray[np.int64], partitions: int) -> None:
    order = np.argsort(owners, kind="stable")
    offsets = np.cumsum(sizes) - sizes
    starts = np.zeros(partitions + 1, np.int64)
    np.cumsum(np.bincount(owners, minlength=partitions), out=starts[1:])
    entries = np.stack([offsets[order], sizes[order]], axis=1)
    for part in (starts, entries, np.array([len(owners), partitions], np.int64)):
        file.write(part.astype("<i8").tobytes())


def spilled(path: Path, partition: int) -> Iterator[pa.RecordBatch]:
    """Batches of one partition in a spill file, read one at a time."""
    with path.open("rb") as file:
        end = file.seek(-2 * WORD, 2)
        count, partitions = _words(file, end, 2)
        entries = end - 2 * WORD * count
        starts = entries - WORD * (partitions + 1)
        first, last = _words(file, starts + WORD * partition, 2)
        index = _words(file, entries + 2 * WORD * first, 2 * (last - first))
        for offset, size in zip(index[::2], index[1::2], strict=True):
            file.seek(offset)
            yield decode(file.read(size))


def _words(file: BinaryIO, offset: int, count: int) -> list[int]:
    file.seek(offset)
    return cast("list[int]", np.frombuffer(file.read(WORD * count), "<i8").tolist())


def merge_spilled(merge: Call, folder: str, tasks: int, partition: int) -> Any:
    """Worker side of a local exchange, reduce half: one partition out of all spill files."""
    batches = (batch for task in range(tasks) for batch in spilled(spill_path(Path(folder), task), partition))
    return merge(partition, batches)
