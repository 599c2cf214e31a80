"""Edit distance and alignments: the fewest substitutions, deletions and insertions from a reference to a hypothesis.

    d(i, j) = min(d(i-1, j-1) + [r_i ≠ h_j], d(i-1, j) + 1, d(i, j-1) + 1)

The last term makes each row sequential. With t(j) the minimum of the other two, d(i, j) = min (t(j') + j - j') over
j' ≤ j, so a running minimum of t(j) - j gives a whole row at once. `distance` computes no alignment and is
bit-parallel; `match` pairs only equal words.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.compiled import compiled

TABLE = 1 << 22
"""Cells, 4 bytes each, up to which `pairs` holds the whole table; beyond, it computes blocks of rows twice."""


@dataclass(frozen=True)
class Edits:
    """Edit counts of an alignment; `length` is the length of the reference."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    length: int = 0

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per reference symbol; NaN for an empty reference."""
        return self.errors / self.length if self.length else float("nan")

    def __add__(self, other: Edits) -> Edits:
        return Edits(*map(add, vars(self).values(), vars(other).values()))


def align(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> Edits:
    """Count the edits of a minimum-cost alignment. Ties prefer substitutions and matches.

    Time is proportional to R · H for R and H symbols, memory to √R · H beyond `TABLE` cells.

    >>> align("the cat sat".split(), "the hat sat down".split())
    Edits(substitutions=1, deletions=0, insertions=1, length=3)
    """
    alignment = pairs(reference, hypothesis)
    deletions, insertions = sum(j < 0 for _, j in alignment), sum(i < 0 for i, _ in alignment)
    substitutions = sum(i >= 0 and j >= 0 and reference[i] != hypothesis[j] for i, j in alignment)
    return Edits(substitutions, deletions, insertions, len(reference))


def pairs(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The alignment that `align` counts, as ordered positions (i, j): j is -1 at a deletion, i is -1 at an insertion.

    >>> pairs("abc", "xbc")
    [(0, 0), (1, 1), (2, 2)]
    """
    numbers: dict[Hashable, int] = {}
    r = np.array([numbers.setdefault(symbol, len(numbers)) for symbol in reference], np.int32)
    h = np.array([numbers.setdefault(symbol, len(numbers)) for symbol in hypothesis], np.int32)
    block = max(1, math.isqrt(len(r)) if (len(r) + 1) * (len(h) + 1) > TABLE else len(r))
    begins = range(0, max(1, len(r)), block)
    first_rows = [np.arange(len(h) + 1, dtype=np.int32)]
    for begin in begins[:-1]:
        first_rows.append(_rows(r[begin : begin + block], h, first_rows[-1])[-1].copy())
    i, j = len(r), len(h)
    alignment: list[tuple[int, int]] = []
    for begin, first_row in zip(reversed(begins), reversed(first_rows), strict=True):
        distance = _rows(r[begin : begin + block], h, first_row)  # of i from `begin`
        while i > begin or (j and not begin):
            here, above = distance[i - begin, j], distance[i - begin - 1] if i > begin else None
            if above is not None and j and here == above[j - 1] + (r[i - 1] != h[j - 1]):
                i, j = i - 1, j - 1
                alignment.append((i, j))
            elif above is not None and here == above[j] + 1:
                i -= 1
                alignment.append((i, -1))
            else:
                j -= 1
                alignment.append((-1, j))
    return alignment[::-1]


def _rows(r: NDArray[np.int32], h: NDArray[np.int32], first: NDArray[np.int32]) -> NDArray[np.int32]:
    """(len(r) + 1, H + 1) the rows of the table from the row `first` on, for the reference symbols r."""
    steps = np.arange(len(h) + 1, dtype=np.int32)
    rows = np.empty((len(r) + 1, len(h) + 1), np.int32)
    rows[0] = first
    for i in range(1, len(r) + 1):
        row = rows[i - 1] + 1
        row[1:] = np.minimum(row[1:], rows[i - 1, :-1] + (h != r[i - 1]))
        rows[i] = np.minimum.accumulate(row - steps) + steps
    return rows


def distance_within(part: NDArray[np.int32], whole: NDArray[np.int32]) -> int:
    """Fewest edits that make `part` (R,) a part of `whole` (H,), in memory proportional to H.

    Source: Sellers, "The theory and computation of evolutionary distances: pattern recognition", 1980.

    >>> distance_within(np.array([1, 2, 9]), np.array([7, 1, 2, 3, 7]))
    1
    """
    row = np.zeros(len(whole) + 1, np.int32)
    for symbol in np.asarray(part)[:, None]:
        row = _rows(symbol, whole, row)[-1]
    return int(row.min())


def distance(reference: Sequence[Any], other: Sequence[Any]) -> int:
    """Levenshtein distance: bit-parallel, with a column of the table in one integer (Hyyrö 2003, after Myers 1999).

    >>> distance("kitten", "sitting")
    3
    """
    if not reference:
        return len(other)
    where: dict[Any, int] = {}
    for i, symbol in enumerate(reference):
        where[symbol] = where.get(symbol, 0) | 1 << i
    full = (1 << len(reference)) - 1
    top = 1 << (len(reference) - 1)
    up, down, score = full, 0, len(reference)  # vertical differences of +1 and of -1
    for symbol in other:
        match = where.get(symbol, 0)
        diagonal = (((match & up) + up) ^ up) | match | down
        right, left = down | (full & ~(diagonal | up)), up & diagonal  # horizontal differences
        score += bool(right & top) - bool(left & top)
        right, left = ((right << 1) | 1) & full, (left << 1) & full
        up, down = left | (full & ~(diagonal | right)), right & diagonal
    return score


def match(written: Sequence[str], spoken: Sequence[str]) -> NDArray[np.int64]:
    """For each written word, the position of the equal spoken word in a longest common subsequence, or -1.

    >>> match("a b c".split(), "b c d".split()).tolist()
    [-1, 0, 1]
    """
    symbols = {word: i for i, word in enumerate(dict.fromkeys([*written, *spoken]))}
    a, b = (np.array([symbols[word] for word in words], np.int64) for words in (written, spoken))
    partner: NDArray[np.int64] = _match(a, b)
    return partner


@compiled
def _match(a, b):  # type: ignore[no-untyped-def]
    rows, columns = a.shape[0], b.shape[0]
    came = np.zeros((rows + 1, columns + 1), np.uint8)  # 0 diagonal, 1 from above (deletion), 2 from the left
    cost = np.arange(columns + 1)
    for i in range(1, rows + 1):
        diagonal = cost[0]
        cost[0] = i
        for j in range(1, columns + 1):
            best, move = diagonal + (0 if a[i - 1] == b[j - 1] else 2), 0
            if cost[j] + 1 < best:
                best, move = cost[j] + 1, 1
            if cost[j - 1] + 1 < best:
                best, move = cost[j - 1] + 1, 2
            diagonal = cost[j]
            cost[j] = best
            came[i, j] = move
    partner = np.full(rows, -1, np.int64)
    i, j = rows, columns
    while i > 0 and j > 0:  # words left over at an edge have no partner
        if came[i, j] == 0:
            i, j = i - 1, j - 1
            if a[i] == b[j]:
                partner[i] = j
        elif came[i, j] == 1:
            i -= 1
        else:
            j -= 1
    return partner
