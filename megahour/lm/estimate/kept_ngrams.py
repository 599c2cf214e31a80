"""What the first sweep of a partition leaves for the second pass: n-grams that are kept, by context.

n-grams that pruning drops are collapsed into one wildcard entry a context, the sum of their counts: of "how to *"
remains a single number. The other sums over a context are made again from its n-grams, which the second pass reads
anyway, and words from the windows: memory that is touched for the first time costs more than that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.lm.estimate.sweep import SweepStore, Words
from megahour.lm.text.arrays import Int32, Int64

GRAM_BYTES, NODE_BYTES = 8, 12
CHUNK = 1 << 22  # rows of an array that rows are kept in, or more


class Kept(NamedTuple):
    """grams: (G, 2) int32, an n-gram in a row: index i of a position that ends its first occurrence, ~i where it occurs
    more than once; adjusted count. nodes: (N, 3) int32, a context in a row: words; the n-gram after its last, its first
    being the one after the last of the context before; wildcard entry."""

    grams: Int32
    nodes: Int32

    @staticmethod
    def room(grams: int, nodes: int) -> Kept:
        """Room for this many n-grams and contexts."""
        return Kept(np.empty((grams, 2), np.int32), np.empty((nodes, 3), np.int32))

    @staticmethod
    def shelves() -> tuple[Arena, Arena]:
        """For the kept of one partition after the other."""
        return Arena(np.int32, 2), Arena(np.int32, 3)

    @property
    def nbytes(self) -> int:
        return GRAM_BYTES * len(self.grams) + NODE_BYTES * len(self.nodes)


class Arena:
    """Rows of a kind one after the other, in large arrays: what is taken stays where it is, and the next go behind it.

    Large arrays have huge pages, and pages that are never written take nothing; an array goes with its last view.
    """

    def __init__(self, kind: npt.DTypeLike, *columns: int) -> None:
        self._free: npt.NDArray[Any] = np.empty((0, *columns), kind)

    def room(self, rows: int) -> npt.NDArray[Any]:
        """(rows, columns) to be written, the same ones until some are taken."""
        if len(self._free) < rows:
            self._free = np.empty((max(rows, CHUNK), *self._free.shape[1:]), self._free.dtype)
        return self._free[:rows]

    def take(self, rows: int) -> None:
        """Leave the first rows of the room alone."""
        self._free = self._free[rows:]


def keep(store: SweepStore, nodes: int, grams: int, windows: Int32, cutoffs: Int64, allowed: Words, room: Kept) -> Kept:
    """What a sweep stored, without dropped n-grams, in `room` for all of it. cutoffs, allowed: as in `sweep`."""
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
            grams_out[held, 0] = ~grams[g, 1] if raw > 1 else grams[g, 1]  # written over where it is dropped
            grams_out[held, 1] = grams[g, 2]
            held += kept
        nodes_out[node, 0], nodes_out[node, 1], nodes_out[node, 2] = length, held, sums[node, 4]
    return held
