"""The layout of n-grams in hash tables, their look-up and their listing.

n-grams of two words and more with the same last but one word are in one *segment*, a hash table (one partition of the
estimator, see `history`, so that it is built while it is in the cache). A slot has 16 bytes: a key, log10 p and log10
of the back-off weight. Four slots are a cache line, whose keys are compared at once. Keys are exact, not fingerprints:

    w2 w1          key = (HIGH | w1,  w2)
    wk … w2 w1     key = (1 + slot of w(k-1) … w2 w1 in the segment,  wk)

so the look-up of a word after a history walks through one segment, from right to left, and ends with the longest n-gram
of the model; and the words of an n-gram can be read from its slot. A key is in the line given by its hash, or in the
next one with room. A *blank* is an n-gram that a pruned model lacks, but that is a history of a longer one: its log10 p
is NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from megahour.core.compiled import compiled
from megahour.core.machine_code import Later

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
    """The line, 0 .. lines-1, where the search for a key begins; lines < 2**29."""
    mixed = key * _ODD
    mixed = (mixed ^ (mixed >> HALF)) * _ODD
    return np.int64((mixed >> HALF) * np.uint64(lines) >> HALF)


@compiled
def spell(keys, values, base, capacity, order, windows, logp, backoff, sizes):  # type: ignore[no-untyped-def]
    """List the n-grams of a segment by order, in order of their slots, without blanks. Adds to sizes (order + 1,).

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
    """Σ x_i (2 i + 1) modulo 2**64 over uint64 words, numbered from `first` on, so that parts can be added up."""
    total = np.uint64(0)
    factor = np.uint64(2 * first + 1)
    for i in range(len(words)):
        total += words[i] * factor
        factor += np.uint64(2)
    return total
