"""Views rows of an Arrow list column as NumPy arrays without copying, so that memory-mapped data stays on disk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megahour.core.errors import StoreError


class Ragged:
    """Row i of the column holds n_i × `width` values, and is viewed as (n_i, width)."""

    def __init__(self, column: pa.ChunkedArray, width: int = 1) -> None:
        self.width = width
        chunks = [chunk for chunk in column.chunks if len(chunk)]
        self._first = np.cumsum([0, *(len(chunk) for chunk in chunks)])
        self._ends = [chunk.offsets.to_numpy() for chunk in chunks]
        self._values = [chunk.values.to_numpy() for chunk in chunks]

    def __len__(self) -> int:
        return int(self._first[-1])

    def row(self, i: int) -> NDArray[Any]:
        """A view (n_i, width) of row i; (n_i,) if the width is 1."""
        chunk = int(np.searchsorted(self._first, i, side="right")) - 1
        ends = self._ends[chunk]
        at = i - int(self._first[chunk])
        flat: NDArray[Any] = self._values[chunk][int(ends[at]) : int(ends[at + 1])]
        return flat if self.width == 1 else flat.reshape(-1, self.width)


def frames_of(table: pa.Table, mels: int, *, where: str) -> Ragged:
    """The column `features` of a *features* table, with one row (frames, mels) per utterance.

    Raises StoreError: the column has another type, or an utterance (it is named) has not frames × mels values.
    """
    key, frames, features = (table.column(name) for name in ("key", "frames", "features"))
    if not pa.types.is_large_list(features.type) or key.null_count or frames.null_count:
        raise StoreError("no features as stage `features` writes them", where=where, remedy=f"megahour verify {where}")
    values = pc.list_value_length(features)
    right = pc.fill_null(pc.equal(values, pc.multiply(frames.cast(pa.int64()), mels)), False).to_numpy()
    if not right.all():
        row = int(np.argmin(right))
        what = f"utterance {key[row]}: {values[row]} values, which are not {frames[row]} frames of {mels} mels"
        raise StoreError(what, where=where, remedy=f"megahour verify {where}, or use features of {mels} mels")
    return Ragged(features, mels)
