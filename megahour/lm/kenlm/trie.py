"""KenLM's trie: n-grams sorted from the last word to the first, packed to bits, with pointers to the next level.

Words are numbered in order of their hashes. An entry holds its first word, 31 bits of the log probability (never
positive), 32 bits of the back-off weight, and the index of its first extension by a word on the left; its extensions
end where those of the next entry begin. Bits are counted from the lowest of each byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.lm.kenlm.closed import NgramLevel
from megahour.lm.kenlm.hashes import word_hashes
from megahour.lm.text.arrays import Bytes
from megahour.lm.text.machine import load8, store8

PROBABILITY, BACKOFF = 31, 32  # bits
_UNIGRAM = np.dtype([("logp", "<f4"), ("backoff", "<f4"), ("next", "<u8")])


class _Entries(NamedTuple):
    """The sorted entries of a level. first (n,): number of the first word. logp, backoff (n,)."""

    first: npt.NDArray[np.int64]
    logp: npt.NDArray[np.float32]
    backoff: npt.NDArray[np.float32]


def numbering(words: list[bytes]) -> npt.NDArray[np.int64]:
    """(V,) our word numbers in the order of the trie's: `<unk>` first, the others by their hashes."""
    return np.concatenate([[0], 1 + np.argsort(word_hashes(words)[1:], kind="stable")])


def tables(levels: Sequence[NgramLevel], words: list[bytes]) -> Iterator[npt.NDArray[np.generic]]:
    """The vocabulary and the levels, in the order of the file; `words` by our numbers."""
    order = numbering(words)
    rank = np.empty(len(order), np.int64)  # position of each row in its sorted level
    rank[order] = np.arange(len(order))
    number = rank
    hashes = np.zeros(len(words) + 1, np.uint64)  # their number, then the hashes; KenLM leaves room for <unk>
    hashes[0], hashes[1:-1] = len(words) - 1, word_hashes(words)[order[1:]]
    yield hashes
    unigrams = np.zeros(len(words) + 2, _UNIGRAM)
    unigrams["logp"][: len(words)], unigrams["backoff"][: len(words)] = levels[0].logp[order], levels[0].backoff[order]
    own: _Entries | None = None
    for level in levels[1:]:
        parents, first = rank[level.ending], number[level.grams[:, 0]]
        at = np.argsort(parents * len(words) + first, kind="stable")
        begins = np.concatenate([[0], np.cumsum(np.bincount(parents, minlength=len(rank)))])
        if own is None:
            unigrams["next"][: len(begins)] = begins
            yield unigrams
        else:
            yield _packed(own, begins, len(words), len(level))
        own = _Entries(first[at], level.logp[at], level.backoff[at])
        rank = np.empty(len(level), np.int64)
        rank[at] = np.arange(len(level))
    if own is not None:
        yield _packed(own, np.zeros(0, np.int64), len(words), 0)


def _packed(entries: _Entries, begins: npt.NDArray[np.int64], words: int, longer: int) -> Bytes:
    """A level as bits. begins (n + 1,): where the extensions of each entry begin, among `longer`; empty if none."""
    first, logp, backoff = entries
    word_bits, next_bits = words.bit_length(), longer.bit_length()
    bits = word_bits + PROBABILITY + (BACKOFF + next_bits if len(begins) else 0)
    packed = np.zeros(((1 + len(first)) * bits + 7) // 8 + 8, np.uint8)
    _pack(packed, bits, word_bits, first, logp.view(np.uint32), backoff.view(np.uint32), begins)
    return packed


@compiled
def _pack(packed, bits, word_bits, first, logp, backoff, begins):  # type: ignore[no-untyped-def]
    for i in range(len(first)):
        at = i * bits
        _write(packed, at, np.uint64(first[i]))
        _write(packed, at + word_bits, np.uint64(logp[i] & np.uint32(0x7FFFFFFF)))
        if len(begins):
            _write(packed, at + word_bits + PROBABILITY, np.uint64(backoff[i]))
            _write(packed, at + word_bits + PROBABILITY + BACKOFF, np.uint64(begins[i]))
    if len(begins):
        _write(packed, len(first) * bits + word_bits + PROBABILITY + BACKOFF, np.uint64(begins[len(first)]))


@compiled
def _write(packed, bit, value):  # type: ignore[no-untyped-def]
    """Write a number of at most 57 bits over zeros."""
    store8(packed, bit >> 3, load8(packed, bit >> 3) | (value << np.uint64(bit & 7)))
