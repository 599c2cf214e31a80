"""`states.step` for many pairs of a state and a word: the look-ups of a block wait for memory at the same time.

Each pass over a block reads the data that the previous pass prefetched: first the slots of the states and of their
suffixes, which have their words; then the n-grams of two words, of three, and so on, of the pairs with longer ones.
"""

from __future__ import annotations

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.query.lookup import HALF, HIGH, LINE, SLOT_BYTES, WORD, home, matches_at
from megahour.lm.query.states import LINE_BYTES, LOW, goes_on, is_state, word_weight
from megahour.lm.text.machine import float32_at, int32_at, int64_at, prefetch_at, trailing_zeros, uint64_at

BLOCK = 64  # pairs processed together
_NOTHING, _ONE, _TWO = np.uint64(0), np.uint64(1), np.uint64(2)


@compiled
def step_pairs(lm, states, words, logp, length, after):  # type: ignore[no-untyped-def]
    """`step` of states[i] and words[i], all arrays (N,). Returns the first pair that the model lacks, or -1."""
    context = np.empty((BLOCK, lm.order + 1), np.int64)
    backs = np.empty((BLOCK, lm.order + 1), np.float32)
    # unsigned: indexing needs no test for negative numbers
    count, owner, alive = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    keys, at, where = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    for first in range(0, len(states), BLOCK):
        stop = min(first + BLOCK, len(states))
        for i in range(first, stop):
            same = i > 0 and states[i] == states[i - 1]
            if not ((same or is_state(lm, states[i])) and 0 <= words[i] < lm.words):
                return i
        _unpack(lm, states[first:stop], owner, count, context, backs, alive, at, where)
        own = slice(first, stop)
        _look_up(lm, words[own], owner, count, context, alive, keys, at, where, logp[own], length[own], after[own])
        for i in range(first, stop):
            one, total = owner[i - first], logp[i]
            for k in range(np.uint64(length[i]), count[one] + _ONE):
                total += backs[one, k - _ONE]
            logp[i] = total
    return -1


@compiled
def _unpack(lm, states, owner, count, context, backs, alive, slots, bases):  # type: ignore[no-untyped-def]
    """`states.unpack` of a block. owner: the first pair of the block with the same state, which unpacks it for all.
    alive: pairs that are still read, with addresses of their slots and of the first slots of their segments."""
    living = np.uint64(0)
    for i in range(len(states)):
        owner[i] = owner[i - 1] if i and states[i] == states[i - 1] else i
        if owner[i] < i:
            continue
        high, low = states[i] >> 32, (states[i] & LOW) - 1
        count[i] = 0
        if high:
            base = lm.entries_at + SLOT_BYTES * int64_at(lm.segments_at + 16 * (high - 1))
            alive[living], slots[living], bases[living] = i, base + SLOT_BYTES * low, base
            prefetch_at(slots[living])
            living += _ONE
        elif low >= 0:
            context[i, 0], count[i] = low, 1
            prefetch_at(lm.words_at + 16 * low)
    while living:
        still = np.uint64(0)
        for index in range(living):
            i, slot = alive[index], slots[index]
            key, n = uint64_at(slot), count[i]
            context[i, n], backs[i, n] = np.int64(key & WORD), float32_at(slot + 12)
            count[i], before = n + _ONE, key >> HALF
            if before & HIGH:
                context[i, n + _ONE] = np.int64(before & (HIGH - _ONE))
                prefetch_at(lm.words_at + 16 * context[i, n + _ONE])
                count[i] = n + _TWO
                continue
            slots[still] = bases[index] + SLOT_BYTES * (np.int64(before) - 1)
            alive[still], bases[still] = i, bases[index]
            prefetch_at(slots[still])
            still += _ONE
        living = still
    for i in range(np.uint64(len(states))):
        if owner[i] == i and count[i]:
            n = count[i]
            backs[i, n - _ONE] = word_weight(lm, context[i, n - _ONE])
            for j in range(n >> _ONE):
                k = n - _ONE - j
                context[i, j], context[i, k] = context[i, k], context[i, j]
                backs[i, j], backs[i, k] = backs[i, k], backs[i, j]


@compiled
def _look_up(lm, words, owner, count, context, alive, keys, at, where, logp, length, after):  # type: ignore[no-untyped-def]
    """log10 p of the longest n-grams, without back-off weights. alive: pairs that may have longer n-grams, with their
    key, the address of its line, and the number of the segment."""
    living, block = np.uint64(0), np.uint64(len(words))
    for i in range(block):
        prefetch_at(lm.words_at + 16 * words[i])
        if count[owner[i]]:
            before = context[owner[i], 0]
            number = np.int64(int32_at(lm.words_at + 16 * before + 8))
            segment = lm.segments_at + 16 * number
            keys[living] = ((HIGH | np.uint64(words[i])) << HALF) | np.uint64(before)
            line = home(keys[living], int64_at(segment + 8) // LINE)
            alive[living], where[living] = i, number
            at[living] = lm.entries_at + SLOT_BYTES * int64_at(segment) + LINE_BYTES * line
            prefetch_at(at[living])
            living += _ONE
    for i in range(block):
        logp[i], length[i] = np.float64(float32_at(lm.words_at + 16 * words[i])), 1
        after[i] = 1 + words[i] if goes_on(lm, 1, word_weight(lm, words[i])) else 0
    k = np.int64(1)
    while living:
        still, k = np.uint64(0), k + 1
        for index in range(living):
            i, line, key = alive[index], at[index], keys[index]
            segment = lm.segments_at + 16 * where[index]
            base, lines = lm.entries_at + SLOT_BYTES * int64_at(segment), int64_at(segment + 8) // LINE
            same, free = matches_at(line, key), matches_at(line, _NOTHING)
            while not (same | free):
                line = base if line == base + LINE_BYTES * (lines - 1) else line + LINE_BYTES
                same, free = matches_at(line, key), matches_at(line, _NOTHING)
            if not same:
                continue
            slot = line + (SLOT_BYTES // 2) * np.int64(trailing_zeros(same))
            value, place = float32_at(slot + 8), 1 + (slot - base) // SLOT_BYTES
            if value == value:  # not a blank
                logp[i], length[i] = np.float64(value), k
            if goes_on(lm, k, float32_at(slot + 12)):
                after[i] = ((where[index] + 1) << 32) | place
            if k <= np.int64(count[owner[i]]):
                key = (np.uint64(place) << HALF) | np.uint64(context[owner[i], np.uint64(k - 1)])
                alive[still], where[still], keys[still] = i, where[index], key
                at[still] = base + LINE_BYTES * home(key, lines)
                prefetch_at(at[still])
                still += _ONE
        living = still
