"""Sets of n-grams given as rows of word numbers: exact, by a hash table of rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled

Int32 = npt.NDArray[np.int32]
_ODD = np.uint64(0x9E3779B97F4A7C15)


def repeated(grams: Int32) -> int:
    """Row of the first n-gram (n, k) that an earlier row has too, or -1."""
    row: int = _fill(grams, _slots(grams))
    return row


def histories(shorter: Int32, longer: Int32) -> Int32:
    """Rows (m,) of `shorter` (n, k-1) that have the first k-1 words of n-grams (m, k); -1 where none has."""
    slots, rows = _slots(shorter), np.empty(len(longer), np.int32)
    _fill(shorter, slots)
    _find(shorter, longer, slots, rows)
    return rows


def _slots(grams: Int32) -> Int32:
    return np.full(1 << (2 * len(grams) + 1).bit_length(), -1, np.int32)


@compiled(inline=True)
def _place(shorter, slots, grams, row, k):  # type: ignore[no-untyped-def]
    """Slot of the row that has the first k words of a row of `grams`, or of a free place."""
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
