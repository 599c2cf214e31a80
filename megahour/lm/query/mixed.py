"""Several models as one at query time: p(w|h) = Σ λ p(w|h), a word known if any model knows it. Nothing is merged.

`combine.interpolate` makes one back-off model of the same mixture, which is smaller to ask but is not quite the same:
there a longer n-gram of one model hides what the others back off to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from megahour.lm.query.batch import SentenceScores
from megahour.lm.query.scoring import sum_sentences
from megahour.lm.text.tokenise import UNKNOWN

Scorer = Callable[[bytes], SentenceScores]


def mixed(scorers: Sequence[Scorer], weights: Sequence[float]) -> Scorer:
    """A scorer of the mixture; numbers of words are the first model's, n-gram lengths the longest of all."""

    def score(lines: bytes) -> SentenceScores:
        found = [scorer(lines) for scorer in scorers]
        first, size = found[0], len(found[0].tokens)
        each = np.array([one.word_log10_prob for one in found], np.float64)
        logp = np.log10(np.asarray(weights) @ 10.0**each) if size else np.empty(0)
        unknown = np.logical_and.reduce([one.tokens == UNKNOWN for one in found])
        number = np.max([one.tokens for one in found], axis=0) if size else first.tokens
        tokens = np.where(unknown, UNKNOWN, np.where(first.tokens == UNKNOWN, number, first.tokens)).astype(np.int32)
        total, lost = np.empty(len(first)), np.empty(len(first))
        words, missing = np.empty(len(first), np.int32), np.empty(len(first), np.int32)
        if size:
            sum_sentences(tokens, 0, size, logp, UNKNOWN, total, words, missing, lost)
        length = np.max([one.ngram_length for one in found], axis=0) if size else first.ngram_length
        return SentenceScores(total, words - 1, missing, lost, tokens, logp.astype(np.float32), length)

    return score
