"""A list column of an Arrow table as rows of NumPy views: nothing is copied, so memory-mapped files stay on disk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


class Ragged:
    """Row i of the column is a flat array of n_i × `width` values, seen as (n_i, width)."""

    def __init__(self, column: pa.ChunkedArray, width: int = 1) -> None:
        self.width = width
        chunks = [chunk for chunk in column.chunks if len(chunk)]
        self._first = np.cumsum([0, *(len(chunk) for chunk in chunks)])
        self._ends = [chunk.offsets.to_numpy() for chunk in chunks]
        self._values = [chunk.values.to_numpy() for chunk in chunks]

    def __len__(self) -> int:
        return int(self._first[-1])

    def row(self, i: int) -> NDArray[Any]:
        """View (n_i, width) of row i; (n_i,) when the width is 1."""
        chunk = int(np.searchsorted(self._first, i, side="right")) - 1
        ends = self._ends[chunk]
        at = i - int(self._first[chunk])
        flat: NDArray[Any] = self._values[chunk][int(ends[at]) : int(ends[at + 1])]
        return flat if self.width == 1 else flat.reshape(-1, self.width)
