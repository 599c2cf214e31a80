"""n-grams in hash tables that follow a sentence: how they are laid out, filled and looked up.

n-grams of two words and more whose last but one word is the same lie in one *segment* of the table, an open-addressing
hash table of its own (the estimator's partitions, see `history`: each is built where it is still in the cache). A slot
has 16 bytes: a key, log10 p and log10 of the back-off weight. Keys are exact, nothing is told apart by a fingerprint:

    w2 w1          key = (HIGH | w1,  w2)
    wk … w2 w1     key = (1 + slot of w(k-1) … w2 w1 in the segment,  wk)

so a word and what stands before it is one walk through a segment, to the left, that ends with the longest n-gram that
the model knows, and a slot spells its n-gram. What is on the way to a longer n-gram but is none of the model's (pruned
models) is a *blank*: its log10 p is NaN.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from megahour.core.compiled import compiled
from megahour.lm.text.machine import prefetch
from megahour.lm.text.tokenise import BOUNDARY

SLOT_BYTES = 16
LINE = 4  # slots of a cache line: segments are whole lines
LOAD = 1.5  # slots for each n-gram
BLOCK = 256  # positions of a text whose look-ups are under way together

FULL, TWICE = -1, -2  # what `insert` may answer

_HIGH = np.uint64(1 << 31)
_WORD = np.uint64((1 << 32) - 1)
_HALF = np.uint64(32)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)
_LEVEL = 8  # bits of an order beside a slot


@njit(nogil=True, inline="always")
def _home(key, capacity):  # type: ignore[no-untyped-def]
    """Where a key's search begins: the first slot of a cache line, 0 .. capacity-LINE; capacity < 2**31."""
    mixed = key * _ODD
    mixed = (mixed ^ (mixed >> _HALF)) * _ODD
    return np.int64((mixed >> _HALF) * np.uint64(capacity // LINE) >> _HALF) * LINE


@njit(nogil=True, inline="always")
def _seek(keys, base, capacity, key):  # type: ignore[no-untyped-def]
    """Slot of a key, or of the free place where it would go; a segment always has one."""
    slot = _home(key, capacity)
    while True:
        held = keys[2 * (base + slot)]
        if held == key or held == 0:
            return slot
        slot += 1
        if slot == capacity:
            slot = 0


@compiled
def insert(  # type: ignore[no-untyped-def]
    keys, values, capacity, used, windows, at, logp, backoff, count, k, end, walked
):
    """Add `count` k-grams (k ≥ 2) to a segment that has the shorter ones. Returns (slots used, 0 or what failed, i).

    keys (2 capacity,) uint64 and values (4 capacity,) float32 are one memory. windows (m, ≥ k): row at[i] has the words
    of n-gram i from the last to the first; `end` stands for a BOUNDARY that is the last. walked (m,) int64, zeros to
    begin with: how far the words of a row are in already, for rows that n-grams of several orders share; or empty.
    Failures: FULL, and TWICE for an n-gram that is there already, both with the number i.
    """
    room = capacity - 1
    for i in range(count):
        row = at[i]
        word = windows[row, 0]
        if word == BOUNDARY:
            word = end
        parent, known = _HIGH | np.uint64(word), 1
        if len(walked) and walked[row]:
            parent, known = np.uint64(walked[row] >> _LEVEL), walked[row] & ((1 << _LEVEL) - 1)
            if known >= k:
                return used, TWICE, i
        new = False
        for j in range(known, k):
            key = (parent << _HALF) | np.uint64(windows[row, j])
            slot = _seek(keys, 0, capacity, key)
            parent = np.uint64(slot + 1)
            new = keys[2 * slot] == 0
            if new:
                if used == room:
                    return used, FULL, i
                used += 1
                keys[2 * slot] = key
                values[4 * slot + 2] = np.nan
                values[4 * slot + 3] = 0.0
        if not new and not np.isnan(values[4 * slot + 2]):
            return used, TWICE, i
        values[4 * slot + 2] = logp[i]
        values[4 * slot + 3] = backoff[i]
        if len(walked):
            walked[row] = np.int64(parent) << _LEVEL | k
    return used, 0, count


@compiled
def spell(keys, values, base, capacity, order, windows, logp, backoff, sizes):  # type: ignore[no-untyped-def]
    """List a segment's n-grams by order, in order of their slots; blanks are left out. Adds to sizes (order + 1,).

    windows[k] (room, order): words from the first to the last; logp[k], backoff[k] (room,) in arrays (order + 1, room).
    With rooms of zero only sizes are counted.
    """
    words = np.empty(order, np.int32)
    room = logp.shape[1]
    for slot in range(base, base + capacity):
        key = keys[2 * slot]
        if key == 0 or np.isnan(values[4 * slot + 2]):
            continue
        k = 0
        while True:
            words[k] = np.int32(key & _WORD)
            k += 1
            parent = key >> _HALF
            if parent & _HIGH:
                words[k] = np.int32(parent & (_HIGH - _ONE))
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


# In one piece for the reason that `sweep` gives: arrays that go to functions are counted by atomic additions.
@compiled
def score(  # type: ignore[no-untyped-def]
    tokens, begin, stop, order, closed, numbers, weights, segments, keys, values, end, logp, length
):
    """log10 p(tokens[p] | sentence so far) and the length of the n-gram that gave it, for positions begin .. stop-1.

    tokens: sentences that end in BOUNDARY; tokens[begin - 1] is one. closed: whether the history of every n-gram is in
    the table, so that no n-gram need be looked for that is longer than the last word's and one. numbers (4 V,) int32
    and weights (4 V,) float32 are one memory: log10 p, log10 back-off, segment of each word. segments (2 P,) int64:
    first slot and slots. keys, values: all segments. logp, length: written at p - begin.
    """
    place = np.empty(BLOCK, np.int64)  # slot of the n-gram that is looked for, in its segment
    wanted = np.empty(BLOCK, np.uint64)
    alive = np.empty(BLOCK, np.int32)
    best = np.empty(BLOCK, np.int32)
    found = np.empty(BLOCK, np.float32)
    # backs[k, i + 1]: of the k-gram that ends in position i of the block, as history of the next
    backs = np.zeros((order + 1, BLOCK + 1), np.float32)
    backs[1, 0] = weights[4 * BOUNDARY + 1]
    # longest[i + 1]: words of the longest n-gram, or blank, that ends in position i; all, where that tells nothing
    longest = np.full(BLOCK + 1, 1 if closed else order, np.int32)
    for start in range(begin, stop, BLOCK):
        size = min(BLOCK, stop - start)
        for i in range(min(16, size)):
            prefetch(numbers, 4 * np.int64(tokens[start + i]))
        living = 0
        for i in range(size):
            if i + 16 < size:
                prefetch(numbers, 4 * np.int64(tokens[start + i + 16]))
            word, before = np.int64(tokens[start + i]), np.int64(tokens[start + i - 1])
            predicted = end if word == BOUNDARY else word
            best[i], found[i] = 1, weights[4 * predicted]
            backs[1, i + 1] = weights[4 * word + 1]
            longest[i + 1] = 1 if closed else order
            if order > 1:
                segment = 2 * np.int64(numbers[4 * before + 2])
                key = ((_HIGH | np.uint64(predicted)) << _HALF) | np.uint64(before)
                slot = _home(key, segments[segment + 1])
                prefetch(keys, 2 * (segments[segment] + slot))
                wanted[i], place[i], alive[i] = key, slot, i
                living += 1
        # Whether an n-gram is there cannot be foretold: what follows has no branch that depends on it.
        for k in range(2, order + 1):
            still = 0
            backs[k, 1 : size + 1] = 0.0
            for index in range(living):
                i = alive[index]
                p, key, slot = start + i, wanted[i], place[i]
                segment = 2 * np.int64(numbers[4 * np.int64(tokens[p - 1]) + 2])
                base, capacity = segments[segment], segments[segment + 1]
                at = 2 * (base + slot)
                one, two, three = keys[at + 2] == key, keys[at + 4] == key, keys[at + 6] == key
                hit = (keys[at] == key) | one | two | three
                slot += one + 2 * two + 3 * three
                if not hit and keys[at + 6] != 0:  # a full line: rare
                    slot = _seek(keys, base, capacity, key)
                    hit = keys[2 * (base + slot)] == key
                value, back = values[4 * (base + slot) + 2], values[4 * (base + slot) + 3]
                counts = hit & (value == value)
                best[i] = k if counts else best[i]
                found[i] = value if counts else found[i]
                if k == order:
                    continue
                history = hit & (tokens[p] != BOUNDARY)
                backs[k, i + 1] = back if history else np.float32(0.0)
                longest[i + 1] = max(k, longest[i + 1]) if history else longest[i + 1]
                more = hit & (tokens[p - k + 1] != BOUNDARY) & (longest[i] >= k)
                key = (np.uint64(slot + 1) << _HALF) | np.uint64(tokens[p - k])
                place[i], wanted[i], alive[still] = _home(key, capacity), key, i
                prefetch(keys, 2 * (base + (place[i] if more else slot)))
                still += more
            living = still
        for i in range(size):
            total = np.float64(found[i])
            for k in range(1, order):
                total += backs[k, i] if k >= best[i] else np.float32(0.0)
            logp[start - begin + i] = total
            length[start - begin + i] = best[i]
        for k in range(1, order + 1):
            backs[k, 0] = backs[k, size]
        longest[0] = longest[size]


@compiled
def sum_sentences(tokens, begin, stop, logp, unknown, total, words, missing, lost):  # type: ignore[no-untyped-def]
    """Of each sentence Σ log10 p, tokens, how many of them are `unknown`, and Σ log10 p of these. Returns sentences."""
    sentence = 0
    total[0], words[0], missing[0], lost[0] = 0.0, 0, 0, 0.0
    for p in range(begin, stop):
        total[sentence] += logp[p - begin]
        words[sentence] += 1
        if tokens[p] == unknown:
            missing[sentence] += 1
            lost[sentence] += logp[p - begin]
        if tokens[p] == BOUNDARY:
            sentence += 1
            if sentence < len(total):
                total[sentence], words[sentence], missing[sentence], lost[sentence] = 0.0, 0, 0, 0.0
    return sentence


@compiled
def checksum(words, first):  # type: ignore[no-untyped-def]
    """Σ x_i (2 i + 1) modulo 2**64 over uint64 words whose numbers begin with `first`: parts can be summed up apart."""
    total = np.uint64(0)
    factor = np.uint64(2 * first + 1)
    for i in range(len(words)):
        total += words[i] * factor
        factor += np.uint64(2)
    return total
