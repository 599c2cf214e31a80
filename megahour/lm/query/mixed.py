"""Linear mixture of several models at query time: p(w|h) = Σ λ p(w|h). A word is known if any model has it.

`combine.interpolate` merges the models to one back-off model, which is faster, but not exactly the same: there a longer
n-gram of one model hides the back-off of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from megahour.lm.query.batch import SentenceScores, summed
from megahour.lm.query.kenlm_model import KNOWN
from megahour.lm.text.tokenise import UNKNOWN

Scorer = Callable[[bytes], SentenceScores]


def mixed(scorers: Sequence[Scorer], weights: Sequence[float]) -> Scorer:
    """A scorer of the mixture. Word numbers are those of the first model; n-gram lengths are the longest of all."""

    def score(lines: bytes) -> SentenceScores:
        found = [scorer(lines) for scorer in scorers]
        first, size = found[0], len(found[0].tokens)
        each = np.array([one.word_log10_prob for one in found], np.float64)
        logp = np.log10(np.asarray(weights) @ 10.0**each) if size else np.empty(0)
        unknown = np.logical_and.reduce([one.tokens == UNKNOWN for one in found])
        number = np.max([one.tokens for one in found], axis=0) if size else first.tokens
        number = np.where(number == UNKNOWN, KNOWN, number)  # only a model without numbers knows the word
        tokens = np.where(unknown, UNKNOWN, np.where(first.tokens == UNKNOWN, number, first.tokens)).astype(np.int32)
        length = np.max([one.ngram_length for one in found], axis=0) if size else first.ngram_length
        return summed(tokens, logp, length)

    return score
