"""Lines of ARPA files with numbers of fixed width: ``-1.234567<tab>the first words<tab>-0.301030``.

A number takes nine bytes, so the size of a line follows from its words, and threads know in advance where in the file
their lines go. Numbers below -10 have five decimals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.lm.text.arrays import Bytes, Int64
from megahour.lm.text.machine import copy16, load8, prefetch, store8
from megahour.lm.text.tokenise import BOUNDARY, PADDING

NUMBER_BYTES = 9
ROOM = 32  # bytes after the last line that may be overwritten
SLOT_BYTES = 14  # longest word that its slot holds completely
HEAD_BYTES = 7  # first bytes of a longer word in its slot; the second half of the slot says where the word is
LONGER = np.uint64(255)
START_BITS = np.uint64(40)
START_MASK, LENGTH_MASK = np.uint64((1 << 40) - 1), np.uint64(0xFFFF)
BLOCK = 256  # lines whose numbers are formatted together
AHEAD = 24  # lines between the prefetch of a word's slot and its use
NEAR = 8  # the same for the bytes of a longer word in the arena


class WordSpelling(NamedTuple):
    """Words as they are copied to lines.

    slots: (2 V,) uint64, 16 bytes for each word: a space, the bytes of the word, and its length. A word of more than
    SLOT_BYTES has a space, HEAD_BYTES bytes, its offset in the arena (40 bits), its length (16 bits, 0 if it is larger)
    and LONGER. arena, starts: see `spelling`.
    """

    slots: npt.NDArray[np.uint64]
    arena: Bytes
    starts: Int64


def spelling(arena: Bytes, starts: Int64) -> WordSpelling:
    """The slots of words by number: word i is arena[starts[i] : starts[i + 1]]."""
    if len(arena) < starts[-1] + PADDING:
        arena = np.concatenate([arena, np.zeros(PADDING, np.uint8)])
    slots = np.zeros(2 * (len(starts) - 1), np.uint64)
    _fill_slots(arena, starts, slots.view(np.uint8))
    return WordSpelling(slots, arena, starts)


def line_bytes(k: int, highest: bool, lines: int, characters: int) -> int:
    """Size in bytes of `lines` lines of k-grams whose words have `characters` bytes in total.

    highest: k is the order of the model, whose lines have no back-off weight.
    """
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


# Formats a block of numbers without branches, so that the compiler can vectorise the loop.
@compiled
def _spell_numbers(values, begin, end, digits):  # type: ignore[no-untyped-def]
    """Format values[begin:end], from -99.99999 to 0: the eight bytes after the minus sign, to digits[: end - begin].

    The eight decimal digits of x < 10⁸ become bytes, the first in the lowest byte: x is split into two numbers of four
    digits, these into four numbers of two digits, these into eight digits.
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


# Passes arrays to intrinsics only: see the comment on reference counts in `sweep`.
@compiled
def spell_lines(  # type: ignore[no-untyped-def]
    k, highest, windows, at, logp, backoff, count, slots, arena, starts, end, out
):
    """Write the lines of `count` k-grams to `out` and return their size in bytes.

    highest: lines have no back-off weight. windows (m, order), at, logp, backoff: from `smooth`. slots, arena, starts:
    from `spelling`. end: the word that is printed for a predicted BOUNDARY.
    """
    windows, at = windows.view(np.uint32), at.view(np.uint32)  # unsigned: indexing needs no test for negative numbers
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
                if j == 1:
                    continue  # the same for many lines in a partition, or a neighbour
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
            if same:  # copy the words before the last one from the line above
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
