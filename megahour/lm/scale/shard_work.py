"""One shard's work: count it, and later, with everybody's discounts, write its lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megahour.lm.arpa.lines import ROOM, Spelling, line_bytes, spell_lines, spelling
from megahour.lm.estimate.history import SMALL, Int32, Int64, permute, sort_histories
from megahour.lm.estimate.kept import keep
from megahour.lm.estimate.smooth import fill_names, smooth
from megahour.lm.estimate.sweep import CHARACTERS, KEPT, SUMS, TALLIES, Store, sweep_from
from megahour.lm.scale.shard_kernels import group_rows
from megahour.lm.scale.shards import Shard, ShardTree
from megahour.lm.text.tokenise import END, Bytes

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
NAME = np.dtype([("key", "<i8"), ("sums", "<i4", (SUMS,))])
"""A context that occurs more than once: 8 × position where it first ends + its words; its sums."""
SHARE = np.dtype([("word", "<i4"), ("adjusted", "<i4"), ("raw", "<i4"), ("first", "<i8")])
"""An n-gram of a shared context: its last word, counts, and the position that ends its first occurrence."""


@dataclass(frozen=True)
class Text:
    """What all shards know: model order, thresholds (order + 2,) of pruning, spelling, and lengths (V,) of words."""

    order: int
    prune: Int64
    spelling: Spelling
    lengths: Int32

    @staticmethod
    def of(order: int, prune: Int64, arena: Bytes, starts: Int64) -> Text:
        """arena, starts: as of `tokenise.WordTable`."""
        return Text(order, prune, spelling(arena, starts), np.diff(starts).astype(np.int32))

    @property
    def size(self) -> int:
        """Vocabulary size V."""
        return len(self.lengths)


@dataclass(frozen=True)
class Counted:
    """What counting a shard found.

    tally: (order + 1, TALLIES). words, word_sums: contexts of one word. unigrams, adjusted: shares of words' adjusted
    counts. names: by target, those of target t in edges[t] .. edges[t + 1], splits after shards. share: n-grams of the
    shared context, empty at floor 0.
    """

    tally: Int64
    words: Int32
    word_sums: Int64
    unigrams: Int32
    adjusted: Int64
    names: npt.NDArray[np.void]
    edges: Int64
    share: npt.NDArray[np.void]


@dataclass(frozen=True)
class Shared:
    """p(w|h) of the context that a shard's histories share: words (n,), p (n,)."""

    words: Int32
    probability: Float64


@dataclass(frozen=True)
class Smoothing:
    """discounts (order + 2, 4); unigram (V,), `</s>` under BOUNDARY."""

    discounts: Float64
    unigram: Float64


def bytes_of_position(order: int) -> int:
    """Memory, in bytes, of a position of a shard while it is counted or smoothed: rows, windows and their sorted copy,
    sorting, stored n-grams and lines."""
    return 4 * (order + 2) + 2 * (4 * order + 8) + 20 + 60 * order


