"""The exchange between partitions: log γ of contexts of two words or more that occur more than once.

γ(h) is computed in the partition of h's last word, and printed with the n-gram h in the partition of the word before.
In both, h is identified by its *name*: its length, and the position of its last word in its first occurrence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.lm.estimate.kept_ngrams import Arena
from megahour.lm.estimate.smooth import log_probability
from megahour.lm.estimate.sweep import SUMS
from megahour.lm.text.arrays import Float32, Int32, Int64
from megahour.lm.text.machine import prefetch

MOST = 255
AHEAD = 8  # contexts between the prefetch of a word's partition and its use


class Names(NamedTuple):
    """The names (first, length) of one partition's contexts, the partitions that print them, and their sums.

    small: (N, SUMS) uint8. Where the first sum is above MOST, the row is zero and the sums are the next row of large,
    (L, SUMS) int32. Few contexts need this, and less memory is faster: touching new pages costs more than the sums.
    """

    first: Int32
    length: npt.NDArray[np.int8]
    target: npt.NDArray[np.uint16]
    small: npt.NDArray[np.uint8]
    large: Int32

    @staticmethod
    def shelves() -> tuple[Arena, ...]:
        """Arenas for the names of successive partitions."""
        return Arena(np.int32), Arena(np.int8), Arena(np.uint16), Arena(np.uint8, SUMS), Arena(np.int32, SUMS)

    @staticmethod
    def room(shelves: tuple[Arena, ...], size: int, positions: int, order: int) -> Names:
        """Arrays for at most `size` contexts of `positions` positions."""
        most = min(size, positions // MOST * order)  # contexts of equal length share no position
        return Names(*(shelf.room(most if shelf is shelves[-1] else size) for shelf in shelves))

    def taken(self, shelves: tuple[Arena, ...], size: int, large: int) -> Names:
        """Keep the first `size` rows, and `large` rows of large sums; the arenas reuse the rest."""
        *each, last = shelves
        for shelf in each:
            shelf.take(size)
        last.take(large)
        return Names(self.first[:size], self.length[:size], self.target[:size], self.small[:size], self.large[:large])


def exchange(
    names: Sequence[Names], discounts: npt.NDArray[np.float64], partitions: int
) -> tuple[Int32, npt.NDArray[np.int8], Float32, Int64]:
    """first, length and log10 γ of all names, sorted by target, and edges: those of partition i begin at edges[i].

    discounts (order + 2, 4): by order.
    """
    edges = np.zeros(partitions + 1, np.int64)
    for own in names:
        edges[1:] += np.bincount(own.target, minlength=partitions)
    np.cumsum(edges, out=edges)
    total, cursors = int(edges[-1]), edges[:-1].copy()
    first, length, gamma = np.empty(total, np.int32), np.empty(total, np.int8), np.empty(total, np.float32)
    for own in names:
        _scatter(*own, discounts, cursors, first, length, gamma)
    return first, length, gamma, edges


@compiled
def take_names(  # type: ignore[no-untyped-def]
    nodes, n, sums, first, windows, owner, contexts, wildcards, first_out, length_out, target_out, small, large
):
    """Sort the n nodes of a sweep by length: sums of one-word contexts go to contexts (V, SUMS), longer contexts to the
    arrays of `Names`. Returns (names, large names). Contexts whose n-grams are all dropped are left out: their γ is 1.

    windows (m, order): of the partition. owner (V,): partition of each word. Adds to wildcards (order + 1, 2), by the
    order of the dropped n-grams: contexts with a wildcard entry, and the sum of the entries.
    """
    held = most = 0
    for node in range(n):
        ahead = nodes[min(node + AHEAD, n - 1), 3]
        prefetch(owner, np.int64(windows[ahead, 2]))
        length, row = nodes[node, 0], nodes[node, 3]
        wildcards[length + 1, 0] += sums[node, 4] > 0
        wildcards[length + 1, 1] += sums[node, 4]
        if length == 1:
            word = windows[row, 1]
            for column in range(SUMS):
                contexts[word, column] = sums[node, column]
        elif sums[node, 0] != sums[node, 4]:
            first_out[held], length_out[held], target_out[held] = first[node], length, owner[windows[row, 2]]
            if sums[node, 0] > MOST:
                for column in range(SUMS):
                    small[held, column], large[most, column] = 0, sums[node, column]
                most += 1
            else:
                for column in range(SUMS):
                    small[held, column] = sums[node, column]
            held += 1
    return held, most


@compiled
def _scatter(  # type: ignore[no-untyped-def]
    first, length, target, small, large, discounts, cursors, first_out, length_out, gamma_out
):
    most = 0
    for i in range(len(first)):
        k, at = length[i] + 1, cursors[target[i]]
        total, ones, twos = np.int64(small[i, 0]), np.int64(small[i, 1]), np.int64(small[i, 2])
        more, dropped = np.int64(small[i, 3]), np.int64(small[i, 4])
        if total == 0:
            total, ones, twos = np.int64(large[most, 0]), np.int64(large[most, 1]), np.int64(large[most, 2])
            more, dropped = np.int64(large[most, 3]), np.int64(large[most, 4])
            most += 1
        freed = discounts[k, 1] * ones + discounts[k, 2] * twos + discounts[k, 3] * more + dropped
        first_out[at], length_out[at], gamma_out[at] = first[i], length[i], log_probability(freed / total)
        cursors[target[i]] = at + 1
