"""Compiled parser of the lines of ARPA files: ``log10 p<blank>w1 … wk[<blank>log10 back-off]``.

Blanks are spaces and tabs; a line may end in a carriage return. Words are bytes in any encoding.
"""

from __future__ import annotations

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.text.tokenise import _find, _head, _insert

MORE, DONE, NUMBER, WORDS, EXTRA, UNKNOWN_WORD, POSITIVE, SECTION, REPEATED = range(9)
"""Why parsing ended: no whole line is left (MORE), all n-grams are read (DONE), or the error in the current line."""

NEVER = -99.0  # log10 of a probability of zero in ARPA files
LARGEST = 1e300  # of a number; infinity is none
_POWERS = 10.0 ** np.arange(0, 64)


@compiled(inline=True)
def _blank(char):  # type: ignore[no-untyped-def]
    return char == 32 or char == 9 or char == 13


@compiled
def _number(text, at, stop):  # type: ignore[no-untyped-def]
    """Parse text[at:stop] to (value, whether it is a number). -inf is NEVER; +inf and nan are not accepted."""
    negative = False
    if at < stop and (text[at] == 45 or text[at] == 43):
        negative = text[at] == 45
        at += 1
    if stop - at >= 3 and text[at] | 32 == 105 and text[at + 1] | 32 == 110 and text[at + 2] | 32 == 102:
        return NEVER, negative and (stop - at == 3 or stop - at == 8)  # -inf, -infinity
    digits, mantissa, scale, point = 0, 0, 0, False
    while at < stop:
        char = text[at]
        if 48 <= char <= 57:
            digits += 1
            if mantissa < 100_000_000_000_000_000:
                mantissa = 10 * mantissa + (char - 48)
                scale -= point
            else:
                scale += not point
        elif char == 46 and not point:
            point = True
        else:
            break
        at += 1
    if digits == 0:
        return 0.0, False
    if at < stop:
        if text[at] | 32 != 101:
            return 0.0, False
        at += 1
        down = False
        if at < stop and (text[at] == 45 or text[at] == 43):
            down = text[at] == 45
            at += 1
        if at == stop:
            return 0.0, False
        exponent = 0
        while at < stop:
            if not 48 <= text[at] <= 57 or exponent > 999:
                return 0.0, False
            exponent = 10 * exponent + (text[at] - 48)
            at += 1
        scale += -exponent if down else exponent
    value = np.float64(mantissa)
    while scale < 0:
        step = min(-scale, 63)
        value /= _POWERS[step]
        scale += step
    while scale > 0 and value < 1e300:
        step = min(scale, 63)
        value *= _POWERS[step]
        scale -= step
    if value > LARGEST:
        return 0.0, False
    return (-value if negative else value), True


@compiled(inline=True)
def _field(text, at, stop):  # type: ignore[no-untyped-def]
    """(begin, end) of the next field from `at` on; both are `stop` if there is none."""
    while at < stop and _blank(text[at]):
        at += 1
    begin = at
    while at < stop and not _blank(text[at]):
        at += 1
    return begin, at


@compiled(inline=True)
def _line_end(text, at, stop):  # type: ignore[no-untyped-def]
    while at < stop and text[at] != 10:
        at += 1
    return at


@compiled
def _weight(text, at, stop):  # type: ignore[no-untyped-def]
    """(log10 back-off, code) of the end of a line, after the words; the weight is 0 if there is none."""
    begin, end = _field(text, at, stop)
    if begin == stop:
        return 0.0, DONE
    value, good = _number(text, begin, end)
    if not good:
        return 0.0, NUMBER
    begin, end = _field(text, end, stop)
    return value, DONE if begin == stop else EXTRA


@compiled
def _next_line(text, at, stop, lines):  # type: ignore[no-untyped-def]
    """Begin and end of the next line that is not blank, begin and end of its first field, and lines + skipped lines.

    The end of the line is `stop` if text[at:stop] has no whole line.
    """
    while True:
        end = _line_end(text, at, stop)
        begin, last = _field(text, at, end) if end < stop else (at, at)
        if begin < end or end == stop:
            return at, end, begin, last, lines
        at = end + 1
        lines += 1


@compiled
def parse_unigrams(text, at, stop, row, rows, table, arena, starts, n, seen, logp, backoff):  # type: ignore[no-untyped-def]
    """Parse whole lines of unigrams from text[at:stop]. Words are numbered as in `tokenise`; seen, logp, backoff (V,).

    Returns (offset, n-grams read, lines read, words in the table, why it ended).
    """
    lines = np.int64(0)  # a literal would compile the functions that it is passed to twice
    while row < rows:
        at, end, begin, last, lines = _next_line(text, at, stop, lines)
        if end == stop:
            return at, row, lines, n, MORE
        if text[begin] == 92:
            return at, row, lines, n, SECTION
        value, good = _number(text, begin, last)
        if not good:
            return at, row, lines, n, NUMBER
        if value > 0:
            return at, row, lines, n, POSITIVE
        begin, last = _field(text, last, end)
        if begin == end:
            return at, row, lines, n, WORDS
        weight, code = _weight(text, last, end)
        if code != DONE:
            return at, row, lines, n, code
        head, hashed = _head(text, begin, last - begin)
        slot, number = _find(text, begin, last - begin, head, hashed, table, arena, starts)
        if number == 0:
            n = _insert(text, begin, last - begin, slot, head, table, arena, starts, n)
            number = n
        if seen[number - 1]:
            return at, row, lines, n, REPEATED
        seen[number - 1] = True
        logp[number - 1], backoff[number - 1] = value, weight
        row += 1
        at = end + 1
        lines += 1
    return at, row, lines, n, DONE


@compiled
def parse_ngrams(text, at, stop, row, rows, k, table, arena, starts, grams, logp, backoff):  # type: ignore[no-untyped-def]
    """Parse whole lines of k-grams from text[at:stop] into grams (rows, k), logp, backoff (rows,) from `row` on.

    Returns (offset, n-grams read, lines read, why it ended, index of the wrong word).
    """
    lines = np.int64(0)
    while row < rows:
        at, end, begin, last, lines = _next_line(text, at, stop, lines)
        if end == stop:
            return at, row, lines, MORE, 0
        if text[begin] == 92:
            return at, row, lines, SECTION, 0
        value, good = _number(text, begin, last)
        if not good:
            return at, row, lines, NUMBER, 0
        if value > 0:
            return at, row, lines, POSITIVE, 0
        for j in range(k):
            begin, last = _field(text, last, end)
            if begin == end:
                return at, row, lines, WORDS, j
            head, hashed = _head(text, begin, last - begin)
            _, number = _find(text, begin, last - begin, head, hashed, table, arena, starts)
            if number == 0:
                return at, row, lines, UNKNOWN_WORD, j
            grams[row, j] = number - 1
        weight, code = _weight(text, last, end)
        if code != DONE:
            return at, row, lines, code, 0
        logp[row], backoff[row] = value, weight
        row += 1
        at = end + 1
        lines += 1
    return at, row, lines, DONE, 0
