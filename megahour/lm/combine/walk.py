"""Walks through a trie with the words of a text, or with the n-grams of another model.

The state after some words is the node of their longest suffix that the model lists. If its context does not list a word
w, shorter and shorter contexts are tried, and their back-off weights are added:

    log p(w|h) = log α(h) + log α(h') + … + log p(w|h'…')
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.core.errors import MegahourError
from megahour.lm.arpa.model import NgramModel
from megahour.lm.combine.trie import Trie, build, child
from megahour.lm.estimate.reading import lines_of, words_of
from megahour.lm.text.arrays import Float64, Int32
from megahour.lm.text.sources import blocks
from megahour.lm.text.vocabulary import BOS, EOS, UNK, Vocabulary

Unknown = Literal["zero", "share"]


@dataclass(frozen=True)
class Walker:
    """A model that scores the words of a larger vocabulary of U words.

    number (U,): the model's number of each word, UNK for words that it lacks. added (U,): added to log10 p of each
    word; -inf makes it impossible.
    """

    trie: Trie
    number: Int32
    added: Float64

    def nodes(self, other: Trie) -> Float64:
        """(N,) log10 p(w|h) of each n-gram h w of `other`, a trie over the U words; 0 for node 0."""
        result, states = np.zeros(len(other.links.word)), np.zeros(len(other.links.word), np.int32)
        _walk_nodes(
            other.links.word, other.links.parent, self.number, self.added, *self._arrays(), states, result
        )  # fmt: skip
        return result

    def tokens(self, tokens: Int32) -> Float64:
        """(T,) log10 p of each token of sentences, which end in EOS; each begins after BOS."""
        result = np.empty(len(tokens))
        begin = int(self.number[BOS]) + 1
        _walk_tokens(tokens, begin, self.number, self.added, *self._arrays(), result)
        return result

    def after(self, histories: Int32, words: Int32) -> Float64:
        """(n,) log10 p of words (n,) after histories (n, D), whose words end before the first -1."""
        result = np.empty(len(words))
        _walk_histories(histories, words, self.number, self.added, *self._arrays(), result)
        return result

    def distribution(self, state: int) -> Float64:
        """(U,) log10 p of every word in a state, a node of the trie."""
        links, trie = self.trie.links, self.trie
        suffixes = [state]
        while suffixes[-1]:
            suffixes.append(int(links.fail[suffixes[-1]]))
        own = np.zeros(trie.words)
        for context in reversed(suffixes):  # longer contexts overwrite shorter ones
            own += trie.log10_backoff[context]
            children = slice(links.first[context], links.first[context + 1])
            own[links.word[children]] = trie.log10_prob[children]
        return np.asarray(own[self.number] + self.added, np.float64)

    def advance(self, state: int, word: int) -> int:
        """The state after one more of the U words."""
        links, number = self.trie.links, int(self.number[word])
        while state:
            results, there = child(links.word, links.first, state, number)
            if there:
                return int(results)
            state = int(links.fail[state])
        return number + 1

    def _arrays(self) -> tuple[npt.NDArray[np.generic], ...]:
        links = self.trie.links
        return links.word, links.first, links.fail, self.trie.log10_prob, self.trie.log10_backoff


def own_walker(trie: Trie) -> Walker:
    """A walker over the model's own words."""
    return Walker(trie, np.arange(trie.words, dtype=np.int32), np.zeros(trie.words))


def union(vocabularies: list[Vocabulary]) -> Vocabulary:
    """All words of all vocabularies, in order of their first mention."""
    return Vocabulary(dict.fromkeys(word for vocabulary in vocabularies for word in vocabulary.words))


