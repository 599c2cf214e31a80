"""KenLM's probing model: a hash table of words, the unigrams, and a hash table for each longer order.

A key lies in bucket key mod size, or in the first free bucket after it. The log probability of an n-gram is stored as
negative if no longer n-gram ends with its words, else as positive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.lm.kenlm.closed import NgramLevel
from megahour.lm.kenlm.hashes import ngram_keys, word_hashes
from megahour.lm.text.arrays import UInt64

MULTIPLIER = 1.5  # buckets per entry, as in KenLM's build_binary
_WORD = np.dtype([("key", "<u8"), ("number", "<u4")])
_MIDDLE = np.dtype([("key", "<u8"), ("logp", "<f4"), ("backoff", "<f4")])
_LONGEST = np.dtype([("key", "<u8"), ("logp", "<f4")])
_UNIGRAM = np.dtype([("logp", "<f4"), ("backoff", "<f4")])


class SameKey(Exception):
    """Two entries of a table have the same key. order: of the n-grams. item: row of the second."""

    def __init__(self, order: int, item: int) -> None:
        super().__init__(order, item)
        self.order, self.item = order, item


def tables(levels: Sequence[NgramLevel], words: list[bytes]) -> Iterator[npt.NDArray[np.generic]]:
    """The tables in the order of the file. Raises SameKey."""
    header = np.zeros(1, np.dtype([("version", "<u4"), ("words", "<u4")]))
    header["words"] = len(words)
    yield header
    hashes = word_hashes(words)
    places, size = _places(hashes[1:], len(words), 1)  # all but <unk>
    table = np.zeros(size, _WORD)
    table["key"][places], table["number"][places] = hashes[1:], np.arange(1, len(words))
    yield table
    first = levels[0]
    unigrams = np.zeros(len(first) + 1, _UNIGRAM)  # one more: the ARPA file may lack <unk>
    unigrams["logp"][:-1] = np.where(first.extends, abs(first.logp), first.logp)
    unigrams["backoff"][:-1] = first.backoff
    yield unigrams
    for k, level in enumerate(levels[1:], 2):
        keys = ngram_keys(level.grams)
        places, size = _places(keys, len(keys), k)
        longest = k == len(levels)
        table = np.zeros(size, _LONGEST if longest else _MIDDLE)
        table["key"][places] = keys
        table["logp"][places] = np.where(level.extends, abs(level.logp), -abs(level.logp))
        if not longest:
            table["backoff"][places] = level.backoff
        yield table


def _places(keys: UInt64, entries: int, order: int) -> tuple[npt.NDArray[np.int64], int]:
    """Buckets (n,) of keys, and the number of buckets of a table with `entries` entries. Raises SameKey."""
    size = max(entries + 1, int(np.float32(MULTIPLIER) * np.float32(entries)))  # rounded as in KenLM
    taken, places = np.zeros(size, np.uint64), np.empty(len(keys), np.int64)
    twice = int(_place(keys, taken, places))
    if twice >= 0:
        raise SameKey(order, twice)
    return places, size


@compiled
def _place(keys, taken, places):  # type: ignore[no-untyped-def]
    """Fill `places`. Returns the first item whose key is taken, or is 0, which marks free buckets; else -1."""
    size = len(taken)
    for item in range(len(keys)):
        key = keys[item]
        at = np.int64(key % np.uint64(size))
        while taken[at] != 0 and taken[at] != key:
            at += 1
            if at == size:
                at = np.int64(0)
        if taken[at] == key:
            return item
        taken[at], places[item] = key, at
    return -1
