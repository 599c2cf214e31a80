"""Compiled parser and formatter of lines ``w1 … wk<blank>count``, in SRILM's and Google's files of counts."""

from __future__ import annotations

from megahour.core.compiled import compiled
from megahour.lm.arpa.parse import _field, _next_line
from megahour.lm.text.machine import load8, store8
from megahour.lm.text.tokenise import _find, _head, _insert

MORE, WORDS, NUMBER, LONG = range(4)
"""Why parsing ended: no whole line is left (MORE), or the error in the current line."""

LARGEST = 1 << 53  # counts are summed in float64
DIGITS = 20


@compiled
def parse_counts(text, stop, table, arena, starts, n, frozen, grams, lengths, counts):  # type: ignore[no-untyped-def]
    """Parse the whole lines of text[:stop] into grams (rows, order), lengths and counts (rows,).

    frozen: words that the table lacks become `<unk>`. Returns (rows, lines read, words in the table, why it ended).
    """
    at, row, lines = 0, 0, 0
    while True:
        at, end, begin, last, lines = _next_line(text, at, stop, lines)
        if end == stop:
            return row, lines, n, MORE
        k = 0
        while True:
            following, following_last = _field(text, last, end)
            if following == end:
                break  # text[begin:last] is the count
            if k == grams.shape[1]:
                return row, lines, n, LONG
            head, hashed = _head(text, begin, last - begin)
            slot, number = _find(text, begin, last - begin, head, hashed, table, arena, starts)
            if number == 0 and not frozen:
                n = _insert(text, begin, last - begin, slot, head, table, arena, starts, n)
                number = n
            grams[row, k] = max(number - 1, 0)
            k += 1
            begin, last = following, following_last
        if k == 0:
            return row, lines, n, WORDS
        value = 0
        for i in range(begin, last):
            if not 48 <= text[i] <= 57 or value > LARGEST:
                return row, lines, n, NUMBER
            value = 10 * value + (text[i] - 48)
        if value > LARGEST:
            return row, lines, n, NUMBER
        lengths[row], counts[row] = k, value
        row += value > 0
        at = end + 1
        lines += 1


@compiled
def format_counts(grams, counts, arena, starts, out):  # type: ignore[no-untyped-def]
    """Write the lines of n-grams (n, k) to `out`, with a tab before the count; return the number of bytes."""
    at = 0
    for row in range(len(grams)):
        for j in range(grams.shape[1]):
            start = starts[grams[row, j]]
            length = starts[grams[row, j] + 1] - start
            for done in range(0, length, 8):
                store8(out, at + done, load8(arena, start + done))
            at += length
            out[at] = 32
            at += 1
        out[at - 1] = 9
        value, digits = counts[row], 1
        while value >= 10:
            value //= 10
            digits += 1
        value = counts[row]
        for i in range(digits - 1, -1, -1):
            out[at + i] = 48 + value % 10
            value //= 10
        at += digits
        out[at] = 10
        at += 1
    return at
