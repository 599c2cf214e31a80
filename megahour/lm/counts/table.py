"""Tables of n-gram counts of all orders, of a text or from files, from which models are estimated.

Words are numbered as in `tokenise`. A sentence w1 w2 has the n-grams of `<s> w1 w2 </s>`, as in SRILM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megahour.core.errors import MegahourError
from megahour.lm.combine.trie import sort_rows
from megahour.lm.estimate.partitions import PADDING, Corpus
from megahour.lm.text.arrays import Bytes, Int32, Int64
from megahour.lm.text.cut import WordCut, cut_words
from megahour.lm.text.tokenise import BOUNDARY, END, WordTable


@dataclass(frozen=True)
class NgramCounts:
    """Counts of n-grams. For k = 1 …: grams[k-1] (n, k), sorted, without duplicates, and counts[k-1] (n,) above 0.

    Unigrams are all V words; their counts may be 0. arena, starts (V + 1,): spellings, as in `partitions.Corpus`.
    """

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
        """Total count of words and sentence ends."""
        return int(self.counts[0].sum() - self.counts[0][BOUNDARY])

    def spell(self, gram: Sequence[int]) -> str:
        """The words of an n-gram, for messages."""
        words = (self.arena[self.starts[i] : self.starts[i + 1]].tobytes() for i in gram)
        return b" ".join(words).decode("utf-8", "replace")


def count_corpus(corpus: Corpus, order: int) -> NgramCounts:
    """Count the n-grams of a text in memory. Takes about 60 bytes per token.

    A k-gram is identified by the index of its first k - 1 words among the shorter n-grams, and its last word.
    """
    tokens = corpus.tokens[PADDING - 1 :]
    last = np.where(tokens == BOUNDARY, END, tokens)  # each position as the last word of an n-gram
    words = np.bincount(last[1:], minlength=corpus.size)
    words[BOUNDARY] = words[END]
    grams, counts = [np.arange(corpus.size, dtype=np.int32)[:, None]], [words.astype(np.int64)]
    ends, number = np.arange(len(tokens) - 1), tokens[:-1].astype(np.int64)
    for _ in range(2, order + 1):  # ends: positions where the first k - 1 words end; number: their index
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
    """Add up the counts of equal n-grams, and replace words outside the cut by `<unk>`.

    grams[k-1] (n, k) for k = 1 …: word numbers of `table`, in any order. Words without a unigram count are dropped.

    Raises MegahourError: an n-gram has such a word.
    """
    words = np.bincount(grams[0][:, 0], counts[0], len(table)).astype(np.int64)
    numbers, kept = cut_words(words, table, cut._replace(min_count=max(cut.min_count, 1)))
    spelled = NgramCounts(table.arena, table.starts[: len(table) + 1], list(grams), list(counts))
    for rows in grams[1:]:
        if len(missing := np.flatnonzero((words[rows] == 0).any(axis=1))):
            text = spelled.spell(rows[missing[0]].tolist())
            raise MegahourError(f"{text!r} is counted, but not all of its words", remedy="give counts of all orders")
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
