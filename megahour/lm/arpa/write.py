"""Writer of ARPA files: header, sections, and compiled formatting of lines with six decimals (an error of 5e-7).

The estimator uses `lines`, which is faster, but has numbers of fixed width, which must not be above 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.text.arrays import Int32, Int64
from megahour.lm.text.machine import load8, store8

ROOM = 16  # bytes after the last line that may be overwritten
NUMBER_BYTES = 22
LARGEST = 1e12  # larger numbers are clipped
PART = 1 << 16  # n-grams formatted at a time
TOKENIZER = b"# tokenizer: "  # begins a line before the header: the digest of the tokens that a model is made of
END_OF_MODEL = b"\n\\end\\\n"


def header(sizes: Sequence[int]) -> bytes:
    r"""The section \data\: numbers of n-grams by order."""
    return b"\\data\\\n" + b"".join(b"ngram %d=%d\n" % entry for entry in enumerate(sizes, 1))


def comment(tokenizer: str) -> bytes:
    """The line before the header of a model of tokens, which other programs skip; nothing without a digest."""
    return TOKENIZER + tokenizer.encode() + b"\n" if tokenizer else b""


def section(k: int) -> bytes:
    """The line before the k-grams."""
    return b"\n\\%d-grams:\n" % k


def room_for(grams: Int32, lengths: Int64) -> int:
    """Upper bound of the bytes that the lines of grams (n, k) take; lengths (V,): bytes of words."""
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
    """Write the lines of grams[begin:stop] (n, k) to `out`; return the bytes written. highest: no back-off weights."""
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
