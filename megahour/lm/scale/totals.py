"""Sums over all shards, the 0-shard, which give the discounts and the probabilities of unigrams."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from megahour.lm.arpa.lines import ROOM, line_bytes, spell_lines
from megahour.lm.arpa.parse import NEVER
from megahour.lm.estimate.discounts import USUAL, Discount, KneserNey, Smoothing, smoothing_of
from megahour.lm.estimate.smooth import gammas
from megahour.lm.estimate.sweep import KEPT, SUMS, TALLIES
from megahour.lm.scale.shard_lines import by_target
from megahour.lm.scale.shard_types import Counted, Text
from megahour.lm.scale.shards import ShardTree
from megahour.lm.scale.shared_context import Closed, close_all, names_of
from megahour.lm.text.arrays import Int64, Records
from megahour.lm.text.tokenise import BOUNDARY, END


@dataclass(frozen=True)
class Totals:
    """Sums over all shards.

    unigrams (V,): adjusted counts of words. contexts (V, SUMS): sums of contexts of one word, zero for words that occur
    once. tallies (targets, order + 1, TALLIES): of shards, then splits. closed: counts of splits. names, edges: of
    splits, by target. dropped (order + 1, 2): see `Counted`.
    """

    unigrams: Int64
    contexts: Int64
    tallies: Int64
    closed: list[Closed]
    names: Records
    edges: Int64
    dropped: Int64

    @staticmethod
    def of(
        tree: ShardTree, text: Text, counted: Iterable[Counted], share_of: Callable[[int], Records], counts: Int64
    ) -> Totals:
        """Add up the counts of all shards, given in order; they need no names. share_of: the share of a shard.

        counts (V,): occurrences of words, for order 1.
        """
        unigrams, contexts = np.zeros(text.size, np.int64), np.zeros((text.size, SUMS), np.int64)
        if text.order == 1:
            unigrams += counts
        dropped = np.zeros((text.order + 1, 2), np.int64)
        tallies = np.zeros((len(tree.shards), text.order + 1, TALLIES), np.int64)
        for number, result in enumerate(counted):
            tallies[number] = result.tally
            contexts[result.words] = result.word_sums
            unigrams[result.unigrams] += result.adjusted
            dropped += result.dropped
        return Totals.closing(tree, text, unigrams, contexts, tallies, close_all(text, tree, share_of), dropped)

    @staticmethod
    def closing(
        tree: ShardTree,
        text: Text,
        unigrams: Int64,
        contexts: Int64,
        tallies: Int64,
        closed: list[Closed],
        dropped: Int64,
    ) -> Totals:
        """Add the counts of splits to the sums over shards. Changes unigrams, contexts and dropped in place."""
        for split, own in zip(tree.splits, closed, strict=True):
            if split.floor == 1:
                contexts[split.history[0]] = own.sums
                unigrams[own.grams["word"]] += 1
            dropped[split.floor + 1] += (own.sums[4] > 0, own.sums[4])
        unigrams[END], unigrams[BOUNDARY] = unigrams[BOUNDARY], 0
        names, edges = by_target(tree, *names_of(text, tree, closed))
        every = np.concatenate([tallies, *(own.tally[None] for own in closed)])
        return Totals(unigrams, contexts, every, closed, names, edges, dropped)

    def names_of(self, target: int) -> Records:
        """Names of splits that a target prints."""
        return self.names[self.edges[target] : self.edges[target + 1]]

    def sizes(self) -> list[int]:
        """n-grams by order, from 1."""
        return [len(self.unigrams), *self.tallies.sum(axis=0)[2:, KEPT].tolist()]

    def wildcards(self) -> list[tuple[int, int]]:
        """By order, from 1: the number of contexts with a wildcard entry, and the sum of the entries."""
        return [(int(entries), int(held)) for entries, held in self.dropped[1:]]

    def smoothing(self, how: KneserNey = USUAL) -> tuple[Smoothing, list[Discount], dict[int, str]]:
        """See `discounts.smoothing_of`."""
        return smoothing_of(self.unigrams, self.tallies.sum(axis=0)[2:, :5], how)


def unigram_lines(text: Text, counts: Int64, contexts: Int64, smoothing: Smoothing) -> bytes:
    """The lines of unigrams. counts (V,): how often each word ends a history; contexts (V, SUMS): see `Totals`."""
    size, highest = text.size, text.order == 1
    unigram = smoothing.unigram.copy()
    unigram[BOUNDARY] = 1.0
    logp = np.log10(np.maximum(unigram, 10.0**NEVER)).astype(np.float32)
    backoff = np.zeros(size, np.float32)
    if not highest:
        several = contexts[:, 0] > 0
        weights = np.empty(int(several.sum()))
        gammas(contexts[several], smoothing.discounts[2], weights)
        backoff[several] = weights
        once = np.empty(1)
        gammas(np.array([[1, 1, 0, 0, 0]] if text.cutoffs[2] < 1 else [[1, 0, 0, 0, 1]]), smoothing.discounts[2], once)
        backoff[(counts > 0) & ~several] = once[0]
    words = np.arange(size, dtype=np.int32)
    out = np.empty(line_bytes(1, highest, size, int(text.spelling.starts[-1])) + ROOM, np.uint8)
    used = spell_lines(1, highest, words[:, None], words, logp, backoff, size, *text.spelling, BOUNDARY, out)
    return out[:used].tobytes()