class ShardWorker:
    """Scratch of one thread, grown to the largest shard that it meets."""

    def __init__(self, text: Text, tree: ShardTree) -> None:
        self._text, self._tree = text, tree
        self._room = 0
        self._chain: Float64 = np.empty((text.order, 0))
        order, size = text.order, text.size
        self._seat = np.zeros(size, np.int32)
        self._seats = np.zeros((order, size), np.int32)
        self._sizes = np.zeros(order, np.int64)
        self._unigrams = np.zeros(size, np.int64)
        self._part_of = np.zeros(size, np.int32)
        self._no_tokens = np.empty(0, np.int32)  # `smooth` asks for the text where words are not allowed

    def count(self, shard: Shard, rows: Int32) -> Counted:
        """Count a shard's rows (m, order + 2)."""
        order, tree = self._text.order, self._tree
        tally = np.zeros((order + 1, TALLIES), np.int64)
        names, targets, words, word_sums = [], [], [], []
        share = np.empty(0, SHARE)
        for windows, positions in self._parts(shard, rows):
            n, _ = self._sweep(shard.floor, windows, positions, tally)
            nodes, sums = self._nodes[:n], self._sums[:n]
            single = nodes[:, 0] == 1
            words.append(windows[nodes[single, 3], 1])
            word_sums.append(sums[single])
            long = np.flatnonzero(~single)
            found = np.empty(len(long), NAME)
            found["key"] = self._first[long] * 8 + nodes[long, 0]
            found["sums"] = sums[long]
            names.append(found)
            if len(long):
                targets.append(tree.route(windows[nodes[long, 3]], nodes[long, 0].astype(np.int64)))
            share = self._share(shard.floor, positions)
        self._sizes[:] = 0
        unigrams = np.flatnonzero(self._unigrams).astype(np.int32)
        adjusted = self._unigrams[unigrams]
        self._unigrams[unigrams] = 0
        ordered, edges = by_target(tree, names, targets)
        return Counted(
            tally, np.concatenate(words), np.concatenate(word_sums), unigrams, adjusted, ordered, edges, share
        )

    def smooth(
        self, shard: Shard, rows: Int32, smoothing: Smoothing, shared: Shared | None, keys: Int64, values: Float32
    ) -> Iterator[tuple[int, int, Bytes]]:
        """(order, lines, text) of a shard's n-grams, in the order of their lines within each order.

        keys, values: a table of `smooth.fill_names` with log10 γ of the contexts that the shard prints.
        """
        text, order = self._text, self._text.order
        at, logp, backoff = self._line_room(rows)
        sizes = np.zeros(order + 1, np.int64)
        for windows, positions in self._parts(shard, rows):
            tally = np.zeros((order + 1, TALLIES), np.int64)
            n, grams = self._sweep(shard.floor, windows, positions, tally)
            kept = keep(Store(self._grams, self._nodes, self._sums, self._first), n, grams, windows, text.prune, None)
            self._sizes[:] = 0
            if shared is not None:
                self._share_chain(shard.floor, shared)
            smooth(
                shard.floor, windows, positions, self._no_tokens, order, text.prune, None, smoothing.discounts,
                smoothing.unigram, *kept, n, self._seats, self._chain, keys, values, at, logp, backoff,
                sizes,
            )  # fmt: skip
            for k in range(shard.floor + 2, order + 1):
                lines = int(tally[k, KEPT])
                if lines != sizes[k]:
                    raise AssertionError(f"shard {shard.number}: {sizes[k]} {k}-grams, not {lines}")
                yield k, lines, lines_of(text, k, windows, at[k], logp[k], backoff[k], lines, int(tally[k, CHARACTERS]))

    def _parts(self, shard: Shard, rows: Int32) -> Iterator[tuple[Int32, Int64]]:
        """Sorted windows and positions of each partition that the shard holds."""
        first, last = shard.parts if shard.floor == 0 else (0, 1)
        cursors = np.zeros(last - first + 1, np.int64)
        if shard.floor == 0:
            edges = self._tree.edges[first : last + 1]
            self._part_of[edges[0] : edges[-1]] = np.repeat(np.arange(last - first), np.diff(edges))
            counts = np.bincount(rows[:, 1], minlength=edges[-1])[edges[0] : edges[-1]]
            starts = np.concatenate([[0], np.cumsum(counts)])
            cursors = starts[edges - edges[0]]
        else:
            self._part_of[rows[0, 1]] = 0
            cursors[1] = len(rows)
        windows, positions = np.empty((len(rows), self._text.order), np.int32), np.empty(len(rows), np.int64)
        group_rows(rows, self._text.order, self._part_of, cursors[:-1].copy(), windows, positions)
        for begin, end in zip(cursors[:-1].tolist(), cursors[1:].tolist(), strict=True):
            if end > begin:
                self._make_room(end - begin)
                yield self._sorted(shard, windows[begin:end], positions[begin:end])

    def _sorted(self, shard: Shard, windows: Int32, positions: Int64) -> tuple[Int32, Int64]:
        if shard.leaf:
            return windows, positions
        m, index = len(positions), self._index[: len(positions)]
        index[:] = np.arange(m)
        if shard.floor and m <= SMALL:  # the large node that it was a part of goes by appearance, not by number
            begin = 0
            words = windows[:, shard.floor + 1]
            for word in words[np.sort(np.unique(words, return_index=True)[1])]:
                own = np.flatnonzero(words == word)
                index[begin : begin + len(own)] = own
                self._sort(windows, index[begin : begin + len(own)])
                begin += len(own)
        else:
            self._sort(windows, index)
        permute(windows, positions, index, self._sorted_windows[:m], self._sorted_positions[:m])
        return self._sorted_windows[:m], self._sorted_positions[:m]

    def _sort(self, windows: Int32, index: Int32) -> None:
        sort_histories(
            windows, self._text.order, index, self._scratch, self._seat, self._keys, self._starts, self._stack
        )

    def _sweep(self, floor: int, windows: Int32, positions: Int64, tally: Int64) -> tuple[int, int]:
        text = self._text
        n, grams = sweep_from(
            floor, windows, positions, text.order, text.prune, None, text.lengths, self._seats, self._sets, self._sizes,
            self._grams, self._nodes, self._sums, self._first, self._unigrams, tally,
        )  # fmt: skip
        return int(n), int(grams)

    def _share(self, floor: int, positions: Int64) -> npt.NDArray[np.void]:
        if floor == 0:
            return np.empty(0, SHARE)
        rows = self._sets[floor, : self._sizes[floor]]
        share = np.empty(len(rows), SHARE)
        share["word"], share["adjusted"], share["raw"] = rows[:, 0], rows[:, 2], rows[:, 3]
        share["first"] = positions[rows[:, 1]]
        return share

    def _share_chain(self, floor: int, shared: Shared) -> None:
        if self._chain.shape[1] < len(shared.words):
            self._chain = np.empty((self._text.order, len(shared.words) + 1))
        self._seats[floor, shared.words] = np.arange(len(shared.words))
        self._chain[floor, : len(shared.words)] = shared.probability

    def _line_room(self, rows: Int32) -> tuple[Int32, Float32, Float32]:
        shape = (self._text.order + 1, len(rows) + 1)
        return np.empty(shape, np.int32), np.empty(shape, np.float32), np.empty(shape, np.float32)

    def _make_room(self, m: int) -> None:
        if m <= self._room:
            return
        order, size = self._text.order, self._text.size
        self._room = room = max(m, 1 << 16)
        self._index, self._scratch = np.empty(room, np.int32), np.empty(room, np.int32)
        self._keys, self._starts = (np.empty(min(size, room) + 1, np.int32) for _ in range(2))
        self._stack = np.empty(3 * room + 3, np.int32)
        self._sorted_windows, self._sorted_positions = np.empty((room, order), np.int32), np.empty(room, np.int64)
        self._sets = np.empty((order, min(size, room) + 1, 4), np.int32)
        self._chain = np.empty((order, min(size, room) + 1))
        # Only what is written takes memory; a stored context has two positions or more.
        grams, nodes = room * (order - 1), room * (order - 1) // 2 + 1
        self._grams, self._nodes = np.empty((grams, 4), np.int32), np.empty((nodes, 4), np.int32)
        self._sums, self._first = np.empty((nodes, SUMS), np.int32), np.empty(nodes, np.int64)


