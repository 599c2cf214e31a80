"""Interpolation of several models to one back-off model, as by SRILM's `ngram -mix-lm` with weights `-lambda`.

Every n-gram that any model lists gets p(w|h) = Σ_i λ_i p_i(w|h), where each model backs off by itself; then back-off
weights are recomputed, so that each context sums to one. The result equals the mixture for all listed n-grams. For
others it backs off to the mixture's shorter context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from megahour.core.compiled import compiled
from megahour.core.errors import MegahourError
from megahour.lm.arpa.model import NgramModel
from megahour.lm.arpa.parse import NEVER
from megahour.lm.combine.mixture import Fit, check_weights, fit
from megahour.lm.combine.renormalise import renormalise
from megahour.lm.combine.trie import MAX_NODES, Trie, build, link, sort_rows
from megahour.lm.combine.walk import Unknown, Walker, encode_sentences, union, walker
from megahour.lm.text.arrays import Float64, Int32, Int64
from megahour.lm.text.vocabulary import BOS, Vocabulary


@dataclass(frozen=True)
class Members:
    """Models over the union of their vocabularies. own_words: for each model the union's numbers of its words."""

    vocabulary: Vocabulary
    walkers: list[Walker]
    own_words: list[Int32]

    def log10_probs(self, sentences: list[list[str]]) -> Float64:
        """(M, T) log10 p of each token, words and `</s>`; -inf for tokens that no vocabulary has."""
        tokens = encode_sentences(sentences, self.vocabulary)
        result = np.stack([member.tokens(tokens) for member in self.walkers])
        result[:, tokens == 0] = -np.inf
        return result


def gather(models: Sequence[NgramModel], unknown: Unknown = "zero") -> Members:
    """Prepare models for interpolation; `unknown`: as in `walk.walker`."""
    vocabulary = union([model.vocabulary for model in models])
    return Members(
        vocabulary,
        [walker(build(model), model.vocabulary, vocabulary, unknown) for model in models],
        [np.array([vocabulary.ids[word] for word in model.vocabulary.words], np.int32) for model in models],
    )


def tune(members: Members, sentences: list[list[str]], weights: Sequence[float] | None = None) -> Fit:
    """Tune weights on held-out text, or evaluate given ones on it. Unknown words are skipped."""
    return fit(members.log10_probs(sentences), weights)


def interpolate(members: Members, weights: Sequence[float]) -> Trie:
    """Interpolate models to a trie over the union's words. A model of weight 0 only adds its words, with p = 0.

    Raises MegahourError as `mixture.check_weights`.
    """
    return merge(members.walkers, members.own_words, len(members.vocabulary), weights)


def merge(walkers: Sequence[Walker], own_words: Sequence[Int32], words: int, weights: Sequence[float]) -> Trie:
    """`interpolate` for walkers over a union of `words` words; own_words: as in `Members`."""
    lambdas = check_weights(weights, len(walkers))
    used = np.flatnonzero(lambdas).tolist()
    merged = _union_trie([walkers[i] for i in used], [own_words[i] for i in used], words)
    total = np.zeros(len(merged.links.word))
    for i in used:
        _add_weighted(walkers[i].nodes(merged), lambdas[i], total)
    with np.errstate(divide="ignore"):
        merged.log10_prob[1:] = np.maximum(np.log10(total[1:]), NEVER)
    merged.log10_prob[BOS + 1] = NEVER  # never predicted; models have different values here
    renormalise(merged)
    return merged


@compiled
def _add_weighted(logp, weight, total):  # type: ignore[no-untyped-def]
    for i in range(len(logp)):
        total[i] += weight * 10.0 ** logp[i]


def _union_trie(members: Sequence[Walker], own_words: Sequence[Int32], size: int) -> Trie:
    """The trie of all `size` words and of the longer n-grams of all members, without probabilities.

    It is built level by level. The key of a node is the index of its context in the level above, and its word.
    """
    places = [np.zeros(1, np.int32)] * len(members)
    levels, word, parent = [0, 1], [np.zeros(1, np.int32)], [np.zeros(1, np.int32)]
    for k in range(1, max(member.trie.order for member in members) + 1):
        sorted_keys = [
            _level_keys(member.trie, k, place, numbers)
            for member, place, numbers in zip(members, places, own_words, strict=True)
        ]
        keys = reduce(_union, (key for key, _ in sorted_keys)) if k > 1 else np.arange(size)
        places = [_places(keys, *of_member) for of_member in sorted_keys]
        word.append((keys & 0xFFFFFFFF).astype(np.int32))
        parent.append((keys >> 32).astype(np.int32) + np.int32(levels[-2]))
        levels.append(levels[-1] + len(keys))
        if levels[-1] > MAX_NODES:
            raise MegahourError(f"the mixture has more than {MAX_NODES:,} n-grams", remedy="prune the models first")
    shape, words = np.array(levels, np.int64), np.concatenate(word)
    links = link(shape, words, np.concatenate(parent))
    return Trie(shape, links, np.zeros(len(words)), np.zeros(len(words)))


def _level_keys(trie: Trie, k: int, places: Int32, numbers: Int32) -> tuple[Int64, Int32]:
    """Sorted keys (n,) of a member's k-grams, and the index (n,) of each k-gram."""
    if k > trie.order:
        return np.zeros(0, np.int64), np.zeros(0, np.int32)
    level = slice(trie.levels[k], trie.levels[k + 1])
    contexts = places[trie.links.parent[level] - trie.levels[k - 1]]
    size = max(int(contexts.max(initial=0)) + 1, int(numbers.max()) + 1)
    rows, origin = sort_rows(np.column_stack([contexts, numbers[trie.links.word[level]]]), size)
    return rows[:, 0].astype(np.int64) << 32 | rows[:, 1], origin


def _union(a: Int64, b: Int64) -> Int64:
    """The sorted union of sorted keys. np.unique is forty times slower."""
    merged = np.empty(len(a) + len(b), np.int64)
    return merged[: _merge(a, b, merged)]


def _places(keys: Int64, own: Int64, origin: Int32) -> Int32:
    """(n,) the index of each n-gram of a member in the union's sorted `keys`."""
    result = np.empty(len(own), np.int32)
    _locate(keys, own, origin, result)
    return result


@compiled
def _merge(a, b, out):  # type: ignore[no-untyped-def]
    i = j = size = 0
    while i < len(a) or j < len(b):
        if j == len(b) or (i < len(a) and a[i] <= b[j]):
            out[size] = a[i]
            j += j < len(b) and a[i] == b[j]
            i += 1
        else:
            out[size] = b[j]
            j += 1
        size += 1
    return size


@compiled
def _locate(keys, own, origin, out):  # type: ignore[no-untyped-def]
    at = 0
    for i in range(len(own)):
        while keys[at] != own[i]:
            at += 1
        out[origin[i]] = at
