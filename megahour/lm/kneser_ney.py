"""Interpolated modified Kneser-Ney smoothing (Chen & Goodman 1998, equations 26–30) with KenLM's conventions.

With a(·) the adjusted counts of `count.adjusted_counts`, h = w1…w(n-1), h' = w2…w(n-1) and n_j the number of n-grams of
an order with a = j:

    D(j)   = j - (j+1) · n_1/(n_1 + 2 n_2) · n_(j+1)/n_j          j = 1, 2, 3+;  D(0) = 0
    γ(h)   = (Σ_j D(j) · #{w : a(h w) = j} + Σ_(pruned w) a(h w)) / Σ_w a(h w)
    p(w|h) = (a(h w) - D(a(h w))) / Σ_w a(h w) + γ(h) · p(w|h')

As in `lmplz`: unigrams interpolate with 1/(V-1), where V counts `<unk>`, `<s>` and `</s>`; `<s>` is never predicted and
has log probability 0; pruning looks at raw counts, while discounts and sums use all n-grams. Where lmplz gives up or
wants `--discount_fallback`, the orders that cannot be estimated get D = 0.5, 1, 1.5 and `Estimate.fallbacks` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megahour.lm.arpa import NEVER, Float64, NgramModel
from megahour.lm.count import Bool, Corpus, Int64, Level, adjusted_counts, count_shard, shard_positions
from megahour.lm.vocabulary import BOS, Int32, Vocabulary

FALLBACK = (0.5, 1.0, 1.5)


@dataclass(frozen=True)
class Estimate:
    """A model, its discounts D(1), D(2), D(3+) per order, and the orders whose discounts are the fallback, with why."""

    model: NgramModel
    discounts: list[tuple[float, float, float]]
    fallbacks: dict[int, str]


@dataclass(frozen=True)
class _Counted:
    """One level of one shard with its adjusted counts and which n-grams pruning keeps."""

    level: Level
    adjusted: Int64
    kept: Bool


def estimate(
    corpus: Corpus, vocabulary: Vocabulary, order: int = 3, prune: Sequence[int] = (), shards: int = 1
) -> Estimate:
    """A model of `order` from `corpus`.

    `prune[k-1]`: drop k-grams that occur at most so often; the last value holds for all higher orders. The result does
    not depend on `shards`, the number of parts that are counted and smoothed one after the other.

    Raises ValueError when the corpus is empty, `order` < 1, or `prune` is not 0 for unigrams and non-decreasing.
    """
    thresholds = _thresholds(order, prune)
    if not corpus.words:
        raise ValueError("no words to count: the text is empty; give at least one sentence")
    counted = [_count(corpus, shard_positions(corpus, s, shards), order, thresholds) for s in range(shards)]
    unigrams = _unigram_counts(corpus, counted)
    # numbers of n-grams with adjusted counts 0 … 4, summed over shards: all that the discounts need
    tallies = [_tally(unigrams)]
    tallies += [sum((_tally(shard[k - 2].adjusted) for shard in counted), np.zeros(5)) for k in range(2, order + 1)]
    discounts, fallbacks = _discounts(tallies)

    unigram, model = _unigram_probabilities(unigrams, discounts[0]), _Assembly(corpus, order)
    for shard in counted:
        lower: Float64 = unigram
        for part, discount in zip(shard, discounts[1:], strict=True):
            lower, gamma = _interpolate(part, discount, lower)
            model.add(part, lower, gamma)
    return Estimate(model.finish(vocabulary, unigram), discounts, fallbacks)


def _thresholds(order: int, prune: Sequence[int]) -> list[int]:
    if order < 1:
        raise ValueError(f"order {order} is below 1; 3 is usual")
    thresholds = [*prune[:order], *[prune[-1] if prune else 0] * (order - len(prune))]
    if thresholds[0] != 0 or thresholds != sorted(thresholds):
        raise ValueError(f"prune {list(prune)}: must begin with 0 and not decrease; limit unigrams by the vocabulary")
    return thresholds


def _count(corpus: Corpus, positions: Int64, order: int, thresholds: list[int]) -> list[_Counted]:
    levels = count_shard(corpus, positions, order)
    above = [*levels[1:], None]
    return [
        _Counted(level, adjusted_counts(level, higher), level.raw > thresholds[level.order - 1])
        for level, higher in zip(levels, above, strict=False)
    ]


def _unigram_counts(corpus: Corpus, counted: list[list[_Counted]]) -> Int64:
    """Adjusted counts by word number: different words before, over all shards; raw in a unigram model."""
    if counted[0]:
        bigrams = np.concatenate([shard[0].level.suffix for shard in counted])
        return np.bincount(bigrams, minlength=corpus.vocabulary_size)
    return np.bincount(corpus.tokens[corpus.depth > 0], minlength=corpus.vocabulary_size)


def _tally(adjusted: Int64) -> Float64:
    return np.bincount(adjusted[adjusted < 5], minlength=5).astype(np.float64)


def _discounts(tallies: list[Float64]) -> tuple[list[tuple[float, float, float]], dict[int, str]]:
    found, fallbacks = [], {}
    for k, n in enumerate(tallies, 1):
        missing = [j for j in (1, 2, 3) if n[j] == 0]
        if missing:
            fallbacks[k] = f"no {k}-gram has an adjusted count of {missing[0]}: small, artificial or repeated text"
            found.append(FALLBACK)
            continue
        y = n[1] / (n[1] + 2 * n[2])
        d1, d2, d3 = (float(j - (j + 1) * y * n[j + 1] / n[j]) for j in (1, 2, 3))
        if not all(0 <= d <= j for j, d in enumerate((d1, d2, d3), 1)):
            fallbacks[k] = f"{k}-gram discounts {d1:.3f} {d2:.3f} {d3:.3f} are out of range: repeated sentences?"
            d1, d2, d3 = FALLBACK
        found.append((d1, d2, d3))
    return found, fallbacks


def _unigram_probabilities(adjusted: Int64, discount: tuple[float, float, float]) -> Float64:
    discounts = np.array([0.0, *discount])[np.minimum(adjusted, 3)]
    total = adjusted.sum()
    probability = (adjusted - discounts) / total + discounts.sum() / total / (len(adjusted) - 1)
    probability[BOS] = 1.0
    return np.asarray(probability, np.float64)


def _interpolate(part: _Counted, discount: tuple[float, float, float], lower: Float64) -> tuple[Float64, Float64]:
    """p(w|h) (n,) of a level's n-grams and γ(h) (c,) of its contexts; `lower` is p of its suffixes' order."""
    level, adjusted = part.level, part.adjusted
    discounts = np.array([0.0, *discount])[np.minimum(adjusted, 3)]
    contexts = len(level.context_first)
    denominator = np.bincount(level.context, adjusted, contexts)
    freed = np.bincount(level.context, np.where(part.kept, discounts, adjusted), contexts)
    gamma = freed / denominator
    probability = (adjusted - discounts) / denominator[level.context] + gamma[level.context] * lower[level.suffix]
    return probability, gamma


class _Assembly:
    """Joins the shards: a context's γ is computed in one shard and printed with the n-gram of another.

    Both know the position where that n-gram first ends in the corpus, which is the key of the join.
    """

    def __init__(self, corpus: Corpus, order: int) -> None:
        self.corpus, self.order = corpus, order
        self.first: list[list[Int64]] = [[] for _ in range(order + 1)]
        self.probability: list[list[Float64]] = [[] for _ in range(order + 1)]
        self.context_first: list[list[Int64]] = [[] for _ in range(order + 1)]
        self.gamma: list[list[Float64]] = [[] for _ in range(order + 1)]

    def add(self, part: _Counted, probability: Float64, gamma: Float64) -> None:
        k = part.level.order
        self.first[k].append(part.level.first[part.kept])
        self.probability[k].append(probability[part.kept])
        self.context_first[k - 1].append(part.level.context_first)
        self.gamma[k - 1].append(gamma)

    def finish(self, vocabulary: Vocabulary, unigram: Float64) -> NgramModel:
        size = self.corpus.vocabulary_size
        grams: list[Int32] = [np.arange(size, dtype=np.int32)[:, None]]
        probs, backoffs = [_log10(unigram)], [np.zeros(size)]
        if self.order > 1:
            words = self.corpus.tokens[np.concatenate(self.context_first[1])]
            backoffs[0][words] = _log10(np.concatenate(self.gamma[1]))
        for k in range(2, self.order + 1):
            first = np.concatenate(self.first[k])
            by_position = np.argsort(first)
            first = first[by_position]
            grams.append(self.corpus.tokens[first[:, None] + np.arange(1 - k, 1)])
            probs.append(_log10(np.concatenate(self.probability[k])[by_position]))
            backoffs.append(self._backoffs(k, first))
        return NgramModel(vocabulary, grams, probs, backoffs)

    def _backoffs(self, k: int, first: Int64) -> Float64:
        backoff = np.zeros(len(first))
        if k < self.order and len(first):
            contexts = np.concatenate(self.context_first[k])
            at = np.minimum(np.searchsorted(first, contexts), len(first) - 1)
            present = first[at] == contexts  # contexts that pruning removed are not printed
            backoff[at[present]] = _log10(np.concatenate(self.gamma[k])[present])
        return backoff


def _log10(probability: Float64) -> Float64:
    # Zero happens where a discount is zero: nothing is left for <unk>, or for backing off.
    return np.asarray(np.minimum(np.log10(np.maximum(probability, 10.0**NEVER)), 0.0), np.float64)
