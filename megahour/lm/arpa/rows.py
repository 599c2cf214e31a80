"""Look-up of n-grams, rows of word numbers, in an exact hash table."""

from __future__ import annotations

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.text.arrays import Int32

_ODD = np.uint64(0x9E3779B97F4A7C15)


def repeated(grams: Int32) -> int:
    """The first row of grams (n, k) that equals an earlier row, or -1."""
    row: int = _fill(grams, _slots(grams))
    return row


def histories(shorter: Int32, longer: Int32) -> Int32:
    """(m,) for each row of `longer` (m, k) the row of `shorter` (n, k-1) with its first k-1 words, or -1."""
    slots, rows = _slots(shorter), np.empty(len(longer), np.int32)
    _fill(shorter, slots)
    _find(shorter, longer, slots, rows)
    return rows


def _slots(grams: Int32) -> Int32:
    return np.full(1 << (2 * len(grams) + 1).bit_length(), -1, np.int32)


@compiled(inline=True)
def _place(shorter, slots, grams, row, k):  # type: ignore[no-untyped-def]
    """The slot of the row of `shorter` with the first k words of a row of `grams`, or a free slot."""
    mixed = np.uint64(0)
    for j in range(k):
        mixed = (mixed ^ np.uint64(grams[row, j])) * _ODD
        mixed ^= mixed >> np.uint64(29)
    mask = np.uint64(len(slots) - 1)
    slot = mixed & mask
    while slots[slot] >= 0:
        other, same = slots[slot], True
        for j in range(k):
            if grams[row, j] != shorter[other, j]:
                same = False
                break
        if same:
            break
        slot = (slot + np.uint64(1)) & mask
    return slot


@compiled
def _fill(grams, slots):  # type: ignore[no-untyped-def]
    for row in range(len(grams)):
        slot = _place(grams, slots, grams, row, grams.shape[1])
        if slots[slot] >= 0:
            return row
        slots[slot] = row
    return -1


@compiled
def _find(shorter, longer, slots, rows):  # type: ignore[no-untyped-def]
    for row in range(len(longer)):
        rows[row] = slots[_place(shorter, slots, longer, row, shorter.shape[1])]
