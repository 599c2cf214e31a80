"""Names of array types, and arrays as files of an artifact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
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


def save_array(out: ShardWriter, suffix: str, array: npt.NDArray[Any]) -> None:
    """Write an array to the shard as a `.npy` file."""
    with out.open(suffix) as file:
        np.save(file, array)


def load_array(artifact: Artifact, shard: int, suffix: str = ".npy") -> npt.NDArray[Any]:
    """Read an array that `save_array` wrote."""
    with artifact.open(shard, suffix) as file:
        array: npt.NDArray[Any] = np.load(file)
        return array
