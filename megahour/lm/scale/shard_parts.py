"""The positions of a shard, by partition, and their sort by history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from megahour.lm.estimate.history import SMALL, gather, permute, sort_histories
from megahour.lm.scale.shard_kernels import group_rows
from megahour.lm.scale.shards import HistoryShard, ShardTree
from megahour.lm.text.arrays import Int32, Int64


@dataclass(frozen=True)
class Part:
    """Positions (m,) of one partition or of one shared history, with windows (m, order) or the tokens (T,) for them.

    ordered: they are sorted by history.
    """

    positions: Int32 | Int64
    windows: Int32 | None = None
    tokens: Int32 | None = None
    ordered: bool = False


class Rows(Protocol):
    """The positions of shards: `row_files.RowFiles`, `memory_rows.MemoryRows` or `distributed.Cluster`."""

    def parts(self, shard: HistoryShard) -> Iterator[Part]:
        """The partitions of a shard in order. A part is valid until the next one is requested."""


def parts_of_rows(tree: ShardTree, shard: HistoryShard, rows: Int32) -> Iterator[Part]:
    """The partitions of a shard, in order of their words, from its rows (m, order + 2), m > 0."""
    windows, positions = np.empty((len(rows), tree.order), np.int32), np.empty(len(rows), np.int64)
    base = int(rows[0, 1])
    words, bounds = 1, np.array([0, len(rows)])
    starts = bounds
    if shard.floor == 0:
        edges = tree.edges[shard.parts[0] : shard.parts[1] + 1]
        base, words = int(edges[0]), int(edges[-1] - edges[0])
        starts = np.concatenate([[0], np.cumsum(np.bincount(rows[:, 1] - base, minlength=words))])
        bounds = starts[edges - base]
    group_rows(rows, tree.order, base, starts[:-1].copy(), windows, positions)
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if end > begin:
            yield Part(positions[begin:end], windows[begin:end])


class Sorter:
    """Sorts partitions of up to `room` positions, in the scratch arrays of one thread."""

    def __init__(self, order: int, vocabulary: int, room: int) -> None:
        self._order = order
        self._index, self._scratch = np.empty(room, np.int32), np.empty(room, np.int32)
        self._seat = np.zeros(vocabulary, np.int32)
        self._keys, self._starts = (np.empty(min(vocabulary, room) + 1, np.int32) for _ in range(2))
        self._stack = np.empty(3 * room + 3, np.int32)
        self._windows = np.empty((room, order), np.int32)
        self._sorted = np.empty((room, order), np.int32)
        self._positions = np.empty(room, np.int64)
        self._places = np.empty(room, np.int32)

    def sorted_room(self, m: int, kind: npt.DTypeLike) -> tuple[Int32, Int32 | Int64]:
        """The arrays for sorted windows (m, order) and positions (m,) of a type."""
        return self._sorted[:m], (self._places if kind == np.int32 else self._positions)[:m]

    def sort(self, shard: HistoryShard, part: Part) -> tuple[Int32, Int32 | Int64]:
        """Sort a part by history; return windows (m, order) and positions (m,)."""
        m, windows = len(part.positions), part.windows
        if windows is None:
            assert part.tokens is not None
            windows = self._windows[:m]
            gather(part.tokens, part.positions, self._order, windows)
        if shard.leaf or part.ordered:
            return windows, part.positions
        index = self._index[:m]
        index[:] = np.arange(m)
        self._order_of(shard, windows, index)
        sorted_windows, positions = self.sorted_room(m, part.positions.dtype)
        permute(windows, part.positions, index, sorted_windows, positions)
        return sorted_windows, positions

    def _order_of(self, shard: HistoryShard, windows: Int32, index: Int32) -> None:
        if not shard.floor or len(index) > SMALL:
            self._sort(windows, index)
            return
        begin = 0  # as in the unsharded corpus, children of a large node are in order of appearance, not of number
        words = windows[:, shard.floor + 1]
        for word in words[np.sort(np.unique(words, return_index=True)[1])]:
            own = np.flatnonzero(words == word)
            index[begin : begin + len(own)] = own
            self._sort(windows, index[begin : begin + len(own)])
            begin += len(own)

    def _sort(self, windows: Int32, index: Int32) -> None:
        self._stack[:3] = 0, len(index), 1
        own = self._scratch, self._seat, self._keys, self._starts, self._stack, 3
        sort_histories(windows, self._order, index, *own)
