"""Probabilities p(h) of the contexts of a model, by which entropy pruning weights losses. They can come from

- the model itself: the product of its probabilities along h. Short contexts of Kneser-Ney models have unsuitable
  probabilities, which reflect the number of different words before h, not its frequency.
- another model, as with SRILM's `-prune-history-lm`.
- a text, best the training text: c(h) over the number of predicted words.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.arpa.model import NgramModel
from megahour.lm.combine.trie import Trie, build, child
from megahour.lm.combine.walk import Walker, encode_sentences, walker
from megahour.lm.text.arrays import Float64, Int32, Int64
from megahour.lm.text.vocabulary import BOS, EOS, Vocabulary


def from_model(trie: Trie, history: Walker | None = None) -> Float64:
    """(N,) log10 p(h) of each n-gram h by `history`, a model over the trie's words, or by the trie's own model.

    `<s>`, which is never predicted, gets the probability of `</s>`.
    """
    steps = history.nodes(trie) if history else trie.log10_prob.copy()
    steps[BOS + 1] = steps[EOS + 1]
    for k in range(2, trie.order):
        level = slice(trie.levels[k], trie.levels[k + 1])
        steps[level] += steps[trie.links.parent[level]]
    return steps


def from_text(trie: Trie, texts: Iterable[Int32]) -> Float64:
    """(N,) log10 of the relative frequency of each n-gram among the contexts in texts; -inf if it does not occur.

    texts: tokens (T,) of sentences, each ending in EOS.
    """
    counts = np.zeros(len(trie.links.word), np.int64)
    for tokens in texts:
        _count_contexts(tokens, *trie.links, counts)
    total = counts.sum()
    _add_suffixes(trie.links.fail, counts)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log10(counts) - np.log10(total), np.float64)


def add_histories(trie: Trie, keys: Int32, often: Int64, counts: Int64) -> None:
    """Add the counts `often` (n,) of histories to counts (N,) of the n-grams with which they end.

    keys (n, D): histories, last word first, up to the first -1. Numbers ≥ V are words that the trie lacks.
    """
    _count_histories(keys, often, *trie.links, trie.words, counts)
    _add_suffixes(trie.links.fail, counts)


def contexts_of_model(trie: Trie, vocabulary: Vocabulary, history: NgramModel) -> Float64:
    """`from_model` by another model; vocabulary: of `trie`."""
    return from_model(trie, walker(build(history), history.vocabulary, vocabulary, "share"))


def contexts_of_text(trie: Trie, vocabulary: Vocabulary, sentences: Iterable[list[str]]) -> Float64:
    """`from_text` of sentences, 10,000 at a time."""
    rest = iter(sentences)
    parts = iter(lambda: list(islice(rest, 10_000)), [])
    return from_text(trie, (encode_sentences(part, vocabulary) for part in parts))


@compiled
def _after(word, first, fail, state, asked):  # type: ignore[no-untyped-def]
    """The longest context that ends in the word `asked`, from the context `state` before it."""
    while state:
        result, there = child(word, first, state, asked)
        if there:
            return result
        state = fail[state]
    return asked + 1


@compiled
def _count_contexts(tokens, word, parent, first, fail, counts):  # type: ignore[no-untyped-def]
    """Add one to the longest context before each token."""
    state = BOS + 1
    for i in range(len(tokens)):
        counts[state] += 1
        asked = tokens[i]
        if asked == EOS:
            state = BOS + 1
            continue
        state = _after(word, first, fail, state, asked)


@compiled
def _add_suffixes(fail, counts):  # type: ignore[no-untyped-def]
    """Add the count of each context to its suffixes."""
    for node in range(len(counts) - 1, 0, -1):
        counts[fail[node]] += counts[node]


@compiled
def _count_histories(keys, often, word, parent, first, fail, words, counts):  # type: ignore[no-untyped-def]
    """Add `often` to the longest suffix of each history that is a node."""
    for i in range(len(keys)):
        length = 0
        while length < keys.shape[1] and keys[i, length] >= 0:
            length += 1
        state = 0
        for back in range(length - 1, -1, -1):
            asked = keys[i, back]
            if asked >= words:
                state = 0
                continue
            state = _after(word, first, fail, state, asked)
        counts[state] += often[i]
