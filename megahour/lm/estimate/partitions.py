"""A corpus in partitions of the history's last word: what threads share, and the scratch that each has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from megahour.lm.estimate.context_keys import Names
from megahour.lm.estimate.history import (
    buckets,
    gather,
    history_counts,
    order_by_word,
    partition_by_owner,
    permute,
    sort_histories,
)
from megahour.lm.estimate.kept_ngrams import Arena, Kept, keep
from megahour.lm.estimate.sweep import TALLIES, Open, SweepStore, Words, open_contexts, store, sweep
from megahour.lm.text.arrays import Bytes, Float64, Int32, Int64, Tokens

R = TypeVar("R")
PADDING = 8  # BOUNDARY tokens in front of a corpus, so that every position has a window
BUCKET = 1 << 15  # positions of a partition, so that it stays in the cache


@dataclass(frozen=True)
class Corpus:
    """tokens: int32, PADDING times BOUNDARY, then sentences that end in BOUNDARY. words: spelling by number, after
    `<unk>`, `<s>`, `</s>`, as `arena` and `starts` (V + 1,) of `tokenise.WordTable`."""

    tokens: Tokens
    arena: Bytes
    starts: Int64

    @property
    def size(self) -> int:
        """Vocabulary size V."""
        return len(self.starts) - 1

    def spell(self, number: int) -> bytes:
        """The word of a number."""
        return self.arena[self.starts[number] : self.starts[number + 1]].tobytes()


@dataclass(eq=False)
class ThreadScratch:
    """What one thread needs for partitions of up to `room` positions; arrays as the kernels want them."""

    room: int
    windows: Int32
    sorted: Int32
    positions: Int32
    index: Int32
    seat: Int32
    stack: Int32
    contexts: Open
    store: SweepStore
    kept: tuple[Arena, Arena]
    names: tuple[Arena, ...]
    chain: Float64
    at: Int32
    logp: npt.NDArray[np.float32]
    backoff: npt.NDArray[np.float32]
    sizes: Int64
    unigrams: Int64

    @staticmethod
    def make(order: int, vocabulary: int, room: int) -> ThreadScratch:
        rows = order + 1
        return ThreadScratch(
            room,
            np.empty((room, order), np.int32),
            np.empty((room, order), np.int32),
            np.empty(room, np.int32),
            np.empty(room, np.int32),
            np.zeros((3, max(vocabulary, min(vocabulary, room) + 1)), np.int32),
            np.empty(3 * room + 3, np.int32),
            open_contexts(order, vocabulary, room),
            store(order, room),
            Kept.shelves(),
            Names.shelves(),
            np.empty((order, min(vocabulary, room) + 1)),
            np.empty((rows, room + 1), np.int32),
            np.empty((rows, room + 1), np.float32),
            np.empty((rows, room + 1), np.float32),
            np.zeros(rows, np.int64),
            np.zeros(vocabulary, np.int64),
        )


@dataclass
class Partitions:
    """The positions of a corpus by partition. counts (V,): how often each word ends a history; owner (V,): its
    partition; lengths (V,): its bytes. cutoffs, allowed: see `sweep`. store_bytes: for what `count` keeps; partitions
    that it does not hold are swept again, which gives the same. spelled: whether tallies have the bytes of lines."""

    corpus: Corpus
    order: int
    cutoffs: Int64
    threads: int
    allowed: Words = None
    store_bytes: int = 0
    spelled: bool = True
    counts: Int64 = field(init=False)
    owner: npt.NDArray[np.uint16] = field(init=False)
    lengths: Int32 = field(init=False)
    _words: Int64 = field(init=False)
    _edges: Int64 = field(init=False)
    _positions: Int32 = field(init=False)
    _own: threading.local = field(default_factory=threading.local)
    _all: list[ThreadScratch] = field(default_factory=list)
    _kept: dict[int, Kept] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tokens, size = self.corpus.tokens, self.corpus.size
        self.counts = np.zeros(size, np.int64)
        history_counts(tokens, PADDING, len(tokens), self.counts)
        words = self._words = buckets(self.counts, max(BUCKET, len(tokens) >> 14))  # partitions have 16-bit numbers
        self._edges = np.append(0, np.cumsum(self.counts)[words[1:] - 1])
        self.owner = np.repeat(np.arange(len(words) - 1, dtype=np.uint16), np.diff(words))
        self._positions = np.empty(len(tokens) - PADDING, np.int32)
        partition_by_owner(tokens, PADDING, len(tokens), self.owner, self._edges[:-1].copy(), self._positions)
        self.lengths = np.empty(size, np.int32)
        np.subtract(self.corpus.starts[1:], self.corpus.starts[:-1], out=self.lengths, casting="unsafe")

    def __len__(self) -> int:
        """Number of partitions; none for unigrams."""
        return len(self._edges) - 1 if self.order > 1 else 0

    @property
    def sizes(self) -> Int64:
        """(P,) positions of each partition."""
        return np.diff(self._edges)

    @property
    def spread(self) -> tuple[int, int, int]:
        """How many partitions, and positions of the largest and of the middle one."""
        sizes = np.sort(self.sizes)
        middle = sizes[(len(sizes) - 1) // 2 : len(sizes) // 2 + 1]  # `np.median` would load masked arrays
        return len(sizes), int(sizes[-1]), int(middle.sum()) // len(middle)

    @property
    def unigrams(self) -> Int64:
        """(V,) adjusted counts of words, once all partitions have been swept with their threads' own counts."""
        total, *others = [scratch.unigrams for scratch in self._all]
        for other in others:
            total += other
        return total

    def each(self, call: Callable[[int], R]) -> Iterator[R]:
        """call(partition) of each, in order, by `threads` threads."""
        if self.threads == 1:
            yield from map(call, range(len(self)))
            return
        with ThreadPoolExecutor(self.threads) as pool:
            yield from pool.map(call, range(len(self)))

    def count(self, number: int, tally: Int64) -> tuple[ThreadScratch, Int32, int]:
        """Sort a partition's positions by history, which they stay, and sweep them: scratch with the store and the
        thread's unigrams; windows; nodes. What the second pass needs is kept while there is room for it."""
        positions = self._part(number)
        m = len(positions)
        s = self._scratch(m)
        gather(self.corpus.tokens, positions, self.order, s.windows[:m])
        first, stop = self._words[number], self._words[number + 1]
        counts = self.counts[first:stop]
        order_by_word(s.windows, first, np.cumsum(counts) - counts, s.index[:m])
        sort_histories(s.windows, self.order, s.index[:m], s.positions, *s.seat, s.stack)
        windows = s.sorted[:m]
        permute(s.windows, positions, s.index[:m], windows, s.positions[:m])
        positions[:] = s.positions[:m]
        nodes, grams = self._sweep(s, windows, positions, tally)
        if self.store_bytes > 0:
            kept = self._keep(s, windows, nodes, grams)
            self.store_bytes -= kept.nbytes  # threads may both see room for the last one
            self._kept[number] = kept
            for shelf, rows in zip(s.kept, kept, strict=True):
                shelf.take(len(rows))
        return s, windows, nodes

    def kept(self, number: int) -> tuple[ThreadScratch, Int32, Int32, Kept]:
        """Scratch, windows, positions, and n-grams of a partition that has been counted; once only."""
        kept = self._kept.pop(number, None)
        if kept is None:
            s, windows, nodes, grams = self._again(number)
            return s, windows, self._part(number), self._keep(s, windows, nodes, grams)
        s, windows = self._sorted(number)
        return s, windows, self._part(number), kept

    def swept(self, number: int) -> tuple[ThreadScratch, Int32, Int32, int]:
        """Scratch with the store, windows, positions, and nodes of a partition that has been counted: dropped n-grams
        are there too."""
        s, windows, nodes, _ = self._again(number)
        return s, windows, self._part(number), nodes

    def _sorted(self, number: int) -> tuple[ThreadScratch, Int32]:
        """Windows of a partition that has been counted."""
        positions = self._part(number)
        s = self._scratch(len(positions))
        windows = s.sorted[: len(positions)]
        gather(self.corpus.tokens, positions, self.order, windows)
        return s, windows

    def _again(self, number: int) -> tuple[ThreadScratch, Int32, int, int]:
        s, windows = self._sorted(number)
        tally = np.zeros((self.order + 1, TALLIES), np.int64)
        return s, windows, *self._sweep(s, windows, self._part(number), tally)

    def _keep(self, s: ThreadScratch, windows: Int32, nodes: int, grams: int) -> Kept:
        room = Kept(s.kept[0].room(grams), s.kept[1].room(nodes))
        return keep(s.store, nodes, grams, windows, self.cutoffs, self.allowed, room)

    def _sweep(self, s: ThreadScratch, windows: Int32, positions: Int32, tally: Int64) -> tuple[int, int]:
        words = self.allowed, self.lengths if self.spelled else None
        return sweep(windows, positions, self.order, self.cutoffs, *words, s.contexts, s.store, s.unigrams, tally)

    def _part(self, number: int) -> Int32:
        return self._positions[self._edges[number] : self._edges[number + 1]]

    def _scratch(self, positions: int) -> ThreadScratch:
        """This thread's, grown if need be."""
        held: ThreadScratch | None = getattr(self._own, "scratch", None)
        if held is None or held.room < positions:
            grown = ThreadScratch.make(self.order, self.corpus.size, max(positions, 2 * BUCKET))
            if held is not None:
                grown.unigrams, grown.kept, grown.names = held.unigrams, held.kept, held.names
                self._all.remove(held)
            self._own.scratch = held = grown
            self._all.append(held)
        return held
