"""A vocabulary cut by count: which words are kept, and their new numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.text.tokenise import PADDING, RESERVED, UNKNOWN, Bytes, Int64, Tokens, WordTable, encode


class WordCut(NamedTuple):
    """Words that are kept: those that are among the `most_frequent` (0: all; ties go to the word whose bytes sort
    first) and occur `min_count` times. The others are `<unk>`."""

    most_frequent: int = 0
    min_count: int = 1

    @property
    def cuts(self) -> bool:
        return bool(self.most_frequent) or self.min_count > 1


ALL_WORDS = WordCut()


def cut_words(counts: Int64, table: WordTable, cut: WordCut) -> tuple[Tokens, WordTable]:
    """New numbers (V,) of all words, and a table of those that are kept, in the order that they had.

    counts (V,): of the words of `table`, of which the reserved ones are kept always.
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
    return numbers, table_of(table, np.flatnonzero(kept) + len(RESERVED))


def table_of(table: WordTable, numbers: Int64) -> WordTable:
    """Some words of a table, in order of their numbers here."""
    words = table.words()
    text = b"\n".join(words[i] for i in numbers.tolist())
    buffer: Bytes = np.zeros(len(text) + PADDING, np.uint8)
    buffer[: len(text)] = np.frombuffer(text, np.uint8)
    kept = WordTable()
    encode(buffer, len(text), kept, np.empty(2 * len(numbers) + 2, np.int32))
    return kept


@compiled
def renumber(tokens, numbers):  # type: ignore[no-untyped-def]
    """Tokens (T,) in place by their new numbers (V,)."""
    for i in range(len(tokens)):
        tokens[i] = numbers[tokens[i]]
