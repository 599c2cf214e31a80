"""Positions in memory, grouped by shard, in one array. Together with the tokens they take 8 bytes per token.

They are used instead of `row_files` if they fit into the given memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from megahour.lm.estimate.history import partition
from megahour.lm.scale.row_files import LEAD
from megahour.lm.scale.shard_kernels import appearances_before, move_children
from megahour.lm.scale.shard_parts import Part
from megahour.lm.scale.shards import HistoryShard, ShardTree, Split, Target
from megahour.lm.text.arrays import Int32, Int64

BYTES_OF_TOKEN = 8
MOST_TOKENS = 2**31 - 1


class MemoryRows:
    """The positions of a `ShardTree`. The positions of a split are those of its children, one after the other.

    Parameters
    ----------
    tokens: (T,) int32, LEAD BOUNDARYs first.
    counts: (V,) how often each word ends a history.
    """

    def __init__(self, tree: ShardTree, tokens: Int32, counts: Int64) -> None:
        self.tree, self._tokens = tree, tokens
        starts = np.concatenate([[0], np.cumsum(counts)])
        self._starts = starts[tree.edges]
        self._positions = np.empty(len(tokens) - LEAD, np.int32)
        partition(tokens, LEAD, len(tokens), starts[:-1].copy(), self._positions)
        self._places: dict[Target, int] = {}
        self._place(tree.root, 0)

    def parts(self, shard: HistoryShard) -> Iterator[Part]:
        """See `shard_parts.Rows`."""
        if shard.floor:
            place = self._places[shard.number]
            yield Part(self._positions[place : place + shard.rows], None, self._tokens)
            return
        first, last = shard.parts
        bounds = self._starts[first : last + 1].tolist()
        for begin, end in pairwise(bounds):
            if end > begin:
                yield Part(self._positions[begin:end], None, self._tokens)

    def grow(self, split: Split) -> tuple[Int32, Int64]:
        """Words before the history of a split, in order of appearance, and their counts (V,)."""
        counts, words = np.zeros(self.tree.vocabulary, np.int64), np.empty(self.tree.vocabulary, np.int32)
        known = appearances_before(self._tokens, self._of(split), split.floor + 1, counts, words)
        return words[:known].copy(), counts

    def later_round(self, splits: list[Split]) -> None:
        """Sort the positions of splits by their children, which are known now."""
        for split in splits:
            assert split.child_of is not None
            own = self._of(split)
            index = {target: number for number, target in enumerate(split.children)}
            targets, inverse = np.unique(split.child_of, return_inverse=True)
            slots = np.array([index.get(target, 0) for target in targets.tolist()], np.int32)[inverse]
            sizes = [self._rows(target) for target in split.children]
            cursors = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
            out = np.empty_like(own)
            move_children(self._tokens, own, split.floor + 1, slots, cursors, out)
            own[:] = out
            self._place(split.children, self._places[~split.number])

    def _of(self, split: Split) -> Int32:
        place = self._places[~split.number]
        return self._positions[place : place + split.rows]

    def _rows(self, target: Target) -> int:
        return self.tree.shards[target].rows if target >= 0 else self.tree.splits[~target].rows

    def _place(self, targets: list[Target], place: int) -> None:
        for target in targets:
            self._places[target] = place
            if target < 0:
                self._place(self.tree.splits[~target].children, place)
            place += self._rows(target)
