"""What all shards found together: the 0-shard, from which discounts and the probabilities of unigrams follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megahour.lm.estimate.discounts import Discount, discounts, unigram_probabilities
from megahour.lm.estimate.history import Int64
from megahour.lm.estimate.sweep import KEPT, SUMS, TALLIES
from megahour.lm.scale.shard_lines import by_target
from megahour.lm.scale.shard_types import Counted, Smoothing, Text
from megahour.lm.scale.shards import ShardTree
from megahour.lm.scale.shared_context import Closed, Shares, close_all, names_of
from megahour.lm.text.tokenise import BOUNDARY, END


@dataclass(frozen=True)
class Totals:
    """unigrams (V,): adjusted counts of words; contexts (V, SUMS): of one word, zero where it occurs once; tallies
    (targets, order + 1, TALLIES): of shards, then splits; closed: splits; names, edges: of splits, by target; dropped
    (order + 1, 2): see `Counted`."""

    unigrams: Int64
    contexts: Int64
    tallies: Int64
    closed: list[Closed]
    names: npt.NDArray[np.void]
    edges: Int64
    dropped: Int64

    @staticmethod
    def of(
        tree: ShardTree, text: Text, counted: Iterable[Counted], share_of: Callable[[int], Shares], counts: Int64
    ) -> Totals:
        """From what was found in each shard, in order, names not needed, and their shares of split histories.

        counts (V,): occurrences of words, which order 1 goes by.
        """
        unigrams, contexts = np.zeros(text.size, np.int64), np.zeros((text.size, SUMS), np.int64)
        if text.order == 1:
            unigrams += counts
        dropped = np.zeros((text.order + 1, 2), np.int64)
        tallies = np.zeros((len(tree.shards), text.order + 1, TALLIES), np.int64)
        for number, found in enumerate(counted):
            tallies[number] = found.tally
            contexts[found.words] = found.word_sums
            unigrams[found.unigrams] += found.adjusted
            dropped += found.dropped
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
        """From sums over shards, to which split histories add theirs. unigrams, contexts and dropped are changed."""
        for split, own in zip(tree.splits, closed, strict=True):
            if split.floor == 1:
                contexts[split.history[0]] = own.sums
                unigrams[own.grams["word"]] += 1
            dropped[split.floor + 1] += (own.sums[4] > 0, own.sums[4])
        unigrams[END], unigrams[BOUNDARY] = unigrams[BOUNDARY], 0
        names, edges = by_target(tree, *names_of(tree, closed))
        every = np.concatenate([tallies, *(own.tally[None] for own in closed)])
        return Totals(unigrams, contexts, every, closed, names, edges, dropped)

    def names_of(self, target: int) -> npt.NDArray[np.void]:
        """Names of splits that a target prints."""
        return self.names[self.edges[target] : self.edges[target + 1]]

    def sizes(self) -> list[int]:
        """n-grams by order, from 1."""
        return [len(self.unigrams), *self.tallies.sum(axis=0)[2:, KEPT].tolist()]

    def wildcards(self) -> list[tuple[int, int]]:
        """By order, from 1: contexts with a wildcard entry, and what these entries hold."""
        return [(int(entries), int(held)) for entries, held in self.dropped[1:]]

    def smoothing(self) -> tuple[Smoothing, list[Discount], dict[int, str]]:
        """Discounts as tables, as of `discounts.discounts`, and its fallbacks."""
        order = self.tallies.shape[1] - 1
        ones = np.bincount(self.unigrams[self.unigrams < 5], minlength=5)
        found, fallbacks = discounts([ones, *self.tallies.sum(axis=0)[2:, :5]])
        table = np.zeros((order + 2, 4))
        table[1 : order + 1, 1:] = found
        unigram = unigram_probabilities(self.unigrams, found[0], BOUNDARY)
        unigram[BOUNDARY] = unigram[END]
        return Smoothing(table, unigram), found, fallbacks
