"""Assignment of n-grams to partitions: ranges of sorted n-grams, balanced by a sample, even for skewed models.

By *suffix*: histories are sorted from their last word backwards and divided into ranges. A range has the n-grams and
the back-off weights of its histories. For p(w|h) and the sums over the words of a history it also needs

- the unigrams, which all tasks read, and
- the n-grams of the proper suffixes of its first history, at most `order` - 2 of them, which are sent to it, too. Only
  the range that they belong to writes them.

By *prefix*: n-grams in the order of the file are divided into ranges. Proper prefixes of the first n-gram of a range
are sent to it, too.

Bounds are as short as possible, so that few n-grams are sent twice: ranges begin within frequent words and between rare
ones (progressive sharding, Patil & Zheng 2017, in one round).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megahour.core.compiled import compiled
from megahour.core.stage import Artifact, Batches, ShardWriter
from megahour.lm.sharded.rows import NO_WORD
from megahour.lm.text.arrays import Int32, Int64, Records, load_array, rows_of, save_array

SAMPLES = 64  # per shard, whose size is then right to an eighth


@dataclass(frozen=True)
class Ranges:
    """bounds (B, D): the first keys of partitions 1 … B, sorted; words as in `rows`."""

    bounds: Int32

    def __len__(self) -> int:
        return len(self.bounds) + 1

    def places(self, keys: Int32) -> Int64:
        """(n,) the partition of each key (n, ≤ D)."""
        return self._found(keys)[0]

    def all_places(self, keys: Int32) -> tuple[Int64, Int64]:
        """All pairs (m ≥ n) of a key and a partition that needs it: index of the key (m,), partition (m,)."""
        first, more = self._found(keys)
        repeats = more + 1
        number = np.repeat(np.arange(len(keys)), repeats)
        begin = np.repeat(np.cumsum(repeats) - repeats, repeats)
        return number, first[number] + np.arange(len(number)) - begin

    def first_words(self, partition: int, words: int) -> tuple[int, int]:
        """(begin, end) of the words, of `words` in total, that belong to a partition."""
        return self._first_word(partition - 1, 0), self._first_word(partition, words)

    def above(self, partition: int) -> list[Int32]:
        """The proper prefixes of a partition's first key, which it shares with earlier ones, shortest first."""
        if partition == 0:
            return []
        bound = self.bounds[partition - 1]
        return [bound[:k] for k in range(1, int((bound != NO_WORD).sum()))]

    def _first_word(self, number: int, otherwise: int) -> int:
        """The first word that is not before a bound."""
        if not 0 <= number < len(self.bounds):
            return otherwise
        bound = self.bounds[number]
        return int(bound[0]) + int((bound[1:] != NO_WORD).any())

    def _found(self, keys: Int32) -> tuple[Int64, Int64]:
        padded = np.full((len(keys), self.bounds.shape[1]), NO_WORD, np.int32)
        padded[:, : keys.shape[1]] = keys
        first, more = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
        _locate(padded, self.bounds, first, more)
        return first, more


def read_ranges(artifact: Artifact, shard: int) -> Ranges:
    """Read the ranges of a shard of `lm-ranges`: 0 by suffix, 1 by prefix."""
    return Ranges(load_array(artifact, shard))


def cut_ranges(samples: Int32, per_range: int) -> Ranges:
    """Divide samples (n, D) into ranges of about `per_range` each."""
    ordered = samples[np.lexsort(samples.T[::-1])]
    new = np.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)])[: len(ordered)]
    run_starts = np.maximum.accumulate(np.where(new, np.arange(len(ordered)), 0))
    bounds: list[Int32] = []
    for at in np.unique(run_starts[per_range::per_range]).tolist():
        if at > 0:
            bound = np.full(samples.shape[1], NO_WORD, np.int32)
            differ = int(np.argmax(ordered[at] != ordered[at - 1])) + 1
            bound[:differ] = ordered[at, :differ]
            bounds.append(bound)
    return Ranges(np.array(bounds, np.int32).reshape(len(bounds), samples.shape[1]))


def write_ranges(batches: Batches, width: int, shard_rows: int, out: ShardWriter) -> None:
    """Write `.npy`: the bounds of partitions, from sampled keys (n, width)."""
    samples = np.concatenate([np.zeros((0, width), np.int32), *(rows_of(batch["key"]) for batch in batches)])
    ranges = cut_ranges(samples, min(SAMPLES, shard_rows))
    save_array(out, ".npy", ranges.bounds)
    out.stats["partitions"] = len(ranges)
    out.kept_all(len(samples))


def history_keys(rows: Records) -> Int32:
    """(n, order - 1) the histories of n-grams, last word first."""
    return _reversed(rows, 1)


def context_keys(rows: Records) -> Int32:
    """(n, order - 1) n-grams below the highest order as histories, last word first."""
    return _reversed(rows, 0)


def reversed_words(grams: Int32) -> Int32:
    """n-grams (n, k) of one length, last word first."""
    return np.ascontiguousarray(grams[:, ::-1])


def _reversed(rows: Records, without: int) -> Int32:
    words = np.ascontiguousarray(rows["words"])
    keys = np.full((len(rows), max(1, words.shape[1] - 1)), NO_WORD, np.int32)
    _turn(words, rows["length"].astype(np.int64) - without, keys)
    return keys


@compiled
def _turn(words, lengths, keys):  # type: ignore[no-untyped-def]
    for i in range(len(words)):
        for j in range(min(lengths[i], keys.shape[1])):
            keys[i, j] = words[i, lengths[i] - 1 - j]


@compiled
def _locate(keys, bounds, first, more):  # type: ignore[no-untyped-def]
    """first: number of bounds ≤ the key; more: number of following bounds that are longer and begin with the key."""
    for i in range(len(keys)):
        low, high = 0, len(bounds)
        while low < high:
            middle = (low + high) // 2
            above = False
            for j in range(keys.shape[1]):
                if bounds[middle, j] != keys[i, j]:
                    above = bounds[middle, j] > keys[i, j]
                    break
            if above:
                high = middle
            else:
                low = middle + 1
        first[i], end = low, low
        while end < len(bounds):
            begins = True
            for j in range(keys.shape[1]):
                if keys[i, j] < 0:
                    break
                if bounds[end, j] != keys[i, j]:
                    begins = False
                    break
            if not begins:
                break
            end += 1
        more[i] = end - low
