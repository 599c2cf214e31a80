"""Levenshtein alignment: the fewest substitutions, deletions and insertions that turn a reference into a hypothesis.

    d(i, j) = min(d(i-1, j-1) + [r_i ≠ h_j], d(i-1, j) + 1, d(i, j-1) + 1)

The last term makes a row sequential; min_j' (t(j') + j - j') over j' ≤ j is the same, so a running minimum of t(j) - j
gives a whole row at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Edits:
    """Counts of one alignment; `length` is that of the reference."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    length: int = 0

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per reference symbol; NaN without any."""
        return self.errors / self.length if self.length else float("nan")

    def __add__(self, other: Edits) -> Edits:
        return Edits(
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
            self.length + other.length,
        )


def align(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> Edits:
    """Edits of a shortest alignment; of equally short ones, one with many substitutions.

    Memory and time are (R + 1) · (H + 1) for R and H symbols.
    """
    numbers: dict[Hashable, int] = {}
    r = np.array([numbers.setdefault(symbol, len(numbers)) for symbol in reference], np.int32)
    h = np.array([numbers.setdefault(symbol, len(numbers)) for symbol in hypothesis], np.int32)
    steps = np.arange(len(h) + 1, dtype=np.int32)
    distance = np.empty((len(r) + 1, len(h) + 1), np.int32)
    distance[0] = steps
    for i in range(1, len(r) + 1):
        row = distance[i - 1] + 1
        row[1:] = np.minimum(row[1:], distance[i - 1, :-1] + (h != r[i - 1]))
        distance[i] = np.minimum.accumulate(row - steps) + steps
    i, j = len(r), len(h)
    substitutions = deletions = insertions = 0
    while i or j:
        here = distance[i, j]
        if i and j and here == distance[i - 1, j - 1] + (r[i - 1] != h[j - 1]):
            substitutions += int(r[i - 1] != h[j - 1])
            i, j = i - 1, j - 1
        elif i and here == distance[i - 1, j] + 1:
            deletions, i = deletions + 1, i - 1
        else:
            insertions, j = insertions + 1, j - 1
    return Edits(substitutions, deletions, insertions, len(r))
