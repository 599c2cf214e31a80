"""Names of array types, and arrays as files of an artifact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

    from megahour.core.store import Artifact
    from megahour.core.writer import ShardWriter

Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Records = npt.NDArray[np.void]
Tokens = Int32  # word numbers
PADDING = 16  # bytes after the end of text and arena that compiled code may read or write


def spellings(column: pa.ChunkedArray) -> tuple[Bytes, Int64]:
    """arena, starts (V + 1,) of a column of words, as in `tokenise.WordTable`."""
    import pyarrow as pa

    words = column.combine_chunks().cast(pa.large_binary())
    _, offsets, data = words.buffers()
    starts = np.frombuffer(offsets, np.int64)[: len(words) + 1]
    return np.concatenate([np.frombuffer(data, np.uint8)[: starts[-1]], np.zeros(PADDING, np.uint8)]), starts


def spelled(arena: Bytes, starts: Int64) -> pa.Array:
    """The column of binary words of an arena; starts (V + 1,). The inverse of `spellings`."""
    import pyarrow as pa

    buffers = [None, pa.py_buffer(starts - starts[0]), pa.py_buffer(arena[starts[0] : starts[-1]])]
    return pa.Array.from_buffers(pa.large_binary(), len(starts) - 1, buffers)


def row_list(rows: Int32) -> pa.Array:
    """Rows (m, W) as a column."""
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


def rows_of(column: pa.Array) -> Int32:
    """The rows (m, W) of a column of `row_list`."""
    rows: Int32 = column.flatten().to_numpy().reshape(len(column), column.type.list_size)
    return rows


def save_array(out: ShardWriter, suffix: str, array: npt.NDArray[Any]) -> None:
    """Write an array to the shard as a `.npy` file."""
    with out.open(suffix) as file:
        np.save(file, array)


def load_array(artifact: Artifact, shard: int, suffix: str = ".npy") -> npt.NDArray[Any]:
    """Read an array that `save_array` wrote."""
    with artifact.open(shard, suffix) as file:
        array: npt.NDArray[Any] = np.load(file)
        return array
