"""The data that the first sweep of a partition keeps for the second pass: the kept n-grams, by context.

Dropped n-grams of a context are merged into one wildcard entry, the sum of their counts: "how to *" becomes a single
number. The second pass computes the other sums of a context from its n-grams, and takes words from the windows, because
that costs less than touching more memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.lm.estimate.sweep import SweepStore, Words
from megahour.lm.text.arrays import Int32, Int64

GRAM_BYTES, NODE_BYTES = 8, 12
CHUNK = 1 << 22  # rows of an array of an arena, at least


class Kept(NamedTuple):
    """grams: (G, 2) int32, one row per n-gram: index i of the position that ends its first occurrence, ~i if it occurs
    more than once; adjusted count. nodes: (N, 3) int32, one row per context: length; end of its n-grams, which begin
    where those of the previous context end; wildcard entry."""

    grams: Int32
    nodes: Int32

    @staticmethod
    def room(grams: int, nodes: int) -> Kept:
        """Arrays for this many n-grams and contexts."""
        return Kept(np.empty((grams, 2), np.int32), np.empty((nodes, 3), np.int32))

    @staticmethod
    def shelves() -> tuple[Arena, Arena]:
        """Arenas for the n-grams and contexts of successive partitions."""
        return Arena(np.int32, 2), Arena(np.int32, 3)

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


def keep(store: SweepStore, nodes: int, grams: int, windows: Int32, cutoffs: Int64, allowed: Words, room: Kept) -> Kept:
    """Copy the n-grams of a sweep that are not dropped, and their contexts, to `room`. cutoffs, allowed: of `sweep`."""
    held = int(_pack(store.grams, store.nodes, store.sums, nodes, windows, cutoffs, allowed, *room))
    return Kept(room.grams[:held], room.nodes[:nodes])


@compiled
def _pack(grams, nodes, sums, n, windows, cutoffs, allowed, grams_out, nodes_out):  # type: ignore[no-untyped-def]
    held = 0
    for node in range(n):
        length, begin, end = nodes[node, 0], nodes[node, 1], nodes[node, 2]
        whole, most = True, cutoffs[length + 1]
        if allowed is not None:
            for j in range(1, length + 1):
                whole = whole and allowed[windows[nodes[node, 3], j]] != 0
        for g in range(begin, end):
            raw = grams[g, 3]
            kept = whole and raw > most
            if allowed is not None:
                kept = kept and allowed[grams[g, 0]] != 0
            grams_out[held, 0] = ~grams[g, 1] if raw > 1 else grams[g, 1]  # overwritten by the next if it is dropped
            grams_out[held, 1] = grams[g, 2]
            held += kept
        nodes_out[node, 0], nodes_out[node, 1], nodes_out[node, 2] = length, held, sums[node, 4]
    return held
