"""Positions on disk, grouped by shard, in one file per round of sharding.

A row is a position p with the words of the longest n-gram that ends there, so the corpus is not read again: T[p],
T[p-1], …, and p in two halves. Chunks of rows are sorted by shard in memory and appended to the shards' places in the
file, which are known from the counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from megahour.lm.arpa.direct import _write_at
from megahour.lm.scale.shard_kernels import appearances, scatter_rows, scatter_windows
from megahour.lm.scale.shard_parts import Part, parts_of_rows
from megahour.lm.scale.shards import HistoryShard, ShardTree, Split, Target, slots_of
from megahour.lm.text.arrays import Int32, Int64
from megahour.lm.text.tokenise import BOUNDARY

CHUNK = 1 << 20  # positions sorted by shard at a time
LEAD = 8  # tokens before a chunk that its windows may include; also the number of BOUNDARYs before the corpus
LEADING = np.full(LEAD, BOUNDARY, np.int32).tobytes()  # the beginning of a file of tokens


def row_bytes(order: int) -> int:
    """Bytes of a row on disk."""
    return 4 * (order + 2)


class RowFiles:
    """The rows of a `ShardTree` in a directory: `rows1`, `rows2`, … have shards, `left1`, … rows to split next."""

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
        with ExitStack() as stack:
            put = self._putter(stack, 1, self.tree.root)
            slots = slots_of(self.tree.root, self.tree.shard_of)
            for begin in range(LEAD, total, CHUNK):
                end = min(begin + CHUNK, total)
                part = np.fromfile(tokens, np.int32, end - begin + LEAD, offset=4 * (begin - LEAD))
                counts = np.bincount(slots[part[LEAD - 1 : -1]], minlength=len(self.tree.root))
                cursors = np.cumsum(counts) - counts
                scatter_windows(part, begin - LEAD, LEAD, len(part), self.tree.order, slots, cursors, put.rows)
                put.write(counts)

    def grow(self, split: Split, number: int) -> tuple[Int32, Int64]:
        """Words before the history of a split, in order of appearance, and their counts (V,)."""
        counts, words = np.zeros(self.tree.vocabulary, np.int64), np.empty(self.tree.vocabulary, np.int32)
        known = 0
        for rows in self._left_rows(split, number):
            known = appearances(rows, split.floor + 1, counts, words, known)
        return words[:known].copy(), counts

    def later_round(self, splits: list[Split], number: int) -> None:
        """Move the rows of splits, whose children are known now, to the files of round `number`."""
        with ExitStack() as stack:
            targets = [child for split in splits for child in split.children]
            put = self._putter(stack, number, targets)
            for split in splits:
                assert split.child_of is not None
                slots, column = slots_of(targets, split.child_of), split.floor + 1
                for rows in self._left_rows(split, number - 1):
                    counts = np.bincount(slots[rows[:, column]], minlength=len(targets))
                    scatter_rows(rows, column, slots, np.cumsum(counts) - counts, put.rows)
                    put.write(counts)

    def drop_left(self, number: int) -> None:
        """Remove the rows that round `number` left over, once the next round has written them."""
        self._left(number).unlink(missing_ok=True)

    def drop(self) -> None:
        """Remove all rows, once all shards are counted."""
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
    """Appends chunks of rows to the places of their targets. A slot is the index of a target in `targets`.

    rows (CHUNK, order + 2): the rows of a chunk, in order of their slots, for `write`.
    """

    def __init__(self, tree: ShardTree, targets: list[Target], files: list[int]) -> None:
        self._places: list[tuple[int, int]] = []
        for target in targets:
            if target >= 0:
                self._places.append((files[0], tree.shards[target].begin))
            else:
                split = tree.splits[~target]
                self._places.append((files[0 if tree.is_leaf(split) else 1], split.begin))
        self.rows = np.empty((CHUNK, tree.order + 2), np.int32)

    def write(self, counts: Int64) -> None:
        """Write the first rows of `rows`: counts[slot] rows of each slot."""
        begin = 0
        for slot in np.flatnonzero(counts).tolist():
            (file, place), count = self._places[slot], int(counts[slot])
            data = self.rows[begin : begin + count].reshape(-1).view(np.uint8).data
            _write_at(file, data, self.rows.strides[0] * place)
            self._places[slot] = file, place + count
            begin += count
