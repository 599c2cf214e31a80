"""n-gram counts of one *history shard*: the positions whose previous word belongs to the shard.

With the last word of the history as the key, all that Kneser-Ney smoothing needs for orders above 1 lies in one shard:
n(h w) and the sums over w, because h ends in that word; the number of different words before a suffix, and the suffix's
own probability, because a suffix of length two or more ends in the same two words. Only unigrams and the printing of
back-off weights cross shards (Heafield et al. 2013, section 3, count and adjust by sorting instead).

n-grams are numbered inside a shard by extending one word to the left, order by order: number(a b c) is the rank of
(a, number(b c)), so the suffix's number is at hand and no word sequences are stored. `first`, the corpus position of
the last word of the first occurrence, identifies an n-gram across shards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megahour.lm.vocabulary import BOS, EOS, Int32, Vocabulary, sentence_words

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Corpus:
    """Encoded sentences, each `<s> w … </s>`.

    tokens: int32 (T,) word numbers. depth: int32 (T,) position in the sentence, 0 at `<s>`.
    """

    tokens: Int32
    depth: Int32
    vocabulary_size: int

    @property
    def words(self) -> int:
        """Predicted tokens: every word and every `</s>`."""
        return int(np.count_nonzero(self.depth))


@dataclass(frozen=True)
class Level:
    """The n different n-grams of one order k ≥ 2 in a shard, and their c different contexts.

    first: (n,) corpus position of the last word at the first occurrence. raw: (n,) occurrences.
    suffix: (n,) number of the (k-1)-gram without the first word (a word number when k = 2).
    context: (n,) number, below c, of the (k-1)-gram without the last word.
    from_bos: (n,) whether it begins with `<s>`. context_first: (c,) like `first`, for contexts.
    """

    order: int
    first: Int64
    raw: Int64
    suffix: Int64
    context: Int64
    from_bos: Bool
    context_first: Int64


def encode(lines: Iterable[str], vocabulary: Vocabulary) -> Corpus:
    """Number the words of all non-empty lines."""
    tokens: list[int] = []
    lengths: list[int] = []
    for line in lines:
        words = sentence_words(line)
        if words:
            tokens += [BOS, *vocabulary.encode(words), EOS]
            lengths.append(len(words) + 2)
    starts = np.cumsum([0, *lengths[:-1]]) if lengths else np.zeros(0, np.int64)
    depth = np.arange(len(tokens)) - np.repeat(starts, lengths)
    return Corpus(np.array(tokens, np.int32), depth.astype(np.int32), len(vocabulary))


def shard_positions(corpus: Corpus, shard: int, shards: int) -> Int64:
    """Positions p ≥ 1 of predicted words whose previous word has number ≡ `shard` modulo `shards`."""
    previous = np.concatenate([corpus.tokens[:1], corpus.tokens[:-1]])
    return np.flatnonzero((corpus.depth > 0) & (previous % shards == shard))


def count_shard(corpus: Corpus, positions: Int64, order: int) -> list[Level]:
    """Levels 2 … `order` of the shard with these positions; n-grams do not reach back over `<s>`."""
    tokens = corpus.tokens.astype(np.int64)
    gram, context = tokens[positions], np.zeros(len(positions), np.int64)
    grams, contexts = corpus.vocabulary_size, 1
    levels = []
    for k in range(2, order + 1):
        inside = corpus.depth[positions] >= k - 1
        positions, gram, context = positions[inside], gram[inside], context[inside]
        left = tokens[positions - (k - 1)]
        keys, at, gram, raw = np.unique(left * grams + gram, return_index=True, return_inverse=True, return_counts=True)
        suffix, grams = keys % grams, max(len(keys), 1)
        context_keys, context_at, context = np.unique(left * contexts + context, return_index=True, return_inverse=True)
        contexts = max(len(context_keys), 1)
        first = positions[at]
        levels.append(
            Level(
                order=k,
                first=first,
                raw=raw.astype(np.int64),
                suffix=suffix,
                context=context[at],
                from_bos=corpus.depth[first] == k - 1,
                context_first=positions[context_at] - 1,
            )
        )
    return levels


def adjusted_counts(level: Level, above: Level | None) -> Int64:
    """Kneser-Ney's counts a(·): raw at the highest order and after `<s>`, else the number of different words before.

    `above` is the next higher level of the same shard, None for the highest (Heafield et al. 2013, equation 1).
    """
    if above is None:
        return level.raw
    continuations = np.bincount(above.suffix, minlength=len(level.raw))
    return np.where(level.from_bos, level.raw, continuations)
