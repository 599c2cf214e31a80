"""Entropy pruning of back-off models (Stolcke 1998, equations 1–5, as SRILM's `ngram -prune`).

The cost of removing the n-gram h w alone:

    D = -p(h) { p(w|h) [log p(w|h') + log α'(h) - log p(w|h)] + [log α'(h) - log α(h)] (1 - Σ_v p(v|h)) }
    α'(h) = (1 - Σ_(v≠w) p(v|h)) / (1 - Σ_(v≠w) p(v|h'))
    score = e^D - 1, the relative change of the model's perplexity

Sums run over the words v that the model lists after h. The context of a kept n-gram is kept, so each n-gram is compared
by its *bound*, the highest score among it and all n-grams that begin with it. Models pruned with rising thresholds are
subsets of each other.

p(h) is from `context_probs`. For Kneser-Ney models their own p(h) are unsuitable (Chelba et al. 2010), and contexts
counted in the training text are better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.core.errors import MegahourError
from megahour.lm.combine.context_probs import from_model
from megahour.lm.combine.renormalise import LN10, lower_log10, renormalise
from megahour.lm.combine.trie import Trie, link
from megahour.lm.text.arrays import Float64


@dataclass(frozen=True)
class Pruned:
    """A pruned model. threshold: the lowest bound of a kept n-gram, inf if all possible ones are removed. before,
    after: n-grams by order."""

    trie: Trie
    threshold: float
    before: list[int]
    after: list[int]


def prune(
    trie: Trie, *, threshold: float = 0.0, size: int = 0, shortest: int = 2, contexts: Float64 | None = None
) -> Pruned:
    """Remove the n-grams whose loss changes the perplexity by less than `threshold`, or all but the best `size` ones.

    size: number of n-grams of all orders (not with `threshold`). shortest: keep all n-grams shorter than this, and all
    words. contexts (N,): log10 p(h) from `context_probs`; by default the model's own.

    Raises MegahourError: not exactly one of `threshold` and `size` is given, or `size` is below the n-grams to keep.
    """
    if (threshold > 0) == (size > 0):
        raise MegahourError(
            f"threshold {threshold}, size {size}: exactly one must be above 0", remedy="give one of them"
        )
    bounds = keep_scores(trie, scores(trie, contexts), shortest)
    kept = bounds >= threshold
    if size:
        kept, threshold = _highest(bounds, size)
    smaller = _keep(trie, kept)
    renormalise(smaller)
    return Pruned(smaller, threshold, trie.sizes, smaller.sizes)


def scores(trie: Trie, contexts: Float64 | None = None) -> Float64:
    """(N,) relative change of the perplexity if each n-gram alone is removed; 0 for words and node 0."""
    result = np.zeros(len(trie.links.word))
    probable = from_model(trie) if contexts is None else contexts
    _scores(*trie.links, trie.levels, trie.log10_prob, trie.log10_backoff, probable, result)
    return result


def keep_scores(trie: Trie, scores: Float64, shortest: int = 2) -> Float64:
    """(N,) the bound of each n-gram: the highest score among it and those that begin with it; inf if it must stay."""
    bounds = scores.copy()
    bounds[: trie.levels[max(2, min(shortest, trie.order + 1))]] = np.inf
    _raise_contexts(trie.links.parent, bounds)
    return bounds


def _highest(bounds: Float64, size: int) -> tuple[npt.NDArray[np.bool_], float]:
    """Which nodes to keep, node 0 and the `size` n-grams of highest bounds, and their lowest bound. Of equal ones the
    first are kept, so that contexts come before longer n-grams."""
    fixed = int(np.count_nonzero(bounds == np.inf)) - 1
    if size < fixed:
        raise MegahourError(f"{size} n-grams are too few: {fixed} must stay", remedy=f"give {fixed} or more")
    leave = len(bounds) - 1 - size
    if leave <= 0:
        return np.ones(len(bounds), np.bool_), 0.0
    least = float(np.partition(bounds, leave)[leave])
    kept = bounds > least
    kept[np.flatnonzero(bounds == least)[: size + 1 - np.count_nonzero(kept)]] = True
    return kept, least


def _keep(trie: Trie, kept: npt.NDArray[np.bool_]) -> Trie:
    renumbered = np.cumsum(kept, dtype=np.int32) - 1
    levels = np.concatenate([[0], renumbered[trie.levels[1:] - 1] + 1]).astype(np.int64)
    while levels[-2] == levels[-1]:  # no n-gram of the highest order is left
        levels = levels[:-1]
    links = link(levels, trie.links.word[kept], renumbered[trie.links.parent[kept]])
    return Trie(levels, links, trie.log10_prob[kept], trie.log10_backoff[kept])


@compiled
def _raise_contexts(parent, bounds):  # type: ignore[no-untyped-def]
    for node in range(len(parent) - 1, 0, -1):
        if bounds[node] > bounds[parent[node]]:
            bounds[parent[node]] = bounds[node]


@compiled
def _scores(word, parent, first, fail, levels, logp, backoff, history, out):  # type: ignore[no-untyped-def]
    lower = np.empty(levels[2])  # a context lists at most all words
    for context in range(1, levels[-2]):
        begin, end = first[context], first[context + 1]
        listed = listed_lower = 0.0
        for node in range(begin, end):
            lower[node - begin] = np.exp(LN10 * lower_log10(node, context, parent, fail, logp, backoff))
            listed += np.exp(LN10 * logp[node])
            listed_lower += lower[node - begin]
        left, room = max(1.0 - listed, 0.0), max(1.0 - listed_lower, 0.0)
        p_h = np.exp(LN10 * history[context])
        for node in range(begin, end):
            p, q = np.exp(LN10 * logp[node]), lower[node - begin]
            new_backoff = np.log((left + p) / (room + q))
            change = p * (np.log(q) + new_backoff - logp[node] * LN10)
            if left > 0.0:
                change += left * (new_backoff - backoff[context] * LN10)
            out[node] = np.expm1(-p_h * change)
