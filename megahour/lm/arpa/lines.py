"""Lines of ARPA files as bytes: ``-1.234567<tab>the first words<tab>-0.301030``.

Numbers take nine bytes each, so that the size of a line follows from its words: threads know beforehand where in the
file their lines go. Below -10 that leaves five decimals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.lm.text.machine import copy16, load8, prefetch, store8
from megahour.lm.text.tokenise import BOUNDARY, PADDING, Bytes, Int64

NUMBER_BYTES = 9
ROOM = 32  # bytes that may be written past the last line
SLOT_BYTES = 14  # of a word that its slot holds
HEAD_BYTES = 7  # of a longer one: the other half of its slot says where the word is
LONGER = np.uint64(255)
START_BITS = np.uint64(40)
START_MASK, LENGTH_MASK = np.uint64((1 << 40) - 1), np.uint64(0xFFFF)
BLOCK = 256  # lines whose numbers are spelled together
AHEAD = 12  # lines between asking for a word's slot and copying it; for what a longer one is in the arena, NEAR
NEAR = 6


class WordSpelling(NamedTuple):
    """Words as they go into lines. slots: (2 V,) uint64, two a word: a space, its first SLOT_BYTES bytes, and its
    length; of a longer word a space, HEAD_BYTES bytes, its place in the arena (40 bits), its length (16 bits, 0 where
    that is too much for them) and LONGER."""

    slots: npt.NDArray[np.uint64]
    arena: Bytes
    starts: Int64


def spelling(arena: Bytes, starts: Int64) -> WordSpelling:
    """Of words by number: arena[starts[i]:starts[i + 1]], PADDING bytes behind the last one."""
    if len(arena) < starts[-1] + PADDING:
        arena = np.concatenate([arena, np.zeros(PADDING, np.uint8)])
    slots = np.zeros(2 * (len(starts) - 1), np.uint64)
    _fill_slots(arena, starts, slots.view(np.uint8))
    return WordSpelling(slots, arena, starts)


def line_bytes(k: int, highest: bool, lines: int, characters: int) -> int:
    """Bytes of `lines` lines of k-grams, whose words have `characters` bytes together."""
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
        if length > SLOT_BYTES:
            held = starts[word] | np.int64(length if length <= 0xFFFF else 0) << 40
            for i in range(7):
                slots[16 * word + 8 + i] = held >> 8 * i & 255


# Numbers are spelled a block at a time, without a branch, so that the compiler can do eight at once.
@compiled
def _spell_numbers(values, begin, end, digits):  # type: ignore[no-untyped-def]
    """The eight bytes behind the minus of numbers from -99.99999 to 0, values[begin:end], to digits[: end - begin].

    The decimal digits of x < 10⁸ as bytes, the first one lowest: two numbers of four digits at a time, then four of
    two, then eight.
    """
    for i in range(end - begin):
        value = np.float64(values[begin + i])
        six = value > -9.9999995  # decimals; else five
        x = np.uint64(np.int64(0.5 - value * (1e6 if six else 1e5)))
        high = (x * np.uint64(3518437209)) >> np.uint64(45)  # x // 10,000
        four = high | (x - high * np.uint64(10000)) << np.uint64(32)
        high = (four * np.uint64(10486) >> np.uint64(20)) & np.uint64(0x0000007F0000007F)
        two = high | (four - high * np.uint64(100)) << np.uint64(16)
        high = (two * np.uint64(103) >> np.uint64(10)) & np.uint64(0x000F000F000F000F)
        text = (high | (two - high * np.uint64(10)) << np.uint64(8)) | np.uint64(0x3030303030303030)
        one = (text & ~np.uint64(0xFFFF)) | (text >> np.uint64(8) & np.uint64(0xFF)) | np.uint64(0x2E00)
        two = (text & ~np.uint64(0xFFFFFF)) | (text >> np.uint64(8) & np.uint64(0xFFFF)) | np.uint64(0x2E0000)
        digits[i] = one if six else two


# Arrays go to intrinsics only: see the comment on reference counts in `sweep`.
@compiled
def spell_lines(  # type: ignore[no-untyped-def]
    k, highest, windows, at, logp, backoff, count, slots, arena, starts, end, out
):
    """Write the lines of `count` k-grams to `out` and return their bytes; `highest`: lines have no back-off.

    windows (m, order), at, logp, backoff: of `smooth`. slots, arena, starts: of `spelling`. end: the word that stands
    for a predicted BOUNDARY.
    """
    windows, at = windows.view(np.uint32), at.view(np.uint32)  # an index needs no test whether it is negative
    size = front = behind = np.int64(0)
    last = np.int64(-1)
    digits, weights = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    for block in range(0, count, BLOCK):
        stop = min(block + BLOCK, count)
        _spell_numbers(logp, block, stop, digits)
        if not highest:
            _spell_numbers(backoff, block, stop, weights)
        for i in range(block, stop):
            ahead, near = np.int64(at[min(i + AHEAD, count - 1)]), np.int64(at[min(i + NEAR, count - 1)])
            for j in range(k):
                prefetch(slots, 2 * np.int64(windows[ahead, j]))
                entry = slots[2 * np.int64(windows[near, j]) + 1]
                if entry >> np.uint64(56) == LONGER:
                    prefetch(arena, np.int64(entry & START_MASK) + SLOT_BYTES)
            out[size] = 45
            store8(out, size + 1, digits[i - block])
            size += NUMBER_BYTES
            row, same = np.int64(at[i]), last >= 0
            for j in range(1, k):
                same = same and windows[row, j] == windows[last, j]
            begin, left = size, k - 1
            if same:  # the words before the last one are those of the line above
                left = 0
                for done in range(0, behind - front, 16):
                    copy16(out, size + done, out, front + done)
                size += behind - front
            front, last = begin, row
            for j in range(left, -1, -1):
                word = windows[row, j]
                if j == 0:
                    behind = size
                    if word == BOUNDARY:
                        word = end
                copy16(out, size, slots, 2 * np.int64(word))
                entry = slots[2 * word + 1]
                length = np.int64(entry >> np.uint64(56))
                if length > SLOT_BYTES:
                    start, length = np.int64(entry & START_MASK), np.int64(entry >> START_BITS & LENGTH_MASK)
                    if length == 0:
                        length = starts[word + 1] - starts[word]
                    for done in range(HEAD_BYTES, length, 8):
                        store8(out, size + 1 + done, load8(arena, start + done))
                size += length + 1
            out[front] = 9
            if not highest:
                out[size], out[size + 1] = 9, 45
                store8(out, size + 2, weights[i - block])
                size += NUMBER_BYTES + 1
            out[size] = 10
            size += 1
    return size
