"""What shards are counted and smoothed with, and what they tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from megahour.lm.arpa.lines import WordSpelling, spelling
from megahour.lm.estimate.sweep import SUMS
from megahour.lm.text.arrays import Bytes, Float64, Int32, Int64, Records

NAME = np.dtype([("key", "<i8"), ("sums", "<i4", (SUMS,))])
"""A context that occurs more than once: 8 × position where it first ends + its words; its sums."""
SHARE = np.dtype([("word", "<i4"), ("adjusted", "<i4"), ("raw", "<i4"), ("first", "<i8")])
"""An n-gram of a shared context: its last word, counts, and the position that ends its first occurrence."""


@dataclass(frozen=True)
class Text:
    """What all shards know: model order, thresholds (order + 2,) of pruning, spelling, and lengths (V,) of words."""

    order: int
    cutoffs: Int64
    spelling: WordSpelling
    lengths: Int32

    @staticmethod
    def of(order: int, cutoffs: Int64, arena: Bytes, starts: Int64) -> Text:
        """arena, starts: as of `tokenise.WordTable`."""
        return Text(order, cutoffs, spelling(arena, starts), np.diff(starts).astype(np.int32))

    @property
    def size(self) -> int:
        """Vocabulary size V."""
        return len(self.lengths)


@dataclass(frozen=True)
class Counted:
    """What counting a shard found.

    tally: (order + 1, TALLIES). words, word_sums: contexts of one word. unigrams, adjusted: shares of words' adjusted
    counts. names: by target, those of target t in edges[t] .. edges[t + 1], splits after shards. share: n-grams of the
    shared context, empty at floor 0. dropped (order + 1, 2): by order, contexts that occur more than once and lose
    n-grams to pruning, i.e. have a wildcard entry, and the sum of these entries.
    """

    tally: Int64
    words: Int32
    word_sums: Int64
    unigrams: Int32
    adjusted: Int64
    names: Records
    edges: Int64
    share: Records
    dropped: Int64


class Shared(NamedTuple):
    """p(w|h) of the context that a shard's histories share: words (n,), p (n,)."""

    words: Int32
    probability: Float64


@dataclass(frozen=True)
class Smoothing:
    """discounts (order + 2, 4); unigram (V,), `</s>` under BOUNDARY."""

    discounts: Float64
    unigram: Float64
