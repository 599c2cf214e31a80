"""Probabilities and back-off weights of one partition, from what `sweep` stored (Chen & Goodman 1998, equations 26–30).

    γ(h)   = (Σ_j D(j) · #{w kept: a(h w) = j} + Σ_(w dropped) a(h w)) / Σ_w a(h w)
    p(w|h) = (a(h w) - D(a(h w))) / Σ_w a(h w) + γ(h) · p(w|h')

The positions are visited backwards, so a context comes before its children, and p(w|h') is known. γ(h) is computed in
the partition of h's last word, but printed with the n-gram h, in the partition of the word before it; partitions
exchange nothing else. There h is identified by its length and the position where it first ends. An n-gram that occurs
once is followed by one word, so its γ is D(1) and is not exchanged; other missing ones have γ = 1.
"""

from __future__ import annotations

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.arpa.parse import NEVER
from megahour.lm.estimate.history import ROWS, history_words
from megahour.lm.text.machine import prefetch
from megahour.lm.text.tokenise import BOUNDARY

BLOCK = 64  # probabilities whose logarithms are computed together
AHEAD = 8  # rows, or n-grams, between the prefetch of a word's entries and their use
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@compiled
def log10(x):  # type: ignore[no-untyped-def]
    """log10 of a positive normal number, with an error of 1e-9, without a call of the C library."""
    bits = np.float64(x).view(np.int64)
    exponent = (bits >> 52) - 1023
    m = np.int64((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).view(np.float64)
    large = m > 1.4142135623730951
    m, exponent = m * 0.5 if large else m, exponent + large
    s = np.divide(m - 1.0, m + 1.0)  # not `/`, whose test for zero would keep loops from being vectorised
    t = s * s
    series = 1.0 + t * (1 / 3 + t * (1 / 5 + t * (1 / 7 + t * (1 / 9))))
    return exponent * 0.30102999566398120 + 0.86858896380650366 * s * series


@compiled
def log_probability(p):  # type: ignore[no-untyped-def]
    """log10 p, at most 0 and at least NEVER."""
    if p >= 1.0:
        return 0.0
    return log10(p) if p > 1e-99 else NEVER


@compiled
def gammas(sums, discount, out):  # type: ignore[no-untyped-def]
    """out (N,): log10 γ of contexts from their sums (N, 5) and the discounts (4,) of the next order.

    Where the sums are zero, `out` does not change.
    """
    for i in range(len(sums)):
        if sums[i, 0] == 0:
            continue
        total, ones, twos, more, dropped = sums[i, 0], sums[i, 1], sums[i, 2], sums[i, 3], sums[i, 4]
        out[i] = log_probability((discount[1] * ones + discount[2] * twos + discount[3] * more + dropped) / total)


@compiled
def _logs(p, k, begin, end, logp):  # type: ignore[no-untyped-def]
    """log10 of p[k, : end - begin] to logp[k, begin:end], in a loop that the compiler vectorises."""
    for i in range(begin, end):
        logp[k, i] = log_probability(p[k, i - begin])


@compiled
def fill_names(first, length, gamma, keys, values):  # type: ignore[no-untyped-def]
    """Fill the hash table (keys, values) (2^b,) of γ by name: 8 × first position + length. Old keys are deleted."""
    mask = np.uint64(len(keys) - 1)
    keys[:] = -1
    for i in range(len(first)):
        key = first[i] * 8 + length[i]
        slot = (np.uint64(key) * GOLDEN >> np.uint64(32)) & mask
        while keys[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        keys[slot], values[slot] = key, gamma[i]


@compiled
def smooth(  # type: ignore[no-untyped-def]
    floor,
    windows,
    positions,
    tokens,
    order,
    cutoffs,
    allowed,
    discounts,
    unigram,
    grams,
    nodes,
    n,
    seats,
    chain,
    keys,
    values,
    at,
    logp,
    backoff,
    sizes,
):
    """Fill at, logp, backoff (order + 1, room): by order k, the row that ends an n-gram, its log10 p and log10 γ.

    floor: see `sweep_from`. Above 0, p(w|h) of the shared context is in chain[floor, seats[w, floor - 1]], and only
    orders above floor + 1 are filled.

    tokens (T,): of the corpus. cutoffs, allowed: of `sweep`. unigram (V,): p(w). grams, nodes: of `kept_ngrams.keep`, n
    contexts. seats (V, order - 1), chain (order, room): scratch. keys, values: of `fill_names`. sizes (order + 1,): set
    to the number of kept n-grams of each order.
    """
    # unsigned: indexing needs no test for negative numbers
    windows, nodes, seats = windows.view(np.uint32), nodes.view(np.uint32), seats.view(np.uint32)
    mask, width, limited = np.uint64(len(keys) - 1), seats.shape[1], len(allowed) > 0
    sizes[:] = 0
    held = np.empty((order + 1, BLOCK))  # p of n-grams whose logarithms are still to be computed
    once = np.zeros(order + 2)  # log10 γ of a context that occurs once, by its length + 1
    for k in range(2, order + 1):
        once[k] = log_probability(discounts[k, 1]) if cutoffs[k] < 1 else 0.0
    words, shared_words = np.empty(ROWS + 1, np.uint8), np.empty(ROWS + 1, np.uint8)
    for i in range(len(positions) - 1, -1, -1):
        at_row = i & (ROWS - 1)
        if at_row == ROWS - 1 or i == len(positions) - 1:
            history_words(windows, order, floor, i - at_row, words, shared_words)
        ahead = np.int64(windows[max(i - AHEAD, 0), 0])  # tables by word do not fit into the cache
        prefetch(unigram, ahead)
        prefetch(seats, width * ahead)
        have, before = np.int64(words[at_row]), np.int64(shared_words[at_row])
        after = np.int64(shared_words[at_row + 1])
        shared, word = max(before, after), windows[i, 0]
        if after == shared and shared == have:
            continue  # inside of a context: its n-grams come with its first position
        for length in range(after + 1, shared + 1):
            n -= 1
            k, begin, end = length + 1, np.int64(nodes[n - 1, 1]) if n else np.int64(0), np.int64(nodes[n, 1])
            if begin == end:
                continue  # no n-gram is kept, nor any longer one that ends with it
            size, total, ones, twos = sizes[k], np.int64(nodes[n, 2]), np.int64(0), np.int64(0)
            gamma = np.float64(total)
            for g in range(begin, end):
                total += grams[g, 1]
                ones += grams[g, 1] == 1
                twos += grams[g, 1] == 2
            share = 1.0 / total
            freed = discounts[k, 1] * ones + discounts[k, 2] * twos + discounts[k, 3] * (end - begin - ones - twos)
            gamma = (freed + gamma) * share
            if n and nodes[n - 1, 0] + 1 < order:  # prefetch γ of the n-grams of the next context
                first = np.int64(nodes[n - 2, 1]) if n > 1 else np.int64(0)
                for g in range(first, min(first + AHEAD, begin)):
                    if grams[g, 0] < 0:
                        key = positions[~grams[g, 0]] * 8 + nodes[n - 1, 0] + 1
                        slot = (np.uint64(key) * GOLDEN >> np.uint64(32)) & mask
                        prefetch(keys, np.int64(slot))
                        prefetch(values, np.int64(slot))
            for g in range(begin, end):
                if g + AHEAD < end:
                    several = grams[g + AHEAD, 0] < 0
                    row = ~grams[g + AHEAD, 0] if several else grams[g + AHEAD, 0]
                    if k < order and several:
                        slot = (np.uint64(positions[row] * 8 + k) * GOLDEN >> np.uint64(32)) & mask
                        prefetch(keys, np.int64(slot))
                        prefetch(values, np.int64(slot))
                    ahead = np.int64(windows[row, 0])
                    prefetch(seats, width * ahead)
                    if length == 1:
                        prefetch(unigram, ahead)
                adjusted, several = grams[g, 1], grams[g, 0] < 0
                row = ~grams[g, 0] if several else grams[g, 0]
                last = windows[row, 0]
                lower = unigram[last] if length == 1 else chain[length - 1, seats[last, length - 2]]
                p = (adjusted - discounts[k, min(adjusted, 3)]) * share + gamma * lower
                seats[last, length - 1] = g - begin
                chain[length, g - begin] = p
                at[k, size], held[k, size & (BLOCK - 1)] = row, p
                weight = 0.0
                if k < order and last != BOUNDARY:
                    weight = once[k + 1]
                    if not several and limited and allowed[tokens[positions[row] + 1]] == 0:
                        weight = 0.0
                    if several:
                        key = positions[row] * 8 + k
                        slot = (np.uint64(key) * GOLDEN >> np.uint64(32)) & mask
                        while keys[slot] != key and keys[slot] >= 0:
                            slot = (slot + np.uint64(1)) & mask
                        weight = values[slot] if keys[slot] == key else 0.0
                backoff[k, size] = weight
                size += 1
                if size & (BLOCK - 1) == 0:
                    _logs(held, k, size - BLOCK, size, logp)
            sizes[k] = size
        lower = unigram[word] if shared == 0 else chain[shared, seats[word, shared - 1]]
        if limited:
            for j in range(have + 1):
                if allowed[windows[i, j]] == 0:
                    have = np.int64(j - 1)  # only n-grams to the right of this word are kept
                    break
        for k in range(shared + 2, have + 2):
            if cutoffs[k] >= 1:
                break
            lower = 1.0 - discounts[k, 1] + discounts[k, 1] * lower
            size = sizes[k]
            at[k, size], held[k, size & (BLOCK - 1)] = i, lower
            weight = once[k + 1] if k < order and word != BOUNDARY else 0.0
            if limited and allowed[tokens[min(positions[i] + 1, len(tokens) - 1)]] == 0:
                weight = 0.0
            backoff[k, size] = weight
            sizes[k] = size + 1
            if sizes[k] & (BLOCK - 1) == 0:
                _logs(held, k, sizes[k] - BLOCK, sizes[k], logp)
    for k in range(2, order + 1):
        _logs(held, k, sizes[k] & -BLOCK, sizes[k], logp)