def by_target(
    tree: ShardTree, names: list[npt.NDArray[np.void]], targets: list[Int32]
) -> tuple[npt.NDArray[np.void], Int64]:
    """Names in order of their targets, and where each target's begin: shards, then splits."""
    shards, number = len(tree.shards), len(tree.shards) + len(tree.splits)
    joined = np.concatenate([np.empty(0, NAME), *names])
    to = np.concatenate([np.empty(0, np.int32), *targets])
    to = np.where(to < 0, shards + ~to, to)
    ordered = joined[np.argsort(to, kind="stable")]
    return ordered, np.concatenate([[0], np.cumsum(np.bincount(to, minlength=number))])


def lines_of(
    text: Text, k: int, windows: Int32, at: Int32, logp: Float32, backoff: Float32, lines: int, characters: int
) -> Bytes:
    """The text of so many k-grams, whose words have so many bytes."""
    highest = k == text.order
    out = np.empty(line_bytes(k, highest, lines, characters) + ROOM, np.uint8)
    used = spell_lines(k, highest, windows, at, logp, backoff, lines, *text.spelling, END, out)
    if used != len(out) - ROOM:
        raise AssertionError(f"{lines} {k}-grams take {used} bytes, not {len(out) - ROOM}")
    return out[:used]


def name_table(names: npt.NDArray[np.void], discounts: Float64) -> tuple[Int64, Float32]:
    """keys, values of `smooth.fill_names` from names and discounts (order + 2, 4)."""
    from megahour.lm.estimate.smooth import gammas

    words = names["key"] & 7
    values = np.empty(len(names), np.float32)
    for length in np.unique(words).tolist():
        own = words == length
        result = np.empty(int(own.sum()))
        gammas(names["sums"][own], discounts[length + 1], result)
        values[own] = result
    room = 1 << int(2 * len(names) + 2).bit_length()
    keys, table = np.empty(room, np.int64), np.empty(room, np.float32)
    fill_names(names["key"] >> 3, words, values, keys, table)
    return keys, table
