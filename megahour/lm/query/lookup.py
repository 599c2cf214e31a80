"""n-grams in hash tables that follow a sentence: how they are laid out, found and listed.

n-grams of two words and more whose last but one word is the same lie in one *segment* of the table, a hash table of its
own (the estimator's partitions, see `history`: each is built where it is still in the cache). A slot has 16 bytes: a
key, log10 p and log10 of the back-off weight; four slots are a cache line, whose keys are compared at once. Keys are
exact, no n-gram is identified by a fingerprint alone:

    w2 w1          key = (HIGH | w1,  w2)
    wk … w2 w1     key = (1 + slot of w(k-1) … w2 w1 in the segment,  wk)

so a word and what stands before it is one walk through a segment, to the left, that ends with the longest n-gram that
the model knows, and a slot spells its n-gram. A key lies in the line that a hash gives, or, where that was full, in the
first one behind it that had room. What is on the way to a longer n-gram but is none of the model's (pruned models) is a
*blank*: its log10 p is NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from megahour.core.compiled import compiled
from megahour.core.later import Later

SLOT_BYTES = 16
LINE = 4  # slots of a cache line: segments are whole lines
LOAD = 1.5  # slots for each n-gram

HIGH = np.uint64(1 << 31)
WORD = np.uint64((1 << 32) - 1)
HALF = np.uint64(32)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)

matches: Any = Later("megahour.lm.query.line_keys", "matches")
matches_at: Any = Later("megahour.lm.query.line_keys", "matches_at")


@compiled(inline=True)
def home(key, lines):  # type: ignore[no-untyped-def]
    """The line, 0 .. lines-1, where a key's search begins; lines < 2**29."""
    mixed = key * _ODD
    mixed = (mixed ^ (mixed >> HALF)) * _ODD
    return np.int64((mixed >> HALF) * np.uint64(lines) >> HALF)


@compiled
def spell(keys, values, base, capacity, order, windows, logp, backoff, sizes):  # type: ignore[no-untyped-def]
    """List a segment's n-grams by order, in order of their slots; blanks are left out. Adds to sizes (order + 1,).

    keys (2 E,) uint64, values (4 E,) float32: one memory; the segment's slots are base .. base+capacity-1. windows[k]
    (room, order): words from the first to the last; logp[k], backoff[k] (room,) in arrays (order + 1, room). With rooms
    of zero only sizes are counted.
    """
    words = np.empty(order, np.int32)
    room = logp.shape[1]
    for slot in range(base, base + capacity):
        key = keys[2 * slot]
        if key == 0 or np.isnan(values[4 * slot + 2]):
            continue
        k = 0
        while True:
            words[k] = np.int32(key & WORD)
            k += 1
            parent = key >> HALF
            if parent & HIGH:
                words[k] = np.int32(parent & (HIGH - _ONE))
                k += 1
                break
            key = keys[2 * (base + np.int64(parent) - 1)]
        if room:
            n = sizes[k]
            for j in range(k):
                windows[k, n, j] = words[j]
            logp[k, n] = values[4 * slot + 2]
            backoff[k, n] = values[4 * slot + 3]
        sizes[k] += 1


@compiled
def checksum(words, first):  # type: ignore[no-untyped-def]
    """Σ x_i (2 i + 1) modulo 2**64 over uint64 words whose numbers begin with `first`: parts can be summed up apart."""
    total = np.uint64(0)
    factor = np.uint64(2 * first + 1)
    for i in range(len(words)):
        total += words[i] * factor
        factor += np.uint64(2)
    return total
