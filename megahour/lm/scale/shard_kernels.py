"""Compiled loops that distribute rows of positions to shards and compute what shards share."""

from __future__ import annotations

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.estimate.smooth import GOLDEN, log_probability


@compiled
def scatter_windows(tokens, base, begin, end, order, shard_of, cursors, rows):  # type: ignore[no-untyped-def]
    """Write rows (m, order + 2) of positions begin .. end-1 of `tokens`, by the shard of their history's last word.

    Columns: T[p], T[p-1], …, then p + base in two halves. shard_of (V,). cursors (S,): where a shard's next row goes;
    they are advanced. begin ≥ order - 1.
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
    """Copy rows (m, W) to `out` by the shard of the word in a column; cursors as in `scatter_windows`."""
    for i in range(len(rows)):
        shard = shard_of[rows[i, column]]
        row = cursors[shard]
        cursors[shard] = row + 1
        for j in range(rows.shape[1]):
            out[row, j] = rows[i, j]


@compiled
def group_rows(rows, order, base, cursors, windows, positions):  # type: ignore[no-untyped-def]
    """Split rows (m, order + 2) into windows (m, order) and positions (m,) int64, grouped by their word T[p-1].

    cursors (W,): where the next row of words base, base + 1, … goes; they are advanced.
    """
    for i in range(len(rows)):
        word = rows[i, 1] - base
        row = cursors[word]
        cursors[word] = row + 1
        for j in range(order):
            windows[row, j] = rows[i, j]
        positions[row] = np.int64(rows[i, order]) | (np.int64(rows[i, order + 1]) << 31)


@compiled
def move_children(tokens, positions, distance, slots, cursors, out):  # type: ignore[no-untyped-def]
    """Copy positions (m,) to out (m,) by the slot (V,) of the word `distance` tokens before each.

    cursors as in `scatter_windows`.
    """
    for i in range(len(positions)):
        slot = slots[tokens[positions[i] - distance]]
        out[cursors[slot]] = positions[i]
        cursors[slot] += 1


@compiled
def _count(word, counts, words, known):  # type: ignore[no-untyped-def]
    """Count a word, and list it if it is new. Returns the number of listed words."""
    counts[word] += 1
    if counts[word] > 1:
        return known
    words[known] = word
    return known + 1


@compiled
def appearances_before(tokens, positions, distance, counts, words):  # type: ignore[no-untyped-def]
    """`appearances` of the words `distance` tokens before positions (m,) of a text."""
    known = 0
    for i in range(len(positions)):
        known = _count(tokens[positions[i] - distance], counts, words, known)
    return known


@compiled
def appearances(rows, column, counts, words, known):  # type: ignore[no-untyped-def]
    """Count the words of a column in counts (V,), and append new ones to the `known` first of words (V,).

    Returns the number of listed words.
    """
    for i in range(len(rows)):
        known = _count(rows[i, column], counts, words, known)
    return known


@compiled
def shared_probabilities(adjusted, sums, discount, lower, out):  # type: ignore[no-untyped-def]
    """p(w|h) (n,) of a shared context from adjusted counts (n,), sums (5,), discounts (4,) and p(w|h') (n,).

    Repeats the arithmetic of `smooth` operation by operation, so that the results have the same bits.
    """
    total = 1.0 / sums[0]
    gamma = discount[1] * sums[1] + discount[2] * sums[2] + discount[3] * sums[3]
    gamma = (gamma + sums[4]) * total
    for i in range(len(adjusted)):
        out[i] = (adjusted[i] - discount[min(adjusted[i], 3)]) * total + gamma * lower[i]


@compiled
def take_contexts(  # type: ignore[no-untyped-def]
    nodes, n, sums, first, windows, shard_of, words, word_sums, names, targets, rows
):
    """Sort the n nodes of a sweep by length. Contexts of one word go to words (N,) and word_sums (N, SUMS). Longer ones
    go to names (N, 7), the columns of `shard_types.NAME`, with targets (N,) of their last but one word and rows (N,) of
    windows. Returns the number of each.
    """
    short = long = 0
    for node in range(n):
        length, row = nodes[node, 0], nodes[node, 3]
        if length == 1:
            words[short] = windows[row, 1]
            for column in range(sums.shape[1]):
                word_sums[short, column] = sums[node, column]
            short += 1
            continue
        key = first[node] * 8 + length
        names[long, 0], names[long, 1] = np.int32(key & 0xFFFFFFFF), np.int32(key >> 32)
        for column in range(sums.shape[1]):
            names[long, 2 + column] = sums[node, column]
        targets[long], rows[long] = shard_of[windows[row, 2]], row
        long += 1
    return short, long


@compiled
def place_names(names, targets, cursors, out):  # type: ignore[no-untyped-def]
    """Copy names (N, 7) to out (N, 7) by target (N,); cursors as in `scatter_windows`."""
    for i in range(len(names)):
        row = cursors[targets[i]]
        cursors[targets[i]] = row + 1
        for column in range(names.shape[1]):
            out[row, column] = names[i, column]


@compiled
def fill_gammas(names, discounts, keys, values):  # type: ignore[no-untyped-def]
    """Fill a hash table like that of `smooth.fill_names` with log10 γ of names (N, 7); discounts (order + 2, 4)."""
    mask = np.uint64(len(keys) - 1)
    keys[:] = -1
    for i in range(len(names)):
        key = np.int64(names[i, 0]) & 0xFFFFFFFF | np.int64(names[i, 1]) << 32
        k = (key & 7) + 1
        total, ones, twos, more, dropped = names[i, 2], names[i, 3], names[i, 4], names[i, 5], names[i, 6]
        freed = discounts[k, 1] * ones + discounts[k, 2] * twos + discounts[k, 3] * more + dropped
        slot = (np.uint64(key) * GOLDEN >> np.uint64(32)) & mask
        while keys[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        keys[slot], values[slot] = key, log_probability(freed / total)


@compiled
def look_up(wanted, keys, values, out):  # type: ignore[no-untyped-def]
    """out (n,): values of the keys `wanted` (n,) in a table of `smooth.fill_names`, which must have them."""
    mask = np.uint64(len(keys) - 1)
    for i in range(len(wanted)):
        slot = (np.uint64(wanted[i]) * GOLDEN >> np.uint64(32)) & mask
        while keys[slot] != wanted[i]:
            slot = (slot + np.uint64(1)) & mask
        out[i] = values[slot]


@compiled
def log_probabilities(p, out):  # type: ignore[no-untyped-def]
    """out (n,): log10 of p (n,), at least NEVER and at most 0."""
    for i in range(len(p)):
        out[i] = log_probability(p[i])
