"""Rows of positions on their way to shards: scattered, grouped, their words listed; and what shards share."""

from __future__ import annotations

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.estimate.smooth import GOLDEN, log_probability


@compiled
def count_words(tokens, end, counts):  # type: ignore[no-untyped-def]
    """Add to counts (V,) how often each word is among tokens[:end]."""
    for i in range(end):
        counts[tokens[i]] += 1


@compiled
def scatter_windows(tokens, base, begin, end, order, shard_of, cursors, rows):  # type: ignore[no-untyped-def]
    """Rows (m, order + 2) of positions begin .. end-1 of `tokens`, by the shard of their history's last word.

    Columns: T[p], T[p-1], …, then p + base as two halves. shard_of (V,); cursors (S,): where a shard's rows begin; they
    move on. begin ≥ order - 1.
    """
    for p in range(begin, end):
        shard = shard_of[tokens[p - 1]]
        row = cursors[shard]
        cursors[shard] = row + 1
        for j in range(order):
            rows[row, j] = tokens[p - j]
        place = p + base
        rows[row, order] = place & 0x7FFFFFFF
        rows[row, order + 1] = place >> 31


@compiled
def scatter_rows(rows, column, shard_of, cursors, out):  # type: ignore[no-untyped-def]
    """Rows (m, W) by the shard of the word in a column; cursors (S,) as in `scatter_windows`."""
    for i in range(len(rows)):
        shard = shard_of[rows[i, column]]
        row = cursors[shard]
        cursors[shard] = row + 1
        for j in range(rows.shape[1]):
            out[row, j] = rows[i, j]


@compiled
def group_rows(rows, order, part_of, cursors, windows, positions):  # type: ignore[no-untyped-def]
    """Take rows (m, order + 2) apart into windows (m, order) and positions (m,) int64, by part_of (V,) of T[p-1]."""
    for i in range(len(rows)):
        part = part_of[rows[i, 1]]
        row = cursors[part]
        cursors[part] = row + 1
        for j in range(order):
            windows[row, j] = rows[i, j]
        positions[row] = np.int64(rows[i, order]) | (np.int64(rows[i, order + 1]) << 31)


@compiled
def appearances(rows, column, counts, words, known):  # type: ignore[no-untyped-def]
    """Count the words of a column in counts (V,), and list them in words (V,) in order of appearance, after `known`.

    Returns how many are listed.
    """
    for i in range(len(rows)):
        word = rows[i, column]
        if counts[word] == 0:
            words[known] = word
            known += 1
        counts[word] += 1
    return known


@compiled
def shared_probabilities(adjusted, sums, discount, lower, out):  # type: ignore[no-untyped-def]
    """p(w|h) (n,) of a shared context from adjusted (n,), its sums (5,), the order's discounts (4,) and p(w|h') (n,).

    The arithmetic of `smooth`, operation by operation, so that results are the same to the bit.
    """
    total = 1.0 / sums[0]
    gamma = discount[1] * sums[1] + discount[2] * sums[2] + discount[3] * sums[3]
    gamma = (gamma + sums[4]) * total
    for i in range(len(adjusted)):
        out[i] = (adjusted[i] - discount[min(adjusted[i], 3)]) * total + gamma * lower[i]


@compiled
def look_up(wanted, keys, values, out):  # type: ignore[no-untyped-def]
    """Values of the keys wanted (n,) in a table of `fill_names`, which must hold them."""
    mask = np.uint64(len(keys) - 1)
    for i in range(len(wanted)):
        slot = (np.uint64(wanted[i]) * GOLDEN >> np.uint64(32)) & mask
        while keys[slot] != wanted[i]:
            slot = (slot + np.uint64(1)) & mask
        out[i] = values[slot]


@compiled
def log_probabilities(p, out):  # type: ignore[no-untyped-def]
    """log10 of p (n,) as ARPA files have it."""
    for i in range(len(p)):
        out[i] = log_probability(p[i])
