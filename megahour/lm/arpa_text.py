"""Lines of ARPA files as bytes: ``-1.234567<tab>the first words<tab>-0.301030``.

Numbers take nine bytes each, so that the size of a line follows from its words: threads know beforehand where in the
file their lines go. Below -10 that leaves five decimals.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from megahour.lm.machine import load8, store8
from megahour.lm.tokenise import BOUNDARY

NUMBER_BYTES = 9
ROOM = 16  # bytes that may be written past the last line
THREE_DIGITS = np.array([int.from_bytes(f"{i:03d}".encode() + bytes(5), "little") for i in range(1000)], np.uint64)


def line_bytes(k: int, highest: bool, lines: int, characters: int) -> int:
    """Bytes of so many lines of k-grams, whose words have so many bytes together."""
    numbers = NUMBER_BYTES if highest else 2 * NUMBER_BYTES + 1
    return lines * (numbers + k + 1) + characters


@njit(cache=True, nogil=True)
def _write_number(x, three, out, at):  # type: ignore[no-untyped-def]
    """A number from -99.99999 to 0."""
    if x > -9.9999995:
        millionths = np.int64(0.5 - x * 1e6)
        out[at], out[at + 1], out[at + 2] = 45, 48 + millionths // 1000000, 46
        millionths %= 1000000
        store8(out, at + 3, three[millionths // 1000])
        store8(out, at + 6, three[millionths % 1000])
    else:
        hundred_thousandths = np.int64(0.5 - x * 1e5)
        whole, rest = hundred_thousandths // 100000, hundred_thousandths % 100000
        out[at], out[at + 1], out[at + 2], out[at + 3] = 45, 48 + whole // 10, 48 + whole % 10, 46
        out[at + 4], out[at + 5] = 48 + rest // 10000, 48 + rest // 1000 % 10
        store8(out, at + 6, three[rest % 1000])
    return at + 9


@njit(cache=True, nogil=True)
def write_lines(  # type: ignore[no-untyped-def]
    k, highest, windows, at, logp, backoff, count, arena, starts, end, three, out
):
    """Write the lines of `count` k-grams to `out` and return their bytes; `highest`: lines have no back-off.

    windows (m, order), at, logp, backoff: of `smooth`. end: the word that stands for a predicted BOUNDARY.
    """
    size = 0
    for i in range(count):
        size = _write_number(logp[i], three, out, size)
        row = at[i]
        char = 9
        for j in range(k - 1, -1, -1):
            word = windows[row, j]
            if j == 0 and word == BOUNDARY:
                word = end
            out[size] = char
            size += 1
            start = starts[word]
            length = starts[word + 1] - start
            store8(out, size, load8(arena, start))
            for done in range(8, length, 8):
                store8(out, size + done, load8(arena, start + done))
            size += length
            char = 32
        if not highest:
            out[size] = 9
            size = _write_number(backoff[i], three, out, size + 1)
        out[size] = 10
        size += 1
    return size
