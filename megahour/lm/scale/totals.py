"""What all shards found together: the 0-shard, from which discounts and the probabilities of unigrams follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megahour.lm.arpa.lines import ROOM, line_bytes, spell_lines
from megahour.lm.estimate.discounts import USUAL, Discount, KneserNey, discounts, unigram_probabilities
from megahour.lm.estimate.smooth import NEVER, gammas
from megahour.lm.estimate.sweep import KEPT, SUMS, TALLIES
from megahour.lm.scale.shard_lines import by_target
from megahour.lm.scale.shard_types import Counted, Smoothing, Text
from megahour.lm.scale.shards import ShardTree
from megahour.lm.scale.shared_context import Closed, Shares, close_all, names_of
from megahour.lm.text.arrays import Int64
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

    def smoothing(self, how: KneserNey = USUAL) -> tuple[Smoothing, list[Discount], dict[int, str]]:
        """Discounts as tables, as of `discounts.discounts`, and its fallbacks."""
        order = self.tallies.shape[1] - 1
        ones = np.bincount(self.unigrams[self.unigrams < 5], minlength=5)
        result, fallbacks = discounts([ones, *self.tallies.sum(axis=0)[2:, :5]], how.fallback)
        table = np.zeros((order + 2, 4))
        table[1 : order + 1, 1:] = result
        unigram = unigram_probabilities(self.unigrams, result[0], BOUNDARY, how=how)
        unigram[BOUNDARY] = unigram[END]
        return Smoothing(table, unigram), result, fallbacks


def unigram_lines(text: Text, counts: Int64, contexts: Int64, smoothing: Smoothing) -> bytes:
    """counts (V,): how often each word ends a history; contexts (V, SUMS): of words that do so more than once."""
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
