"""Types of the data that shards are counted and smoothed with, and of what they exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from megahour.lm.arpa.lines import WordSpelling, spelling
from megahour.lm.estimate.sweep import SUMS
from megahour.lm.text.arrays import Bytes, Float64, Int32, Int64, Records

NAME = np.dtype([("key", "<i8"), ("sums", "<i4", (SUMS,))])
"""A context that occurs more than once. key: 8 × the position where it first ends + its length in words."""
SHARE = np.dtype([("word", "<i4"), ("adjusted", "<i8"), ("raw", "<i8"), ("first", "<i8")])
"""An n-gram of a shared context: its last word, its counts in all shards, and the position where it first ends."""


@dataclass(frozen=True)
class Text:
    """Data for all shards: order of the model, cutoffs (order + 2,), spelling and lengths (V,) in bytes of words."""

    order: int
    cutoffs: Int64
    spelling: WordSpelling
    lengths: Int32

    @staticmethod
    def of(order: int, cutoffs: Int64, arena: Bytes, starts: Int64) -> Text:
        """arena, starts: as in `tokenise.WordTable`."""
        return Text(order, cutoffs, spelling(arena, starts), np.diff(starts).astype(np.int32))

    def spell(self, number: int) -> str:
        """A word, for messages."""
        begin, end = self.spelling.starts[number : number + 2]
        return self.spelling.arena[begin:end].tobytes().decode("utf-8", "replace")

    @property
    def size(self) -> int:
        """Vocabulary size V."""
        return len(self.lengths)


@dataclass(frozen=True)
class Counted:
    """The counts of a shard.

    tally: (order + 1, TALLIES). words, word_sums: contexts of one word and their sums. unigrams, adjusted: words, and
    this shard's part of their adjusted counts. names: contexts by target, those of target t from edges[t] to
    edges[t + 1], splits after shards. share: n-grams of the shared context, empty at floor 0. dropped (order + 1, 2):
    by order, the contexts that occur more than once and lose n-grams to pruning (have a wildcard entry), and the sum
    of these entries.
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
    """p(w|h) of the context h that the histories of a shard share: words (n,), probability (n,)."""

    words: Int32
    probability: Float64
