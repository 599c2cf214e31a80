"""Counts of n-grams of all lengths up to the order, of a text or from files: what models are estimated from.

The words are numbered as in `tokenise`. A sentence w1 w2 has the n-grams of `<s> w1 w2 </s>`, as SRILM counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megahour.core.errors import MegahourError
from megahour.lm.combine.trie import Int32, Int64, sort_rows
from megahour.lm.estimate.partitions import PADDING, Corpus
from megahour.lm.text.cut import WordCut, cut_words
from megahour.lm.text.tokenise import BOUNDARY, END, Bytes, WordTable


@dataclass(frozen=True)
class NgramCounts:
    """arena, starts (V + 1,): spellings by number, as of `partitions.Corpus`. By length k from 1: grams[k-1] (n, k) in
    the order of their numbers, each once; counts[k-1] (n,), above 0 but for words, all V of which are listed."""

    arena: Bytes
    starts: Int64
    grams: list[Int32]
    counts: list[Int64]

    @property
    def order(self) -> int:
        return len(self.grams)

    @property
    def words(self) -> int:
        """Vocabulary size V."""
        return len(self.starts) - 1

    @property
    def tokens(self) -> int:
        """Running words and sentence ends."""
        return int(self.counts[0].sum() - self.counts[0][BOUNDARY])

    def spell(self, gram: Sequence[int]) -> str:
        """The words of an n-gram, for messages."""
        words = (self.arena[self.starts[i] : self.starts[i + 1]].tobytes() for i in gram)
        return b" ".join(words).decode("utf-8", "replace")


def count_corpus(corpus: Corpus, order: int) -> NgramCounts:
    """The n-grams of a text in memory; some 60 bytes a token while it counts.

    A k-gram is found as a pair: the number that its first k - 1 words got among the shorter ones, and its last word.
    """
    tokens = corpus.tokens[PADDING - 1 :]
    last = np.where(tokens == BOUNDARY, END, tokens)  # what a position is as the last word of an n-gram
    words = np.bincount(last[1:], minlength=corpus.size)
    words[BOUNDARY] = words[END]
    grams, counts = [np.arange(corpus.size, dtype=np.int32)[:, None]], [words.astype(np.int64)]
    ends, number = np.arange(len(tokens) - 1), tokens[:-1].astype(np.int64)
    for _ in range(2, order + 1):  # ends: where the first words of an n-gram end; number: theirs
        keys = number * corpus.size + last[ends + 1]
        listed, number, each = np.unique(keys, return_inverse=True, return_counts=True)
        rows = grams[-1][listed // corpus.size]
        grams.append(np.column_stack([rows, (listed % corpus.size).astype(np.int32)]))
        counts.append(each.astype(np.int64))
        ends = ends + 1
        go_on = (tokens[ends] != BOUNDARY) & (ends + 1 < len(tokens))
        ends, number = ends[go_on], number[go_on]
    return NgramCounts(corpus.arena, corpus.starts, grams, counts)


def collect(table: WordTable, grams: Sequence[Int32], counts: Sequence[Int64], cut: WordCut) -> NgramCounts:
    """One table of n-grams that may be listed several times, whose counts are added up; rarer words become `<unk>`.

    grams[k-1] (n, k): of each length from 1, by the numbers of `table`. Words that are in no 1-gram are left out.

    Raises MegahourError: an n-gram that has such a word.
    """
    words = np.bincount(grams[0][:, 0], counts[0], len(table)).astype(np.int64)
    numbers, kept = cut_words(words, table, cut._replace(min_count=max(cut.min_count, 1)))
    spelled = NgramCounts(table.arena, table.starts[: len(table) + 1], list(grams), list(counts))
    for rows in grams[1:]:
        if len(missing := np.flatnonzero((words[rows] == 0).any(axis=1))):
            text = spelled.spell(rows[missing[0]].tolist())
            raise MegahourError(
                f"{text!r} is counted, but not each of its words", remedy="give counts of all lengths, from 1 on"
            )
    unigrams = np.bincount(numbers, words, len(kept)).astype(np.int64)
    levels, sums = [np.arange(len(kept), dtype=np.int32)[:, None]], [unigrams]
    for rows, each in zip(grams[1:], counts[1:], strict=True):
        renumbered, origin = sort_rows(numbers[rows], len(kept))
        first = np.ones(len(rows), bool)
        first[1:] = (renumbered[1:] != renumbered[:-1]).any(axis=1)
        begins = np.flatnonzero(first)
        levels.append(renumbered[begins])
        sums.append(np.add.reduceat(each[origin], begins) if len(begins) else each[:0])
    return NgramCounts(kept.arena, kept.starts[: len(kept) + 1], levels, sums)
