"""Stupid back-off (Brants et al. 2007, equation 5): relative frequencies, and a constant factor per back-off step.

    S(w|h) = n(h w) / n(h) if h w occurs, else 0.4 · S(w|h')

These are scores, which do not sum to one. An ARPA file has weights only for listed contexts, so to back off from a
context that does not occur costs nothing here.
"""

from __future__ import annotations

import math

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.arpa.parse import NEVER
from megahour.lm.estimate.history import all_history_words
from megahour.lm.estimate.smooth import log_probability
from megahour.lm.text.arrays import Float64, Int64
from megahour.lm.text.tokenise import BOUNDARY, END

LOG10_ALPHA = math.log10(0.4)


def unigram_scores(occurrences: Int64) -> tuple[Float64, Float64]:
    """log10 S(w) and log10 weights (V,) from the occurrences (V,) of tokens, where BOUNDARY is `</s>`."""
    counts = occurrences.astype(np.float64)
    counts[END], counts[BOUNDARY] = counts[BOUNDARY], 0.0
    score = np.full(len(counts), NEVER)
    seen = counts > 0
    score[seen] = np.log10(counts[seen] / counts.sum())
    score[BOUNDARY] = 0.0
    weight = np.where(seen, LOG10_ALPHA, 0.0)
    weight[END], weight[BOUNDARY] = 0.0, LOG10_ALPHA
    return score, weight


@compiled
def stupid(windows, order, cutoffs, grams, nodes, n, at, logp, backoff, sizes):  # type: ignore[no-untyped-def]
    """Like `smooth.smooth`, from windows (m, order) and all n-grams of n contexts, also dropped ones."""
    sizes[:] = 0
    for node in range(n):
        k, begin, end = nodes[node, 0] + 1, nodes[node, 1], nodes[node, 2]
        total = 0
        for g in range(begin, end):
            total += grams[g, 3]
        for g in range(begin, end):
            if grams[g, 3] <= cutoffs[k]:
                continue
            size = sizes[k]
            at[k, size], logp[k, size] = grams[g, 1], log_probability(grams[g, 3] / total)
            backoff[k, size] = LOG10_ALPHA if k < order and grams[g, 0] != BOUNDARY else 0.0
            sizes[k] = size + 1
    words, shared_words = all_history_words(windows, order)
    for i in range(len(windows)):
        shared = np.int64(max(shared_words[i], shared_words[i + 1]))
        for k in range(shared + 2, np.int64(words[i]) + 2):
            if cutoffs[k] >= 1:
                break
            size = sizes[k]
            at[k, size], logp[k, size] = i, 0.0  # the only word after this context
            backoff[k, size] = LOG10_ALPHA if k < order and windows[i, 0] != BOUNDARY else 0.0
            sizes[k] = size + 1
