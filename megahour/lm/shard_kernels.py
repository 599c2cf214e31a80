"""Sweeping and smoothing one shard of a history that several shards share.

A history too frequent for one shard is parted by the word before it, and so on: the shards of such a split have the
first `floor` words of their histories in common. What belongs to contexts of at most `floor` words is theirs together:

    sweep_from    leaves the context of `floor` words open: its n-grams are this shard's share, to be added up
    close_shared  closes it, once the shares of all shards have been added
    smooth_from   starts from its probabilities, which every shard is given

With `floor` 0 they are the `sweep` and `smooth` of a whole partition. Adjusted counts add up, because different words
before a context are in one shard each; occurrences add up wherever they are cut. So the result is exact, to the bit.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from megahour.lm.smooth import log_probability
from megahour.lm.sweep import CHARACTERS, KEPT
from megahour.lm.tokenise import BOUNDARY, END

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


@njit(cache=True, nogil=True)
def count_words(tokens, end, counts):  # type: ignore[no-untyped-def]
    """Add to counts (V,) how often each word is among tokens[:end]."""
    for i in range(end):
        counts[tokens[i]] += 1


@njit(cache=True, nogil=True)
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


@njit(cache=True, nogil=True)
def scatter_rows(rows, column, shard_of, cursors, out):  # type: ignore[no-untyped-def]
    """Rows (m, W) by the shard of the word in a column; cursors (S,) as in `scatter_windows`."""
    for i in range(len(rows)):
        shard = shard_of[rows[i, column]]
        row = cursors[shard]
        cursors[shard] = row + 1
        for j in range(rows.shape[1]):
            out[row, j] = rows[i, j]


@njit(cache=True, nogil=True)
def group_rows(rows, order, part_of, cursors, windows, positions):  # type: ignore[no-untyped-def]
    """Take rows (m, order + 2) apart into windows (m, order) and positions (m,) int64, by part_of (V,) of T[p-1]."""
    for i in range(len(rows)):
        part = part_of[rows[i, 1]]
        row = cursors[part]
        cursors[part] = row + 1
        for j in range(order):
            windows[row, j] = rows[i, j]
        positions[row] = np.int64(rows[i, order]) | (np.int64(rows[i, order + 1]) << 31)


@njit(cache=True, nogil=True)
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


# Arrays are plain arguments and nothing is factored out, as in `sweep`: numba would count references to them.
@njit(cache=True, nogil=True)
def sweep_from(  # type: ignore[no-untyped-def]
    floor,
    windows,
    positions,
    order,
    prune,
    lengths,
    seats,
    sets,
    sizes,
    grams,
    nodes,
    sums,
    first,
    unigrams,
    tally,
):
    """`sweep` over windows (m, order) whose histories share `floor` words; returns (nodes, n-grams) stored.

    The shared context's n-grams are left in sets[floor, :sizes[floor]]: word, index of a position, adjusted count, raw.
    """
    m = len(positions)
    held = n = 0
    before = floor
    for i in range(m):
        after, have = floor, 1
        while have < order - 1 and windows[i, have] != BOUNDARY:
            have += 1
        if i + 1 < m:
            while after < have and windows[i, after + 1] == windows[i + 1, after + 1]:
                after += 1
        shared, word = max(before, after), windows[i, 0]
        characters = np.int64(lengths[END if word == BOUNDARY else word])
        for k in range(2, have + 2):
            characters += lengths[windows[i, k - 1]]
            if k > shared + 1:
                tally[k, 1] += 1
                if prune[k] < 1:
                    tally[k, KEPT] += 1
                    tally[k, CHARACTERS] += characters
        if shared == 0:
            unigrams[word] += 1
        else:
            seat, size = seats[shared, word], sizes[shared]
            if seat < size and sets[shared, seat, 0] == word:
                sets[shared, seat, 2] += 1
                sets[shared, seat, 3] += 1
                if positions[i] < positions[sets[shared, seat, 1]]:
                    sets[shared, seat, 1] = i
            else:
                seats[shared, word] = size
                sets[shared, size, 0], sets[shared, size, 1] = word, i
                sets[shared, size, 2], sets[shared, size, 3] = 1, 1
                sizes[shared] = size + 1
        for length in range(shared, after, -1):
            k, begin, up = length + 1, held, length - 1
            earliest = np.int64(1 << 62)
            total, ones, twos, more, dropped = 0, 0, 0, 0, 0
            characters = np.int64(0)
            for j in range(1, k):
                characters += lengths[windows[i, j]]
            for seat in range(sizes[length]):
                word, at = sets[length, seat, 0], sets[length, seat, 1]
                adjusted, raw = sets[length, seat, 2], sets[length, seat, 3]
                grams[held, 0], grams[held, 1], grams[held, 2], grams[held, 3] = word, at, adjusted, raw
                held += 1
                earliest = min(earliest, positions[at])
                total += adjusted
                if adjusted < 5:
                    tally[k, adjusted] += 1
                if raw > prune[k]:
                    tally[k, KEPT] += 1
                    tally[k, CHARACTERS] += characters + lengths[END if word == BOUNDARY else word]
                    ones += adjusted == 1
                    twos += adjusted == 2
                    more += adjusted > 2
                else:
                    dropped += adjusted
                if length == 1:
                    unigrams[word] += 1
                    continue
                place, size = seats[up, word], sizes[up]
                if place < size and sets[up, place, 0] == word:
                    sets[up, place, 2] += 1
                    sets[up, place, 3] += raw
                    if positions[at] < positions[sets[up, place, 1]]:
                        sets[up, place, 1] = at
                else:
                    seats[up, word] = size
                    sets[up, size, 0], sets[up, size, 1], sets[up, size, 2], sets[up, size, 3] = word, at, 1, raw
                    sizes[up] = size + 1
            sizes[length] = 0
            nodes[n, 0], nodes[n, 1], nodes[n, 2], nodes[n, 3] = length, begin, held, i
            first[n] = earliest - 1
            sums[n, 0], sums[n, 1], sums[n, 2], sums[n, 3], sums[n, 4] = total, ones, twos, more, dropped
            n += 1
        before = after
    return n, held


@njit(cache=True, nogil=True)
def shared_probabilities(adjusted, sums, discount, lower, out):  # type: ignore[no-untyped-def]
    """p(w|h) (n,) of a shared context from adjusted (n,), its sums (5,), the order's discounts (4,) and p(w|h') (n,).

    The arithmetic of `smooth`, operation by operation, so that results are the same to the bit.
    """
    total = 1.0 / sums[0]
    gamma = discount[1] * sums[1] + discount[2] * sums[2] + discount[3] * sums[3]
    gamma = (gamma + sums[4]) * total
    for i in range(len(adjusted)):
        out[i] = (adjusted[i] - discount[min(adjusted[i], 3)]) * total + gamma * lower[i]


@njit(cache=True, nogil=True)
def look_up(wanted, keys, values, out):  # type: ignore[no-untyped-def]
    """Values of the keys wanted (n,) in a table of `fill_names`, which must hold them."""
    mask = np.uint64(len(keys) - 1)
    for i in range(len(wanted)):
        slot = (np.uint64(wanted[i]) * _GOLDEN >> _HALF) & mask
        while keys[slot] != wanted[i]:
            slot = (slot + np.uint64(1)) & mask
        out[i] = values[slot]


@njit(cache=True, nogil=True)
def log_probabilities(p, out):  # type: ignore[no-untyped-def]
    """log10 of p (n,) as ARPA files have it."""
    for i in range(len(p)):
        out[i] = log_probability(p[i])


@njit(cache=True, nogil=True)
def smooth_from(  # type: ignore[no-untyped-def]
    floor,
    windows,
    positions,
    order,
    prune,
    discounts,
    unigram,
    grams,
    nodes,
    sums,
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
    """`smooth` over windows whose histories share `floor` words, p(w|h) of which are in chain[floor, seats[floor, w]].

    Fills at, logp, backoff (order + 1, room) by order and sizes (order + 1,), for orders above floor + 1 only.
    """
    mask = np.uint64(len(keys) - 1)
    sizes[:] = 0
    once = np.zeros(order + 2)
    for k in range(2, order + 1):
        once[k] = log_probability(discounts[k, 1]) if prune[k] < 1 else 0.0
    after = floor
    for i in range(len(positions) - 1, -1, -1):
        before, have = floor, 1
        while have < order - 1 and windows[i, have] != BOUNDARY:
            have += 1
        if i:
            while before < have and windows[i, before + 1] == windows[i - 1, before + 1]:
                before += 1
        shared, word = max(before, after), windows[i, 0]
        for length in range(after + 1, shared + 1):
            n -= 1
            k, begin = length + 1, nodes[n, 1]
            total = 1.0 / sums[n, 0]
            gamma = discounts[k, 1] * sums[n, 1] + discounts[k, 2] * sums[n, 2] + discounts[k, 3] * sums[n, 3]
            gamma = (gamma + sums[n, 4]) * total
            size = sizes[k]
            for g in range(begin, nodes[n, 2]):
                last, adjusted, raw = grams[g, 0], grams[g, 2], grams[g, 3]
                lower = unigram[last] if length == 1 else chain[length - 1, seats[length - 1, last]]
                p = (adjusted - discounts[k, min(adjusted, 3)]) * total + gamma * lower
                seats[length, last] = g - begin
                chain[length, g - begin] = p
                if raw <= prune[k]:
                    continue
                at[k, size], logp[k, size] = grams[g, 1], log_probability(p)
                weight = 0.0
                if k < order and last != BOUNDARY:
                    weight = once[k + 1]
                    if raw > 1:
                        key = positions[grams[g, 1]] * 8 + k
                        slot = (np.uint64(key) * _GOLDEN >> _HALF) & mask
                        while keys[slot] != key:
                            slot = (slot + np.uint64(1)) & mask
                        weight = values[slot]
                backoff[k, size] = weight
                size += 1
            sizes[k] = size
        lower = unigram[word] if shared == 0 else chain[shared, seats[shared, word]]
        for k in range(shared + 2, have + 2):
            if prune[k] >= 1:
                break
            lower = 1.0 - discounts[k, 1] + discounts[k, 1] * lower
            size = sizes[k]
            at[k, size], logp[k, size] = i, log_probability(lower)
            backoff[k, size] = once[k + 1] if k < order and word != BOUNDARY else 0.0
            sizes[k] = size + 1
        after = before