def walker(trie: Trie, own: Vocabulary, asked: Vocabulary, unknown: Unknown) -> Walker:
    """A walker of `trie`, with vocabulary `own`, over the words of `asked`, which contains `own`.

    unknown: the probability of the n words that only `asked` has. "zero": 0, as in SRILM, and `<unk>` keeps its own.
    "share": `<unk>` and the n words share the probability of `<unk>` equally. Both preserve the sum over all words.
    """
    number = np.array([own.ids.get(word, UNK) for word in asked.words], np.int32)
    missing = number == UNK
    return Walker(trie, number, log10_added(missing, unknown, int(missing.sum())))


def log10_added(missing: npt.NDArray[np.bool_], unknown: Unknown, count: int) -> Float64:
    """`Walker.added` of words, some of which are missing, `<unk>` included; count: number of all missing words."""
    added = np.zeros(len(missing))
    added[missing] = -np.inf if unknown == "zero" else -np.log10(count)
    if unknown == "zero":
        added[UNK] = 0.0
    return added


def encode_sentences(lines: list[list[str]], vocabulary: Vocabulary) -> Int32:
    """Tokens of sentences, each followed by EOS."""
    return np.array([token for words in lines for token in (*vocabulary.encode(words), EOS)], np.int32)


def sentences(sources: Sequence[str], lines: Iterable[str] = ()) -> Iterator[list[str]]:
    """The words of each line of `lines`, then of text files, URLs or globs, separated as in training. Empty lines are
    skipped.

    Raises MegahourError: there is no sentence.
    """
    empty = True
    for line in chain(lines, lines_of(blocks(sources)) if sources else ()):
        if words := words_of(line):
            empty = False
            yield words
    if empty:
        where = ", ".join(sources) or "the input `text`"
        raise MegahourError("no sentences", where=where, remedy="give text, one sentence per line")


def perplexity(model: NgramModel, text: list[list[str]]) -> dict[str, Any]:
    """Perplexity and number of the known tokens; perplexity of all tokens, and the number of unknown ones."""
    tokens = encode_sentences(text, model.vocabulary)
    log10_probs, known = own_walker(build(model)).tokens(tokens), tokens != UNK
    return {
        "perplexity": float(10.0 ** -log10_probs[known].mean()),
        "tokens": int(known.sum()),
        "perplexity_with_unknown": float(10.0 ** -log10_probs.mean()),
        "unknown": int((~known).sum()),
    }


@compiled
def _follow(word, first, fail, backoff, state, asked, total):  # type: ignore[no-untyped-def]
    """(node of `asked` after the longest suffix of the state that lists it, total + weights of the longer suffixes)."""
    while state:
        node, there = child(word, first, state, asked)
        if there:
            return node, total
        total += backoff[state]
        state = fail[state]
    return asked + 1, total


@compiled
def _walk_nodes(  # type: ignore[no-untyped-def]
    words, parents, number, added, word, first, fail, logp, backoff, states, out
):
    for node in range(1, len(words)):
        asked, state, total = number[words[node]], states[parents[node]], added[words[node]]
        results, total = _follow(word, first, fail, backoff, state, asked, total)
        states[node], out[node] = results, total + logp[results]


@compiled
def _walk_tokens(tokens, begin, number, added, word, first, fail, logp, backoff, out):  # type: ignore[no-untyped-def]
    state = begin
    for i in range(len(tokens)):
        asked, total = number[tokens[i]], added[tokens[i]]
        results, total = _follow(word, first, fail, backoff, state, asked, total)
        out[i] = total + logp[results]
        state = begin if tokens[i] == EOS else results


@compiled
def _walk_histories(  # type: ignore[no-untyped-def]
    histories, words, number, added, word, first, fail, logp, backoff, out
):
    for i in range(len(words)):
        state, total = np.int32(0), 0.0
        for j in range(histories.shape[1]):
            if histories[i, j] < 0:
                break
            state, total = _follow(word, first, fail, backoff, state, number[histories[i, j]], 0.0)
        result, total = _follow(word, first, fail, backoff, state, number[words[i]], added[words[i]])
        out[i] = total + logp[result]
