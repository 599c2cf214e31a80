"""A corpus in memory, partitioned by the last word of the history, and the scratch arrays of threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from megahour.lm.arpa.read import Progress
from megahour.lm.estimate.context_keys import Names
from megahour.lm.estimate.history import (
    buckets,
    gather,
    history_counts,
    order_by_word,
    partition_by_owner,
    permute,
    sort_histories,
    word_nodes,
)
from megahour.lm.estimate.kept_ngrams import Kept
from megahour.lm.estimate.sweep import TALLIES, Words, open_contexts, store, sweep
from megahour.lm.text.arrays import Bytes, Int32, Int64, Tokens

R = TypeVar("R")
PADDING = 8  # BOUNDARY tokens before a corpus, so that every position has a window
MOST_COMPACT = 3  # largest order whose sweeps leave rows out: above, fewer repeat an n-gram than must be moved
BUCKET = 1 << 15  # positions in a partition, which should fit into the cache


@dataclass(frozen=True)
class Corpus:
    """tokens: PADDING times BOUNDARY, then sentences that end in BOUNDARY. arena, starts (V + 1,): the words by number,
    as in `tokenise.WordTable`."""

    tokens: Tokens
    arena: Bytes
    starts: Int64

    @property
    def size(self) -> int:
        """Vocabulary size V."""
        return len(self.starts) - 1

    def spell(self, number: int) -> bytes:
        """The word with this number."""
        return self.arena[self.starts[number] : self.starts[number + 1]].tobytes()

    def occurrences(self) -> Int64:
        """(V,) how often each token occurs."""
        return np.bincount(self.tokens[PADDING:], minlength=self.size)


class ThreadScratch:
    """The arrays of one thread, as the kernels take them, for partitions of up to `room` positions."""

    def __init__(self, order: int, vocabulary: int, room: int) -> None:
        shape, words = (order + 1, room + 1), min(vocabulary, room) + 1
        self.windows, self.sorted = (np.empty((room, order), np.int32) for _ in range(2))
        self.positions, self.index = (np.empty(room, np.int32) for _ in range(2))
        self.seat = np.zeros((3, max(vocabulary, words)), np.int32)
        self.stack = np.empty(3 * room + 3, np.int32)
        self.contexts, self.store = open_contexts(order, vocabulary, room), store(order, room)
        self.kept, self.names = Kept.shelves(), Names.shelves()
        self.chain = np.empty((order, words))
        self.at = np.empty(shape, np.int32)
        self.logp, self.backoff = (np.empty(shape, np.float32) for _ in range(2))
        self.sizes, self.unigrams = np.zeros(order + 1, np.int64), np.zeros(vocabulary, np.int64)


class Partitions:
    """The positions of a corpus by partition.

    cutoffs, allowed: see `sweep`. store_bytes: memory for the n-grams that `count` keeps; other partitions are swept
    again, with the same result. spelled: whether tallies have the sizes of lines.

    Attributes: counts (V,): how often each word ends a history; owner (V,): the partition of each word; lengths (V,):
    its bytes.
    """

    def __init__(
        self, corpus: Corpus, order: int, cutoffs: Int64, threads: int, allowed: Words = None, store_bytes: int = 0,
        spelled: bool = True,
    ) -> None:  # fmt: skip
        self.corpus, self.order, self.cutoffs, self.threads = corpus, order, cutoffs, threads
        self.allowed, self.store_bytes, self.spelled = allowed, store_bytes, spelled
        self._own = threading.local()
        self._all: list[ThreadScratch] = []
        self._kept: dict[int, tuple[int, Kept]] = {}  # numbers of rows and n-grams
        tokens, size = corpus.tokens, corpus.size
        self.counts = np.zeros(size, np.int64)
        history_counts(tokens, PADDING, len(tokens), self.counts)
        words = self._words = buckets(self.counts, max(BUCKET, len(tokens) >> 14))  # numbers of partitions have 16 bits
        self._edges = np.append(0, np.cumsum(self.counts)[words[1:] - 1])
        self.owner = np.repeat(np.arange(len(words) - 1, dtype=np.uint16), np.diff(words))
        self._positions = np.empty(len(tokens) - PADDING, np.int32)
        partition_by_owner(tokens, PADDING, len(tokens), self.owner, self._edges[:-1].copy(), self._positions)
        self.lengths = np.empty(size, np.int32)
        np.subtract(self.corpus.starts[1:], self.corpus.starts[:-1], out=self.lengths, casting="unsafe")

    def __len__(self) -> int:
        """Number of partitions, 0 for order 1."""
        return len(self._edges) - 1 if self.order > 1 else 0

    @property
    def spread(self) -> tuple[int, int, int]:
        """The number of partitions, and the positions of the largest and the median one."""
        sizes = np.sort(np.diff(self._edges))
        middle = sizes[(len(sizes) - 1) // 2 : len(sizes) // 2 + 1]  # `np.median` would import masked arrays
        return len(sizes), int(sizes[-1]), int(middle.sum()) // len(middle)

    @property
    def unigrams(self) -> Int64:
        """(V,) adjusted counts of words: the sum over all threads, complete when all partitions are counted."""
        total, *others = [scratch.unigrams for scratch in self._all]
        for other in others:
            total += other
        return total

    def each(self, call: Callable[[int], R], phase: str, progress: Progress) -> list[R]:
        """call(partition) for each partition, in `threads` threads; the results are in order."""
        results: list[R] = []
        with ThreadPoolExecutor(self.threads) as pool:
            calls = map(call, range(len(self))) if self.threads == 1 else pool.map(call, range(len(self)))
            for result in calls:
                results.append(result)
                progress(phase, len(results), len(self))
        return results

    def count(self, number: int, tally: Int64) -> tuple[ThreadScratch, Int32, int]:
        """Sort the positions of a partition by history, in place, and sweep them. The n-grams for the second pass are
        kept if there is room. Returns the scratch with the store, the windows, and the number of nodes."""
        positions = self._part(number)
        m = len(positions)
        s = self._scratch()
        gather(self.corpus.tokens, positions, self.order, s.windows[:m])
        first, stop = self._words[number], self._words[number + 1]
        counts = self.counts[first:stop]
        cursors = np.cumsum(counts) - counts
        order_by_word(s.windows, first, cursors, s.index[:m])
        if self.order > 2:
            top = word_nodes(first, cursors, s.stack)
            sort_histories(s.windows, self.order, s.index[:m], s.positions, *s.seat, s.stack, top)
        windows = s.sorted[:m]
        permute(s.windows, positions, s.index[:m], windows, s.positions[:m])
        room = Kept.room(self.order, m, s.kept) if self.store_bytes > 0 else None
        compact = room is not None and self.order <= MOST_COMPACT
        nodes, grams, rows = self._sweep(s, windows, s.positions[:m], tally, room, compact)
        positions[:rows] = s.positions[:rows]
        if room is not None:
            kept = room.taken(grams, nodes)
            self.store_bytes -= kept.nbytes  # several threads may see room for the last one
            self._kept[number] = rows, kept
            for shelf, own in zip(s.kept, kept, strict=True):
                shelf.take(len(own))
        return s, windows, nodes

    def kept(self, number: int) -> tuple[ThreadScratch, Int32, Int32, Kept]:
        """Scratch, windows, positions, and n-grams of a counted partition. May be called once per partition."""
        rows, kept = self._kept.pop(number, (None, None))
        s, windows, positions = self._sorted(number, rows)
        if kept is None:
            room = Kept.room(self.order, len(windows), s.kept)
            nodes, grams, _ = self._sweep(s, windows, positions, self._no_tally(), room)
            kept = room.taken(grams, nodes)
        return s, windows, positions, kept

    def swept(self, number: int) -> tuple[ThreadScratch, Int32, Int32, int]:
        """Scratch with the store, windows, positions, and number of nodes of a counted partition, dropped n-grams
        included."""
        s, windows, positions = self._sorted(number)
        nodes, _, _ = self._sweep(s, windows, positions, self._no_tally())
        return s, windows, positions, nodes

    def _sorted(self, number: int, rows: int | None = None) -> tuple[ThreadScratch, Int32, Int32]:
        """Scratch, windows and positions of a counted partition, of which `rows` are kept."""
        positions = self._part(number)[:rows]
        s = self._scratch()
        windows = s.sorted[: len(positions)]
        gather(self.corpus.tokens, positions, self.order, windows)
        return s, windows, positions

    def _no_tally(self) -> Int64:
        return np.zeros((self.order + 1, TALLIES), np.int64)

    def _sweep(
        self, s: ThreadScratch, windows: Int32, positions: Int32, tally: Int64, kept: Kept | None = None,
        compact: bool = False,
    ) -> tuple[int, int, int]:  # fmt: skip
        words = self.allowed, self.lengths if self.spelled else None
        return sweep(
            windows, positions, self.order, self.cutoffs, *words, s.contexts, s.store, s.unigrams, tally, kept, compact
        )

    def _part(self, number: int) -> Int32:
        return self._positions[self._edges[number] : self._edges[number + 1]]

    def _scratch(self) -> ThreadScratch:
        """The scratch of this thread, with room for the largest partition: untouched pages take no memory."""
        held: ThreadScratch | None = getattr(self._own, "scratch", None)
        if held is None:
            self._own.scratch = held = ThreadScratch(self.order, self.corpus.size, int(np.diff(self._edges).max()))
            self._all.append(held)
        return held
