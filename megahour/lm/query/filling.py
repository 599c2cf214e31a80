"""Fills the segments of `lookup`, with n-grams in any order, or with a partition of the estimator."""

from __future__ import annotations

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.query.lookup import HALF, HIGH, LINE, home, matches
from megahour.lm.text.machine import prefetch, trailing_zeros
from megahour.lm.text.tokenise import BOUNDARY

FULL, TWICE = -1, -2  # errors
BATCH = 64  # n-grams whose lines are prefetched before the first is filled
_NOTHING = np.uint64(0)
_ENDS = np.float32(-0.0)


@compiled(inline=True)
def _place(keys, lines, key):  # type: ignore[no-untyped-def]
    """(slot of a key, True), or (the free slot for it, False). At least one slot must be free."""
    line = home(key, lines)
    while True:
        result = matches(keys, 2 * LINE * line, key)
        if result:
            return line * LINE + (trailing_zeros(result) >> 1), True
        free = matches(keys, 2 * LINE * line, _NOTHING)
        if free:
            return line * LINE + (trailing_zeros(free) >> 1), False
        line += 1
        if line == lines:
            line = 0


@compiled
def insert(keys, values, capacity, used, windows, at, logp, backoff, count, k):  # type: ignore[no-untyped-def]
    """Add `count` k-grams (k ≥ 2) to a segment that has the shorter ones already. Returns (slots used, code, index).

    keys (2 capacity,) uint64 and values (4 capacity,) float32 are one memory. windows (m, ≥ k): row at[i] has the words
    of n-gram i from the last to the first. Suffixes that the segment lacks are added as blanks. code: 0, or FULL, or
    TWICE if the segment has the n-gram; then index is that of the n-gram that failed.
    """
    room, lines = capacity - 1, capacity // LINE
    for i in range(count):
        row = at[i]
        slot, head, there = np.int64(0), HIGH | np.uint64(windows[row, 0]), False
        for j in range(1, k):
            key = (head << HALF) | np.uint64(windows[row, j])
            slot, there = _place(keys, lines, key)
            head = np.uint64(slot + 1)
            if not there:
                if used == room:
                    return used, FULL, i
                used += 1
                keys[2 * slot] = key
                values[4 * slot + 2] = np.nan
                values[4 * slot + 3] = 0.0
        if there and not np.isnan(values[4 * slot + 2]):
            return used, TWICE, i
        values[4 * slot + 2] = logp[i]
        values[4 * slot + 3] = backoff[i]
    return used, 0, count


@compiled
def insert_partition(  # type: ignore[no-untyped-def]
    keys, values, capacity, windows, order, at, logp, backoff, sizes, end, starts, seats, slots
):
    """Fill an empty segment with a partition's n-grams as `smooth` lists them. Returns 0 or FULL.

    keys, values: see `insert`. windows (m, order): sorted by history. at, logp, backoff (order + 1, ≥ sizes[k]): by
    order k, contexts from the last to the first; a weight of zero means that no longer n-gram begins with these words.
    end: the word to write for a predicted BOUNDARY. Scratch, int32: starts (order, ≥ m), seats (≥ V,), slots
    (2, ≥ sizes[k]).

    A k-gram and its suffix without the first word end in the same word w. The context of the suffix is the run of rows
    that has the k-gram's row; runs are visited in order, and seats[w] has the slot of the suffix in the current one. No
    n-gram may occur twice.
    """
    # unsigned: indexing needs no test for negative numbers
    windows, at, starts = windows.view(np.uint32), at.view(np.uint32), starts.view(np.uint32)
    seats, slots = seats.view(np.uint32), slots.view(np.uint32)
    lines = capacity // LINE
    if sizes[2 : order + 1].sum() >= capacity:
        return FULL
    wanted, places = np.empty(BATCH, np.uint64), np.empty(BATCH, np.int64)
    for n in range(1, order - 1):  # starts[n, i]: the first row of the run that shares n words of history with row i
        start = 0
        for i in range(1, len(windows)):
            same = windows[i, n] == windows[i - 1, n] and (n == 1 or starts[n - 1, i] < i)
            start = start if same else i
            starts[n, i] = start
        starts[n, 0] = 0
    for k in range(2, order + 1):
        passed, now, last = 0, k & 1, 1 - (k & 1)
        for first in range(0, sizes[k], BATCH):
            stop = min(first + BATCH, sizes[k])
            for i in range(first, stop):
                row = at[k, i]
                word = windows[row, 0]
                head = HIGH | np.uint64(end if word == BOUNDARY else word)
                if k > 2:
                    start = starts[k - 2, row]
                    while passed < sizes[k - 1] and starts[k - 2, at[k - 1, passed]] >= start:
                        seats[windows[at[k - 1, passed], 0]] = slots[last, passed]
                        passed += 1
                    head = np.uint64(seats[word] + 1)
                key = (head << HALF) | np.uint64(windows[row, k - 1])
                line = home(key, lines)
                prefetch(keys, 2 * LINE * line)
                wanted[i - first], places[i - first] = key, line
            for i in range(first, stop):
                key, line = wanted[i - first], places[i - first]
                free = matches(keys, 2 * LINE * line, _NOTHING)
                while not free:
                    line += 1
                    if line == lines:
                        line = 0
                    free = matches(keys, 2 * LINE * line, _NOTHING)
                slot = line * LINE + (trailing_zeros(free) >> 1)
                slots[now, i] = slot
                keys[2 * slot] = key
                values[4 * slot + 2] = logp[k, i]
                values[4 * slot + 3] = backoff[k, i] if backoff[k, i] != 0.0 else _ENDS
    return 0
