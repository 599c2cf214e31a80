"""Lines of ARPA files from arrays, compiled; numbers have six decimals, so that they are right to 5e-7.

`lines` is the estimator's: there the width of numbers is fixed, and back-off weights are at most 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.lm.text.machine import load8, store8

ROOM = 16  # bytes that may be written past the last line
NUMBER_BYTES = 22
LARGEST = 1e12  # numbers are clipped to it


def room_for(grams: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64]) -> int:
    """Bytes that the lines of n-grams (n, k) may take; lengths (V,): bytes of words."""
    size: int = int(lengths[grams].sum()) + len(grams) * (2 * NUMBER_BYTES + grams.shape[1] + 2) + ROOM
    return size


@compiled
def _number(x, out, at):  # type: ignore[no-untyped-def]
    x = min(max(x, -LARGEST), LARGEST)
    if x < 0:
        out[at] = 45
        at += 1
    millionths = np.int64(abs(x) * 1e6 + 0.5)
    whole, rest = millionths // 1000000, millionths % 1000000
    digits, scale = 1, 10
    while whole >= scale:
        digits += 1
        scale *= 10
    for i in range(digits - 1, -1, -1):
        out[at + i] = 48 + whole % 10
        whole //= 10
    at += digits
    out[at] = 46
    for i in range(6, 0, -1):
        out[at + i] = 48 + rest % 10
        rest //= 10
    return at + 7


@compiled
def format_lines(grams, begin, stop, logp, backoff, highest, arena, starts, out):  # type: ignore[no-untyped-def]
    """Write the lines of n-grams begin .. stop-1 of grams (n, k) to `out`; how many bytes. highest: no back-offs."""
    at = 0
    for row in range(begin, stop):
        at = _number(logp[row], out, at)
        char = 9
        for j in range(grams.shape[1]):
            word = grams[row, j]
            out[at] = char
            at += 1
            start = starts[word]
            length = starts[word + 1] - start
            for done in range(0, length, 8):
                store8(out, at + done, load8(arena, start + done))
            at += length
            char = 32
        if not highest:
            out[at] = 9
            at = _number(backoff[row], out, at + 1)
        out[at] = 10
        at += 1
    return at
