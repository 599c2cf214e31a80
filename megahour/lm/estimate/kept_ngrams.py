"""The data that a sweep of a partition keeps for the second pass: the n-grams that are not dropped, by context.

Dropped n-grams of a context are merged into one wildcard entry, the sum of their counts: "how to *" becomes a single
number. The second pass computes the other sums of a context from its n-grams, and takes words from the windows, because
that costs less than touching more memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.lm.text.arrays import Int32

GRAM_BYTES, NODE_BYTES = 8, 12
CHUNK = 1 << 22  # rows of an array of an arena, at least


def most(order: int, positions: int) -> tuple[int, int]:
    """The largest numbers of stored n-grams and of contexts, which have two positions or more."""
    return positions * (order - 1), positions * (order - 1) // 2 + 1


class Kept(NamedTuple):
    """grams: (G, 2) int32, one row per n-gram: index i of the position that ends its first occurrence, ~i if it occurs
    more than once; adjusted count. nodes: (N, 3) int32, one row per context: length; end of its n-grams, which begin
    where those of the previous context end; wildcard entry."""

    grams: Int32
    nodes: Int32

    @staticmethod
    def room(order: int, positions: int, shelves: tuple[Arena, Arena] | None = None) -> Kept:
        """Arrays for any n-grams and contexts of this many positions, of the arenas or new."""
        sizes = most(order, positions)
        return Kept(*(shelf.room(size) for shelf, size in zip(shelves or Kept.shelves(), sizes, strict=True)))

    @staticmethod
    def shelves() -> tuple[Arena, Arena]:
        """Arenas for the n-grams and contexts of successive partitions."""
        return Arena(np.int32, 2), Arena(np.int32, 3)

    def taken(self, grams: int, nodes: int) -> Kept:
        """The first n-grams and contexts."""
        return Kept(self.grams[:grams], self.nodes[:nodes])

    @property
    def nbytes(self) -> int:
        return GRAM_BYTES * len(self.grams) + NODE_BYTES * len(self.nodes)


class Arena:
    """Allocates rows of one type from large arrays. Rows that are taken stay in place, and the next ones follow them.

    Large arrays use huge pages, and untouched pages take no memory. An array is freed with its last view.
    """

    def __init__(self, kind: npt.DTypeLike, *columns: int) -> None:
        self._free: npt.NDArray[Any] = np.empty((0, *columns), kind)

    def room(self, rows: int) -> npt.NDArray[Any]:
        """(rows, columns) free rows; the same ones until some are taken."""
        if len(self._free) < rows:
            self._free = np.empty((max(rows, CHUNK), *self._free.shape[1:]), self._free.dtype)
        return self._free[:rows]

    def take(self, rows: int) -> None:
        """Reserve the first free rows."""
        self._free = self._free[rows:]
