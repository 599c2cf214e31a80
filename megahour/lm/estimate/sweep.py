"""One pass over sorted histories: every n-gram, its counts and the sums over its context.

The positions of a partition, sorted by history, are the leaves of a trie whose nodes are contexts of c = 1 … n-1 words.
A node that holds a single position is not stored: its only (c+1)-gram occurs once, and so do the longer ones behind it.
Nodes of several positions are open while the pass goes through them, and stored when it leaves them, children first:

    raw(h w)  occurrences: of a node's own single positions, and of its children's
    a(h w)    adjusted count (Heafield et al. 2013, equation 1): children, i.e. different words before h, that have w;
              occurrences where h is the longest or begins the sentence
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.lm.estimate.history import history_words
from megahour.lm.text.arrays import Int32, Int64
from megahour.lm.text.machine import prefetch
from megahour.lm.text.tokenise import BOUNDARY, END

AHEAD = 8  # rows, or n-grams, between prefetching a word's entries and reading them
KEPT, CHARACTERS = 5, 6
TALLIES = 7  # columns of `tally`: n-grams with a = 0 … 4, then those that pruning keeps, and the bytes of their words
SUMS = 5  # of a context: Σ a, kept n-grams with a = 1, 2, ≥ 3, and Σ a of those that pruning drops (its wildcard entry)
Words = npt.NDArray[np.uint8] | None  # (V,) whether n-grams with the word are kept; None: all are


class SweepStore(NamedTuple):
    """What a sweep leaves behind.

    grams: (G, 4) int32, an n-gram of a stored node in a row: its last word; index of a position that ends its first
    occurrence; adjusted count; raw count. nodes: (N, 4) int32, a stored context in a row: words; its first n-gram; the
    n-gram after its last; index of a position that it holds. sums: (N, SUMS) int32. first: (N,) int64 corpus position
    of the last word of the context's first occurrence.
    """

    grams: Int32
    nodes: Int32
    sums: Int32
    first: Int64


class Open(NamedTuple):
    """Open contexts by their length. seats: (V, order - 1) int32 place of a word among a context's n-grams; sets:
    (order, room, 4) int32, rows as of Store.grams; sizes: (order,) int64."""

    seats: Int32
    sets: Int32
    sizes: Int64


def store(order: int, positions: int) -> SweepStore:
    """Room for `positions` positions; only what is written takes memory."""
    grams, nodes = positions * (order - 1), positions * (order - 1) // 2 + 1  # a stored context has two or more
    return SweepStore(
        np.empty((grams, 4), np.int32),
        np.empty((nodes, 4), np.int32),
        np.empty((nodes, SUMS), np.int32),
        np.empty(nodes, np.int64),
    )


def open_contexts(order: int, vocabulary: int, positions: int) -> Open:
    """Scratch of one thread, for partitions of at most `positions` positions."""
    room = min(vocabulary, positions) + 1
    return Open(
        np.zeros((vocabulary, max(order - 1, 1)), np.int32),
        np.empty((order, room, 4), np.int32),
        np.zeros(order, np.int64),
    )


def sweep(
    windows: Int32,
    positions: Int32,
    order: int,
    cutoffs: Int64,
    allowed: Words,
    lengths: Int32 | None,
    scratch: Open,
    out: SweepStore,
    unigrams: Int64,
    tally: Int64,
) -> tuple[int, int]:
    """Number of nodes stored, and of their n-grams, for sorted windows (m, order) and their positions (m,).

    cutoffs (order + 1,): k-grams with raw ≤ cutoffs[k] are dropped, and those with a word that is not `allowed`.
    lengths (V,): bytes of words; None: CHARACTERS are not counted. Adds to unigrams (V,), the adjusted counts of words,
    and to tally (order + 1, TALLIES).
    """
    result: tuple[int, int] = sweep_from(
        0, windows, positions, order, cutoffs, allowed, lengths, *scratch, *out, unigrams, tally
    )
    return result


# Arrays are plain arguments and nothing is factored out: numba counts references to arrays, by atomic additions,
# wherever they are fields or go to a function; that made this loop ten times slower.
@compiled
def sweep_from(  # type: ignore[no-untyped-def]
    floor,
    windows,
    positions,
    order,
    cutoffs,
    allowed,
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
    """`sweep` of positions whose histories share their last `floor` words: the rest of such a context is elsewhere.

    It is left open, its n-grams of these positions in sets[floor, :sizes[floor]]; `floor` is 0 for whole partitions.
    """
    # as unsigned numbers, an index needs no test whether it is negative
    windows, seats, sets = windows.view(np.uint32), seats.view(np.uint32), sets.view(np.uint32)
    grams, nodes, sums = grams.view(np.uint32), nodes.view(np.uint32), sums.view(np.uint32)
    m, width = len(positions), seats.shape[1]
    held = n = 0
    words, shared_words = history_words(windows, order, floor)
    for i in range(m):
        ahead = np.int64(min(i + AHEAD, m - 1))  # tables by word do not fit into the cache
        prefetch(unigrams, np.int64(windows[ahead, 0]))
        prefetch(seats, width * np.int64(windows[ahead, 0]))
        if lengths is not None:  # decided when the function is compiled
            for j in range(order):
                prefetch(lengths, np.int64(windows[ahead, j]))
        have, before, after = np.int64(words[i]), np.int64(shared_words[i]), np.int64(shared_words[i + 1])
        shared, word = max(before, after), windows[i, 0]
        characters = np.int64(0)
        if lengths is not None:
            characters += lengths[END if word == BOUNDARY else word]
        keep = True
        if allowed is not None:  # likewise
            keep = allowed[word] != 0
        for k in range(2, have + 2):
            if lengths is not None:
                characters += lengths[windows[i, k - 1]]
            if allowed is not None:
                keep = keep and allowed[windows[i, k - 1]] != 0
            if k > shared + 1:
                tally[k, 1] += 1
                if cutoffs[k] < 1 and keep:
                    tally[k, KEPT] += 1
                    tally[k, CHARACTERS] += characters
        if shared == 0:
            unigrams[word] += 1
        else:
            seat, size = seats[word, shared - 1], sizes[shared]
            if seat < size and sets[shared, seat, 0] == word:
                sets[shared, seat, 2] += 1
                sets[shared, seat, 3] += 1
                if positions[i] < positions[sets[shared, seat, 1]]:
                    sets[shared, seat, 1] = i
            else:
                seats[word, shared - 1] = size
                sets[shared, size, 0], sets[shared, size, 1], sets[shared, size, 2], sets[shared, size, 3] = (
                    word,
                    i,
                    1,
                    1,
                )
                sizes[shared] = size + 1
        for length in range(shared, after, -1):
            k, begin, up = length + 1, held, length - 1
            earliest = np.int64(1 << 62)
            total, ones, twos, more, dropped = 0, 0, 0, 0, 0
            characters = np.int64(0)
            keep = True
            for j in range(1, k):
                if lengths is not None:
                    characters += lengths[windows[i, j]]
                if allowed is not None:
                    keep = keep and allowed[windows[i, j]] != 0
            for seat in range(sizes[length]):
                if seat + AHEAD < sizes[length]:
                    ahead = np.int64(sets[length, seat + AHEAD, 0])
                    if lengths is not None:
                        prefetch(lengths, ahead)
                    if length == 1:
                        prefetch(unigrams, ahead)
                    else:
                        prefetch(seats, width * ahead)
                word, at = sets[length, seat, 0], sets[length, seat, 1]
                adjusted, raw = sets[length, seat, 2], sets[length, seat, 3]
                grams[held, 0], grams[held, 1], grams[held, 2], grams[held, 3] = word, at, adjusted, raw
                held += 1
                earliest = min(earliest, positions[at])
                total += adjusted
                if adjusted < 5:
                    tally[k, adjusted] += 1
                kept = raw > cutoffs[k] and keep
                if allowed is not None:
                    kept = kept and allowed[word] != 0
                if kept:
                    tally[k, KEPT] += 1
                    if lengths is not None:
                        tally[k, CHARACTERS] += characters + lengths[END if word == BOUNDARY else word]
                    ones += adjusted == 1
                    twos += adjusted == 2
                    more += adjusted > 2
                else:
                    dropped += adjusted
                if length == 1:
                    unigrams[word] += 1
                    continue
                place, size = seats[word, up - 1], sizes[up]
                if place < size and sets[up, place, 0] == word:
                    sets[up, place, 2] += 1
                    sets[up, place, 3] += raw
                    if positions[at] < positions[sets[up, place, 1]]:
                        sets[up, place, 1] = at
                else:
                    seats[word, up - 1] = size
                    sets[up, size, 0], sets[up, size, 1], sets[up, size, 2], sets[up, size, 3] = word, at, 1, raw
                    sizes[up] = size + 1
            sizes[length] = 0
            nodes[n, 0], nodes[n, 1], nodes[n, 2], nodes[n, 3] = length, begin, held, i
            first[n] = earliest - 1
            sums[n, 0], sums[n, 1], sums[n, 2], sums[n, 3], sums[n, 4] = total, ones, twos, more, dropped
            n += 1
    return n, held
