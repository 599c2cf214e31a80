"""Progressive sharding (Patil & Zheng 2017): assigns histories to shards of limited size, even in skewed corpora.

    round 1   by the last word of the history, neighbouring words together; only unigrams are shared by all shards
    round 2   a word with more positions than a shard may have: by the word before it; its bigrams are shared
    round 3   a pair of words that is still too large: by the word before that; its trigrams are shared; and so on

A *split* is a history that is divided; its children share its n-grams. A complete history, which begins its sentence or
is as long as the model allows, is divided at arbitrary positions, and the counts of its children add up. So no shard
exceeds the limit after at most `order` rounds, and only n-grams of split histories are shared.

Children are in order of appearance, as `sort_histories` leaves large nodes: the shards in order are the sorted
positions of the unsharded corpus.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megahour.lm.text.arrays import Int32, Int64
from megahour.lm.text.tokenise import BOUNDARY

Target = int  # a shard's number, or ~number of a split


@dataclass(frozen=True)
class HistoryShard:
    """A shard: `rows` positions, from `begin` on in the file of its round.

    floor: number of last words that its histories share, those of split `parent`. parts: its range of partitions (of
    `history.buckets`) if floor is 0. leaf: whether it is a part of one complete history.
    """

    number: int
    round: int
    begin: int
    rows: int
    floor: int = 0
    parent: int = -1
    parts: tuple[int, int] = (0, 0)
    leaf: bool = False


@dataclass
class Split:
    """A history, last word first, with more rows than a shard may have. child_of (V,): target by the word before it;
    None for a complete history. children: targets in order."""

    number: int
    history: tuple[int, ...]
    rows: int
    begin: int
    parent: int = -1
    child_of: Int32 | None = None
    children: list[Target] = field(default_factory=list)

    @property
    def floor(self) -> int:
        """Length of the history in words."""
        return len(self.history)


@dataclass(frozen=True)
class Sharding:
    """Statistics of progressive sharding. shards, splits, left_over (rows): by round. largest, median: in rows."""

    rounds: int
    shards: list[int]
    splits: list[int]
    largest: int
    median: int
    left_over: list[int]

    @property
    def skew(self) -> float:
        """Size of the largest shard over that of the median one."""
        return self.largest / max(1, self.median)

    def stats(self) -> dict[str, Any]:
        """The numbers for receipts and summaries."""
        return {**vars(self), "skew": round(self.skew, 3)}


class ShardTree:
    """The shards and splits of a corpus, extended round by round.

    Parameters
    ----------
    counts: (V,) how often each word ends a history.
    edges: (B + 1,) first words of partitions, from `history.buckets`; a shard of round 1 has whole partitions.
    limit: largest number of rows in a shard.
    order: longest n-gram.
    """

    def __init__(self, counts: Int64, edges: Int64, limit: int, order: int) -> None:
        self.limit, self.order, self.vocabulary = limit, order, len(counts)
        self.shards: list[HistoryShard] = []
        self.splits: list[Split] = []
        self.rounds = 1
        self.edges = edges
        starts = np.concatenate([[0], np.cumsum(counts)])[edges]
        self.root: list[Target] = []
        self.shard_of = np.zeros(len(counts), np.int32)
        self._kept = self._left = 0
        part = 0
        while part < len(edges) - 1:
            stop = max(part + 1, int(np.searchsorted(starts, starts[part] + limit, "right")) - 1)
            rows = int(starts[stop] - starts[part])
            if rows > limit:
                word = int(edges[part] + np.argmax(counts[edges[part] : edges[stop]]))
                target = self._split((word,), rows, -1)
            else:
                target = self._shard(rows, parts=(part, stop))
            self.root.append(target)
            self.shard_of[edges[part] : edges[stop]] = target
            part = stop

    def grow(self, split: Split, words: Int32, counts: Int64) -> None:
        """Give a split its children. words: those before its history, in order of appearance; counts (V,): of them."""
        split.child_of = np.full(self.vocabulary, np.iinfo(np.int32).max, np.int32)
        for first, last, rows in self.divided(words, counts):
            if rows > self.limit:
                target = self._split((*split.history, int(words[first])), rows, split.number)
            else:
                target = self._shard(rows, floor=split.floor, parent=split.number)
            split.children.append(target)
            split.child_of[words[first:last]] = target

    def divided(self, words: Int32, counts: Int64) -> list[tuple[int, int, int]]:
        """The children of a split, as for `grow`: first and last + 1 of their words, and their rows."""
        result, sizes = [], counts[words]
        first, ends = 0, np.cumsum(sizes)
        while first < len(words):
            held = int(ends[first] - sizes[first])
            last = max(first + 1, int(np.searchsorted(ends, held + self.limit, "right")))
            result.append((first, last, int(ends[last - 1]) - held))
            first = last
        return result

    def left_over(self) -> list[Split]:
        """Splits without children, for the next round."""
        return [split for split in self.splits if not split.children]

    def next_round(self) -> None:
        """Begin a round: new shards and splits go to new files."""
        self.rounds += 1
        self._kept = self._left = 0

    def _shard(self, rows: int, **fields: object) -> Target:
        shard = HistoryShard(len(self.shards), self.rounds, self._kept, rows, **fields)  # type: ignore[arg-type]
        self.shards.append(shard)
        self._kept += rows
        return shard.number

    def _split(self, history: tuple[int, ...], rows: int, parent: int) -> Target:
        split = Split(len(self.splits), history, rows, self._left, parent)
        self.splits.append(split)
        if history[-1] == BOUNDARY or len(history) == self.order - 1:
            split.begin = self._kept
            pieces = -(-rows // self.limit)
            for cut in range(pieces):
                share = (cut + 1) * rows // pieces - cut * rows // pieces
                split.children.append(self._shard(share, floor=split.floor, parent=split.number, leaf=True))
        else:
            self._left += rows
        return ~split.number

    def is_leaf(self, split: Split) -> bool:
        """Whether a split's history is complete."""
        return bool(split.children) and split.child_of is None

    def route(self, windows: Int32, words: Int64) -> Int32:
        """(n,) the targets that print contexts as n-grams. Context i is windows[i, 1 : words[i] + 1], last word first.

        words (n,) ≥ 2. A split prints the n-grams of its history.
        """
        targets = self.shard_of[windows[:, 2]]
        for depth in range(1, self.order - 2):
            for code in np.unique(targets[targets < 0]).tolist():
                split = self.splits[~code]
                if split.floor == depth and split.child_of is not None:
                    deeper = np.flatnonzero((targets == code) & (words > depth + 1))
                    targets[deeper] = split.child_of[windows[deeper, depth + 2]]
        return targets

    def printed(self) -> Iterator[Target]:
        """Targets in the order of the file. `smooth` walks partitions backwards, so the children of a split reverse."""
        yield from self._down(self.root)

    def _down(self, targets: list[Target]) -> Iterator[Target]:
        for target in targets:
            yield target
            if target < 0:
                yield from self._down(self.splits[~target].children[::-1])

    def report(self) -> Sharding:
        """The statistics so far."""
        rounds = range(1, self.rounds + 1)
        rows = np.array([shard.rows for shard in self.shards] or [0])
        splits = [[split for split in self.splits if split.floor == r] for r in rounds]
        return Sharding(
            self.rounds,
            [sum(shard.round == r for shard in self.shards) for r in rounds],
            [len(result) for result in splits],
            int(rows.max()),
            int(np.median(rows)),
            [sum(split.rows for split in result) for result in splits],
        )


def slots_of(slots: list[Target], target_of: Int32) -> Int32:
    """(V,) the index in `slots` of each target (V,); arbitrary for words that do not occur."""
    targets = np.array(slots, np.int64)
    order = np.argsort(targets)
    result = np.searchsorted(targets[order], target_of)
    return order[np.minimum(result, len(slots) - 1)].astype(np.int32)
