"""Lines of ARPA files as bytes: ``-1.234567<tab>the first words<tab>-0.301030``.

Numbers take nine bytes each, so that the size of a line follows from its words: threads know beforehand where in the
file their lines go. Below -10 that leaves five decimals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.lm.text.machine import load8, store8
from megahour.lm.text.tokenise import BOUNDARY, PADDING, Bytes, Int64

NUMBER_BYTES = 9
ROOM = 32  # bytes that may be written past the last line
SLOT_BYTES = 14  # of a word that its slot holds


class Spelling(NamedTuple):
    """Words as they go into lines. slots: (2 V,) uint64, two a word: a space, its first SLOT_BYTES bytes, and its
    length or, where it is longer, 255; such words are read from the arena."""

    slots: npt.NDArray[np.uint64]
    arena: Bytes
    starts: Int64


def spelling(arena: Bytes, starts: Int64) -> Spelling:
    """Of words by number: arena[starts[i]:starts[i + 1]], PADDING bytes behind the last one."""
    if len(arena) < starts[-1] + PADDING:
        arena = np.concatenate([arena, np.zeros(PADDING, np.uint8)])
    slots = np.zeros(2 * (len(starts) - 1), np.uint64)
    _fill_slots(arena, starts, slots.view(np.uint8))
    return Spelling(slots, arena, starts)


def line_bytes(k: int, highest: bool, lines: int, characters: int) -> int:
    """Bytes of so many lines of k-grams, whose words have so many bytes together."""
    numbers = NUMBER_BYTES if highest else 2 * NUMBER_BYTES + 1
    return lines * (numbers + k + 1) + characters


@compiled
def _fill_slots(arena, starts, slots):  # type: ignore[no-untyped-def]
    for word in range(len(starts) - 1):
        length = starts[word + 1] - starts[word]
        slots[16 * word] = 32
        for i in range(min(length, SLOT_BYTES)):
            slots[16 * word + 1 + i] = arena[starts[word] + i]
        slots[16 * word + 15] = length if length <= SLOT_BYTES else 255


@compiled
def _digits(x):  # type: ignore[no-untyped-def]
    """The eight decimal digits of x < 10⁸ as bytes, the first one lowest: two numbers of four digits at a time, then
    four of two, then eight."""
    x = np.uint64(x)
    four = x // np.uint64(10000) | x % np.uint64(10000) << np.uint64(32)
    high = (four * np.uint64(10486) >> np.uint64(20)) & np.uint64(0x0000007F0000007F)
    two = high | (four - high * np.uint64(100)) << np.uint64(16)
    high = (two * np.uint64(103) >> np.uint64(10)) & np.uint64(0x000F000F000F000F)
    one = high | (two - high * np.uint64(10)) << np.uint64(8)
    return one | np.uint64(0x3030303030303030)


@compiled
def _number(x):  # type: ignore[no-untyped-def]
    """The eight bytes behind the minus of a number from -99.99999 to 0."""
    if x > -9.9999995:
        digits = _digits(np.int64(0.5 - x * 1e6))  # 0d dddddd
        return (digits & ~np.uint64(0xFFFF)) | (digits >> np.uint64(8) & np.uint64(0xFF)) | np.uint64(0x2E00)
    digits = _digits(np.int64(0.5 - x * 1e5))  # 0dd ddddd
    whole = digits >> np.uint64(8) & np.uint64(0xFFFF)
    return (digits & ~np.uint64(0xFFFFFF)) | whole | np.uint64(0x2E0000)


# Arrays go to intrinsics only: see the comment on reference counts in `sweep`.
@compiled
def spell_lines(  # type: ignore[no-untyped-def]
    k, highest, windows, at, logp, backoff, count, slots, arena, starts, end, out
):
    """Write the lines of `count` k-grams to `out` and return their bytes; `highest`: lines have no back-off.

    windows (m, order), at, logp, backoff: of `smooth`. slots, arena, starts: of `spelling`. end: the word that stands
    for a predicted BOUNDARY.
    """
    size = front = behind = np.int64(0)
    last, weight = np.int64(-1), np.float32(0.0)
    digits = _number(weight)
    for i in range(count):
        out[size] = 45
        store8(out, size + 1, _number(logp[i]))
        size += NUMBER_BYTES
        row, same = np.int64(at[i]), last >= 0
        for j in range(1, k):
            same = same and windows[row, j] == windows[last, j]
        begin, left = size, k - 1
        if same:  # the words before the last one are those of the line above
            left = 0
            for done in range(0, behind - front, 16):
                store8(out, size + done, load8(out, front + done))
                store8(out, size + done + 8, load8(out, front + done + 8))
            size += behind - front
        front, last = begin, row
        for j in range(left, -1, -1):
            word = windows[row, j]
            if j == 0:
                behind = size
                if word == BOUNDARY:
                    word = end
            tail = slots[2 * word + 1]
            store8(out, size, slots[2 * word])
            store8(out, size + 8, tail)
            length = np.int64(tail >> np.uint64(56))
            if length > SLOT_BYTES:
                start = starts[word]
                length = starts[word + 1] - start
                for done in range(SLOT_BYTES, length, 8):
                    store8(out, size + 1 + done, load8(arena, start + done))
            size += length + 1
        out[front] = 9
        if not highest:
            if backoff[i] != weight:  # most contexts occur once, and have the same
                weight = backoff[i]
                digits = _number(weight)
            out[size], out[size + 1] = 9, 45
            store8(out, size + 2, digits)
            size += NUMBER_BYTES + 1
        out[size] = 10
        size += 1
    return size
