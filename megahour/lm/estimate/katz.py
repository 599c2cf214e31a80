"""Katz's back-off with Good-Turing discounts (Katz 1987, equations 3–12).

    P(w|h) = d(r) · r / n(h)                                     r = n(h w) above the cut-off of its order
           = α(h) · P(w|h')                                      otherwise
    d(r)   = (r*/r - A) / (1 - A),  r* = (r+1) n_(r+1)/n_r,  A = (K+1) n_(K+1)/n_1      1 ≤ r ≤ K;  1 above
    α(h)   = (1 - Σ P(w|h)) / (1 - Σ P(w|h'))                    sums over the w that are listed after h

n_r is the number of n-grams of an order that occur r times. As in SRILM's `ngram-count`: if n_r is zero, K is less than
r; a d(r) outside (0, 1] becomes 1; if a history frees no mass, n(h) is increased by one; the mass freed from unigrams
is shared equally by words that do not occur, or by all words if there are none.
"""

from __future__ import annotations

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.estimate.history import all_history_words
from megahour.lm.estimate.smooth import log_probability
from megahour.lm.text.arrays import Float64, Int64
from megahour.lm.text.tokenise import BOUNDARY, END

MOST = 5  # K: larger counts are not discounted
FULL = 1e-9  # smallest probability that counts as left for back-off


def good_turing(n: Int64) -> tuple[Float64, str]:
    """d(r) (MOST + 2,), with d(0) = 0 and d(MOST + 1) = 1, and the reason for deviations from the formula, or "".

    n (MOST + 2,): numbers of n-grams that occur r times.
    """
    ratios = np.ones(MOST + 2)
    ratios[0] = 0.0
    missing = next((r for r in range(1, MOST + 2) if n[r] == 0), 0)
    most = missing - 2 if missing else MOST  # K: n[K + 1] is not zero
    if most < 2:  # with K = 1, d(1) is 0
        return ratios, f"no n-gram occurs {missing} times: nothing is discounted"
    above = (most + 1) * n[most + 1] / n[1]
    out_of_range = []
    for r in range(1, most + 1):
        plain = (r + 1) * n[r + 1] / (r * n[r])
        ratio = (plain - above) / (1.0 - above) if above != 1.0 else np.inf
        if np.isfinite(ratio) and 1e-6 < ratio <= 1.0 and plain <= 1.0:
            ratios[r] = ratio
        else:
            out_of_range.append(str(r))
    why = f"no n-gram occurs {missing} times: counts up to {most} are discounted" if missing else ""
    if out_of_range:
        why += "; " * bool(why) + f"no discount for counts {', '.join(out_of_range)}: the formula's is out of range"
    return ratios, why


def unigram_katz(occurrences: Int64, ratios: Float64) -> Float64:
    """P(w) (V,) from the occurrences (V,) of tokens, where BOUNDARY is `</s>`. P of `<s>` is 1."""
    counts = occurrences.astype(np.float64)
    counts[END], counts[BOUNDARY] = counts[BOUNDARY], 0.0
    predicted = np.ones(len(counts), bool)
    predicted[BOUNDARY] = False
    discounted = counts * ratios[np.minimum(counts, MOST + 1).astype(np.int64)]
    total = counts.sum()
    unseen = predicted & (counts == 0)
    if unseen.any() and total - discounted.sum() < FULL * total:
        total += 1
    probability = discounted / total
    to = unseen if unseen.any() else predicted
    probability[to] += (1.0 - probability.sum()) / np.count_nonzero(to)
    probability[BOUNDARY] = 1.0
    return np.asarray(probability, np.float64)


@compiled
def count_counts(windows, order, grams, nodes, n, out):  # type: ignore[no-untyped-def]
    """Add to out (order + 1, MOST + 2) the numbers of k-grams of a partition that occur r times, r = 1 … MOST + 1.

    windows (m, order): sorted. grams, nodes: of `sweep.SweepStore`, n contexts.
    """
    for node in range(n):
        for g in range(nodes[node, 1], nodes[node, 2]):
            if grams[g, 3] <= MOST + 1:
                out[nodes[node, 0] + 1, grams[g, 3]] += 1
    words, shared_words = all_history_words(windows, order)
    for i in range(len(windows)):
        shared = np.int64(max(shared_words[i], shared_words[i + 1]))
        for k in range(shared + 2, np.int64(words[i]) + 2):
            out[k, 1] += 1


@compiled
def katz(  # type: ignore[no-untyped-def]
    windows, positions, order, cutoffs, ratios, unigram, grams, nodes, n, seats, chain, alpha, at, logp, backoff, sizes
):
    """Like `smooth.smooth`, from all n-grams of n contexts, also dropped ones.

    ratios (order + 1, MOST + 2): d(r) by order. alpha (order, T) float32: log10 α of a context by its length and the
    position where it first ends. It is written for the contexts of the partition and read for its n-grams, so it is
    complete after a pass over all partitions.
    """
    sizes[:] = 0
    words, shared_words = all_history_words(windows, order)
    for i in range(len(positions) - 1, -1, -1):
        have, before, after = np.int64(words[i]), np.int64(shared_words[i]), np.int64(shared_words[i + 1])
        shared, word = max(before, after), windows[i, 0]
        for length in range(after + 1, shared + 1):
            n -= 1
            k, begin, end = length + 1, nodes[n, 1], nodes[n, 2]
            total, discounted, listed = 0, 0.0, 0.0
            earliest = np.int64(1 << 62)
            for g in range(begin, end):
                last, raw = grams[g, 0], grams[g, 3]
                total += raw
                earliest = min(earliest, np.int64(positions[grams[g, 1]]))
                if raw > cutoffs[k]:
                    lower = unigram[last] if length == 1 else chain[length - 1, seats[last, length - 2]]
                    discounted += ratios[k, min(raw, MOST + 1)] * raw
                    listed += lower
            if discounted == 0.0:
                continue  # no n-gram is listed, nor any longer one that ends with it
            if total - discounted < FULL * total:
                total += 1
            scale, weight = 1.0 / total, (1.0 - discounted / total) / max(1.0 - listed, FULL)
            if 1.0 - listed < FULL:  # every word is listed, none is left for back-off
                scale, weight = 1.0 / discounted, 1.0
            alpha[length, earliest - 1] = np.log10(weight)
            size = sizes[k]
            for g in range(begin, end):
                last, raw = grams[g, 0], grams[g, 3]
                if raw <= cutoffs[k]:
                    continue
                p = ratios[k, min(raw, MOST + 1)] * raw * scale
                seats[last, length - 1] = g - begin
                chain[length, g - begin] = p
                at[k, size], logp[k, size] = grams[g, 1], log_probability(p)
                followed = k < order and last != BOUNDARY
                backoff[k, size] = alpha[k, positions[grams[g, 1]]] if followed else 0.0
                size += 1
            sizes[k] = size
        lower = unigram[word] if shared == 0 else chain[shared, seats[word, shared - 1]]
        for k in range(shared + 2, have + 2):
            if cutoffs[k] >= 1:
                break
            p = ratios[k, 1] if 1.0 - ratios[k, 1] >= FULL else 0.5
            alpha[k - 1, positions[i] - 1] = np.log10((1.0 - p) / max(1.0 - lower, FULL))
            lower = p
            size = sizes[k]
            at[k, size], logp[k, size] = i, log_probability(p)
            backoff[k, size] = alpha[k, positions[i]] if k < order and word != BOUNDARY else 0.0
            sizes[k] = size + 1
