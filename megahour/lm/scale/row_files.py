"""Positions on disk, by shard: windows of tokens, written once and in order, a file a round.

A row is a position with the words that an n-gram ending there can have, so nothing is looked up in the corpus again:
T[p], T[p-1], …, and p in two halves. Each chunk of rows is sorted by shard in memory, and every shard's share of it is
appended to that shard's place in the file, which the counts tell beforehand.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from megahour.lm.scale.shard_kernels import appearances, scatter_rows, scatter_windows
from megahour.lm.scale.shard_parts import Part, parts_of_rows
from megahour.lm.scale.shards import HistoryShard, ShardTree, Split, Target
from megahour.lm.text.arrays import Int32, Int64
from megahour.lm.text.tokenise import BOUNDARY

CHUNK = 1 << 20  # positions that are sorted by shard at a time
LEAD = 8  # tokens before a chunk that its windows reach back to; also BOUNDARYs before the corpus


def row_bytes(order: int) -> int:
    """Bytes of a row on disk."""
    return 4 * (order + 2)


class RowFiles:
    """The rows of a `ShardTree` in a directory: `rows1`, `rows2`, … hold shards, `left1`, … what is split next."""

    def __init__(self, folder: Path, tree: ShardTree) -> None:
        self.folder, self.tree = folder, tree
        self.width = tree.order + 2

    def read(self, shard: HistoryShard) -> Int32:
        """Rows (m, order + 2) of a shard."""
        return self._read(self._rows(shard.round), shard.begin, shard.rows)

    def parts(self, shard: HistoryShard) -> Iterator[Part]:
        """See `shard_parts.Rows`."""
        return parts_of_rows(self.tree, shard, self.read(shard))

    def first_round(self, tokens: Path, total: int) -> None:
        """Write the rows of all positions of a file of int32 tokens, which begins with LEAD BOUNDARYs."""
        order = self.tree.order
        with ExitStack() as stack:
            put = self._putter(stack, 1, self.tree.root)
            for begin in range(LEAD, total, CHUNK):
                end = min(begin + CHUNK, total)
                part = np.fromfile(tokens, np.int32, end - begin + LEAD, offset=4 * (begin - LEAD))
                slots = put.slot_of(self.tree.shard_of)

                def scatter(cursors: Int64, rows: Int32, part=part, base=begin - LEAD, slots=slots) -> None:  # type: ignore[no-untyped-def]
                    scatter_windows(part, base, LEAD, len(part), order, slots, cursors, rows)

                put.chunk(np.bincount(slots[part[LEAD - 1 : -1]], minlength=put.slots), scatter)

    def grow(self, split: Split, number: int) -> tuple[Int32, Int64]:
        """Words before a left-over split's history in order of appearance, and their counts (V,)."""
        counts, words = np.zeros(self.tree.vocabulary, np.int64), np.empty(self.tree.vocabulary, np.int32)
        known = 0
        for rows in self._left_rows(split, number):
            known = appearances(rows, split.floor + 1, counts, words, known)
        return words[:known].copy(), counts

    def later_round(self, splits: list[Split], number: int) -> None:
        """Move the rows of splits, which have their children now, to the files of round `number`."""
        with ExitStack() as stack:
            put = self._putter(stack, number, [child for split in splits for child in split.children])
            for split in splits:
                assert split.child_of is not None
                slots = put.slot_of(split.child_of)
                for rows in self._left_rows(split, number - 1):

                    def scatter(cursors: Int64, out: Int32, rows=rows, slots=slots, column=split.floor + 1) -> None:  # type: ignore[no-untyped-def]
                        scatter_rows(rows, column, slots, cursors, out)

                    put.chunk(np.bincount(slots[rows[:, split.floor + 1]], minlength=put.slots), scatter)

    def drop_left(self, number: int) -> None:
        """Remove what round `number` left over, once the next round has it."""
        self._left(number).unlink(missing_ok=True)

    def drop(self) -> None:
        """Remove all rows, once all shards have been counted."""
        for number in range(1, self.tree.rounds + 1):
            self._rows(number).unlink(missing_ok=True)

    def _rows(self, number: int) -> Path:
        return self.folder / f"rows{number}"

    def _left(self, number: int) -> Path:
        return self.folder / f"left{number}"

    def _read(self, path: Path, begin: int, rows: int) -> Int32:
        result = np.fromfile(path, np.int32, rows * self.width, offset=4 * self.width * begin)
        return result.reshape(rows, self.width)

    def _left_rows(self, split: Split, number: int) -> Iterator[Int32]:
        for begin in range(0, split.rows, CHUNK):
            rows = min(CHUNK, split.rows - begin)
            yield self._read(self._left(number), split.begin + begin, rows)

    def _putter(self, stack: ExitStack, number: int, targets: list[Target]) -> _Putter:
        files = [stack.enter_context(path.open("wb")) for path in (self._rows(number), self._left(number))]
        return _Putter(self.tree, targets, [file.fileno() for file in files])


class _Putter:
    """Appends chunks of rows to the places of their targets. A slot is a target's index among those given."""

    def __init__(self, tree: ShardTree, targets: list[Target], files: list[int]) -> None:
        self.slots = len(targets)
        self._targets = np.array(targets, np.int64)
        self._width = tree.order + 2
        self._places: list[tuple[int, int]] = []
        for target in targets:
            if target >= 0:
                self._places.append((files[0], tree.shards[target].begin))
            else:
                split = tree.splits[~target]
                self._places.append((files[0 if tree.is_leaf(split) else 1], split.begin))
        self._rows = np.empty((CHUNK, self._width), np.int32)

    def slot_of(self, target_of: Int32) -> Int32:
        """Slots (V,) of targets (V,); of words that do not occur, any."""
        order = np.argsort(self._targets)
        result = np.searchsorted(self._targets[order], target_of)
        return order[np.minimum(result, self.slots - 1)].astype(np.int32)

    def chunk(self, counts: Int64, scatter: Callable[[Int64, Int32], None]) -> None:
        """Write a chunk of `counts` rows per slot; `scatter(cursors, out)` puts them into `out` by slot."""
        ends = np.cumsum(counts)
        rows = self._rows[: ends[-1]]
        scatter(ends - counts, rows)
        for slot in np.flatnonzero(counts).tolist():
            file, place = self._places[slot]
            count = int(counts[slot])
            data = rows[ends[slot] - count : ends[slot]]
            os.pwrite(file, data.data, 4 * self._width * place)
            self._places[slot] = (file, place + count)


def lead() -> bytes:
    """What a file of tokens begins with."""
    return np.full(LEAD, BOUNDARY, np.int32).tobytes()
