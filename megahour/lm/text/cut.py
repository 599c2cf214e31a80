"""Vocabularies limited by size and count: the words to keep, and their new numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.text.arrays import Int64, Tokens
from megahour.lm.text.tokenise import RESERVED, UNKNOWN, WordTable


class WordCut(NamedTuple):
    """Which words to keep. All others become `<unk>`.

    most_frequent: size of the vocabulary, 0 without limit. Of words with equal counts those are kept whose bytes sort
    first. min_count: smallest count of a kept word.
    """

    most_frequent: int = 0
    min_count: int = 1

    @property
    def cuts(self) -> bool:
        return bool(self.most_frequent) or self.min_count > 1


ALL_WORDS = WordCut()


def cut_words(counts: Int64, table: WordTable, cut: WordCut) -> tuple[Tokens, WordTable]:
    """New numbers (V,) of all words of a table, and the table of the kept words, in their old order.

    counts (V,): occurrences of each word. Reserved words are always kept.
    """
    own = counts[len(RESERVED) : len(table)]
    kept = own >= cut.min_count
    if cut.most_frequent and np.count_nonzero(kept) > cut.most_frequent:
        least = np.partition(own, -cut.most_frequent)[-cut.most_frequent]
        words = table.words()
        tied = sorted(np.flatnonzero(own == least).tolist(), key=lambda i: words[i + len(RESERVED)])
        kept = own > least
        kept[tied[: cut.most_frequent - int(np.count_nonzero(kept))]] = True
    numbers: Tokens = np.full(len(table), UNKNOWN, np.int32)
    numbers[: len(RESERVED)] = range(len(RESERVED))
    numbers[len(RESERVED) :][kept] = len(RESERVED) + np.arange(np.count_nonzero(kept))
    words = table.words()
    return numbers, WordTable.of([words[i] for i in (np.flatnonzero(kept) + len(RESERVED)).tolist()])


@compiled
def renumber(tokens, numbers):  # type: ignore[no-untyped-def]
    """Replace tokens (T,) by their new numbers, in place; numbers (V,): by old number."""
    for i in range(len(tokens)):
        tokens[i] = numbers[tokens[i]]
