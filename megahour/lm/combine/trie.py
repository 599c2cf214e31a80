"""n-grams as a trie in level order, with failure links, for pruning, interpolation and scoring.

Node 0 is the empty history, nodes 1 … V are the words by number, then come the bigrams, the trigrams, …, each level
sorted by words. So the children of a node are neighbours, sorted by their last word, and parents come before children.
The failure link of a node leads to the longest proper suffix of its words that is a node (Aho & Corasick 1975): to back
off is to follow it. SRILM's pruned models lack some suffixes, which the links skip.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from megahour.core.compiled import compiled
from megahour.core.errors import MegahourError
from megahour.lm.arpa.model import NgramModel
from megahour.lm.text.arrays import Float64, Int32, Int64
from megahour.lm.text.vocabulary import Vocabulary

Spell = Callable[[Int32], str]
"""The text of an n-gram (k,), for messages."""

MAX_NODES = 2**31 - 2


class Links(NamedTuple):
    """The structure of a trie of N nodes. word (N,): last word; parent (N,): the n-gram without its last word; first
    (N + 1,): the children of node i are first[i] … first[i + 1] - 1; fail (N,): longest proper suffix."""

    word: Int32
    parent: Int32
    first: Int32
    fail: Int32


@dataclass(frozen=True)
class Trie:
    """levels (order + 2,): first node of each length 0 … order, and N. log10_prob, log10_backoff (N,): 0 for node 0."""

    levels: Int64
    links: Links
    log10_prob: Float64
    log10_backoff: Float64

    @property
    def order(self) -> int:
        return len(self.levels) - 2

    @property
    def words(self) -> int:
        """Vocabulary size V."""
        return int(self.levels[2] - 1)

    @property
    def sizes(self) -> list[int]:
        """Numbers of n-grams by order."""
        result: list[int] = np.diff(self.levels)[1:].tolist()
        return result


def build(model: NgramModel) -> Trie:
    """The trie of a model. Raises MegahourError as `trie_of`."""
    return trie_of(
        model.grams,
        model.log10_prob,
        model.log10_backoff,
        lambda row: " ".join(model.vocabulary.words[word] for word in row),
    )


def trie_of(
    grams: Sequence[Int32], log10_prob: Sequence[Float64], log10_backoff: Sequence[Float64], spell: Spell
) -> Trie:
    """The trie of n-grams by order, (n, k) each; unigram i is word i. spell: for messages.

    Raises MegahourError: an n-gram is listed twice, its context is not listed, or there are over MAX_NODES n-grams.
    """
    levels = np.cumsum([0, 1, *map(len, grams)]).astype(np.int64)
    if levels[-1] > MAX_NODES:
        message = f"{levels[-1] - 1:,} n-grams are too many: the limit is {MAX_NODES:,}"
        raise MegahourError(message, remedy="prune by count first")
    word, parent, logp, backoff = (np.zeros(levels[-1], kind) for kind in (np.int32, np.int32, np.float64, np.float64))
    above = np.zeros((1, 0), np.int32)
    for k, own in enumerate(grams, 1):
        level = slice(levels[k], levels[k + 1])
        rows, order = sort_rows(own, len(grams[0]))
        wrong = _attach(rows, above, int(levels[k - 1]), parent[level])
        if wrong >= 0:
            raise misfit(rows, int(wrong), spell)
        word[level] = rows[:, -1]
        logp[level], backoff[level] = log10_prob[k - 1][order], log10_backoff[k - 1][order]
        above = rows
    return Trie(levels, link(levels, word, parent), logp, backoff)


def misfit(rows: Int32, at: int, spell: Spell) -> MegahourError:
    """An error for a row of sorted rows (n, k): it is listed twice, or its context is not listed."""
    text = spell(rows[at])
    if at and np.array_equal(rows[at], rows[at - 1]):
        return MegahourError(f"the {rows.shape[1]}-gram {text!r} is listed twice")
    return MegahourError(
        f"the {rows.shape[1]}-gram {text!r} is listed, but not its context",
        remedy="check that the ARPA file is complete",
    )


def link(levels: Int64, word: Int32, parent: Int32) -> Links:
    """Compute the links of nodes in level order from their last words and parents."""
    links = Links(word, parent, np.empty(len(word) + 1, np.int32), np.zeros(len(word), np.int32))
    _find_children(*links)
    _find_suffixes(*links, levels[2])
    return links


def unpack(trie: Trie, vocabulary: Vocabulary) -> NgramModel:
    """The model of a trie, with n-grams sorted by word numbers."""
    edges = trie.levels[2:-1]
    return NgramModel(
        vocabulary,
        grams_of(trie),
        np.split(trie.log10_prob[1:], edges - 1),
        np.split(trie.log10_backoff[1:], edges - 1),
    )


def grams_of(trie: Trie) -> list[Int32]:
    """n-grams (n, k) of a trie by order, sorted."""
    grams: list[Int32] = []
    above = np.zeros((1, 0), np.int32)
    for k in range(1, trie.order + 1):
        level = slice(trie.levels[k], trie.levels[k + 1])
        above = np.column_stack([above[trie.links.parent[level] - trie.levels[k - 1]], trie.links.word[level]])
        grams.append(above)
    return grams


def sort_rows(rows: Int32, size: int) -> tuple[Int32, Int32]:
    """Sort rows (n, k) of numbers below `size` lexicographically; also return the old index (n,) of each.

    A radix sort with one counting pass per column, the last first. Whole rows move, so that reads are sequential.
    """
    rows, origin = np.ascontiguousarray(rows), np.arange(len(rows), dtype=np.int32)
    if _sorted(rows):
        return rows, origin
    for column in range(rows.shape[1] - 1, -1, -1):
        starts = np.zeros(size + 1, np.int64)
        moved, moved_origin = np.empty_like(rows), np.empty_like(origin)
        _counting_pass(rows, origin, column, starts, moved, moved_origin)
        rows, origin = moved, moved_origin
    return rows, origin


@compiled(inline=True)
def child(word, first, node, asked):  # type: ignore[no-untyped-def]
    """(the child of a node by a word, whether it exists)."""
    low, end = first[node], first[node + 1]
    high = end
    while low < high:
        middle = (low + high) >> 1
        if word[middle] < asked:
            low = middle + 1
        else:
            high = middle
    return low, low < end and word[low] == asked


@compiled
def _sorted(rows):  # type: ignore[no-untyped-def]
    for i in range(1, len(rows)):
        for j in range(rows.shape[1]):
            if rows[i - 1, j] != rows[i, j]:
                if rows[i - 1, j] > rows[i, j]:
                    return False
                break
    return True


@compiled
def _counting_pass(rows, origin, column, starts, out, out_origin):  # type: ignore[no-untyped-def]
    for i in range(len(rows)):
        starts[rows[i, column] + 1] += 1
    for value in range(1, len(starts)):
        starts[value] += starts[value - 1]
    for i in range(len(rows)):
        value = rows[i, column]
        at = starts[value]
        starts[value] = at + 1
        for j in range(rows.shape[1]):
            out[at, j] = rows[i, j]
        out_origin[at] = origin[i]


@compiled
def _attach(rows, above, base, parent):  # type: ignore[no-untyped-def]
    """Fill parent (n,) of sorted rows (n, k): base + the index of their contexts in sorted rows `above` (m, k - 1).

    Returns the first row that equals the one before it or lacks its context, else -1.
    """
    at, m, k = 0, len(above), rows.shape[1]
    for i in range(len(rows)):
        same = i > 0
        for j in range(k):
            if same and rows[i, j] != rows[i - 1, j]:
                same = False
        if same:
            return i
        while at < m:
            ahead, equal = False, True
            for j in range(k - 1):
                if above[at, j] != rows[i, j]:
                    ahead, equal = above[at, j] > rows[i, j], False
                    break
            if equal:
                break
            if ahead:
                return i
            at += 1
        if at == m:
            return i
        parent[i] = base + at
    return -1


@compiled
def _find_children(word, parent, first, fail):  # type: ignore[no-untyped-def]
    first[:] = 0
    for node in range(1, len(word)):
        first[parent[node] + 1] += 1
    first[0] = 1
    for node in range(len(word)):
        first[node + 1] += first[node]


@compiled
def _find_suffixes(word, parent, first, fail, bigrams):  # type: ignore[no-untyped-def]
    for node in range(bigrams, len(word)):
        last, context, result = word[node], fail[parent[node]], 0
        while context:
            result, there = child(word, first, context, last)
            if there:
                break
            context = fail[context]
        fail[node] = result if context else last + 1
