"""One pass over sorted histories, which counts every n-gram and computes the sums of its context.

The positions of a partition, sorted by history, are the leaves of a trie whose nodes are contexts of c = 1 … n-1 words.
A node with a single position is not stored: its only (c+1)-gram occurs once, and so do longer n-grams through it. Nodes
with several positions are open while the pass is inside them, and are stored when it leaves them, children first:

    raw(h w)  occurrences, from single positions and children of the node
    a(h w)    adjusted count (Heafield et al. 2013, equation 1): number of different words before h w, i.e. of children
              with w; number of occurrences if h has the greatest length or begins the sentence

The second pass needs each n-gram once, where it occurs first, and two positions of a context, which show that it is
stored. The pass can leave the other rows out: at order 3 of a large text, most of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.lm.estimate.history import ROWS, history_words
from megahour.lm.estimate.kept_ngrams import Kept, most
from megahour.lm.text.arrays import Int32, Int64
from megahour.lm.text.machine import prefetch
from megahour.lm.text.tokenise import BOUNDARY, END

AHEAD = 8  # rows, or n-grams, between the prefetch of a word's entries and their use
KEPT, CHARACTERS = 5, 6
TALLIES = 7  # columns of `tally`: n-grams with a = 0 … 4; KEPT: n-grams not dropped; CHARACTERS: bytes of their words
SUMS = 5  # of a context: Σ a, kept n-grams with a = 1, 2, ≥ 3, and Σ a of the dropped n-grams (its wildcard entry)
ALL_WORDS, NO_LENGTHS, NO_NODES = np.empty(0, np.uint8), np.empty(0, np.int32), np.empty((0, 3), np.int32)
"""What `sweep_from` takes for None: each None would be one more type of its arguments, and all of it compiled again."""
Words = npt.NDArray[np.uint8] | None  # (V,) whether n-grams with the word are kept; None: all are


class SweepStore(NamedTuple):
    """The result of a sweep.

    grams: (G, 4) int32, one row per n-gram of a stored node: last word; index of the position that ends its first
    occurrence; adjusted count; raw count. nodes: (N, 4) int32, one row per stored context: length; first n-gram; end of
    its n-grams; index of one of its positions. sums: (N, SUMS) int32. first: (N,) int64 corpus position where the
    context first ends.
    """

    grams: Int32
    nodes: Int32
    sums: Int32
    first: Int64


class Open(NamedTuple):
    """Open contexts by length. seats: (V, order - 1) int32 place of a word among a context's n-grams; sets:
    (order, room, 4) int32, rows as in SweepStore.grams; sizes: (order,) int64."""

    seats: Int32
    sets: Int32
    sizes: Int64


def store(order: int, positions: int) -> SweepStore:
    """Arrays for the sweep of `positions` positions. Untouched pages take no memory."""
    grams, nodes = most(order, positions)
    return SweepStore(
        np.empty((grams, 4), np.int32),
        np.empty((nodes, 4), np.int32),
        np.empty((nodes, SUMS), np.int32),
        np.empty(nodes, np.int64),
    )


def open_contexts(order: int, vocabulary: int, positions: int) -> Open:
    """Scratch for one thread, for partitions of at most `positions` positions."""
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
    kept: Kept | None = None,
    compact: bool = False,
) -> tuple[int, int, int]:
    """Sweep sorted windows (m, order) with their positions (m,); return the numbers of stored nodes, n-grams and rows.

    kept: where the n-grams go that are not dropped, in place of out.grams with all. compact: move the rows that the
    second pass needs to the front of windows and positions; indices are of these.

    cutoffs (order + 1,): k-grams with raw ≤ cutoffs[k] are dropped, and those with a word that is not `allowed`.
    lengths (V,): bytes of words; None: do not count CHARACTERS. Adds to unigrams (V,), the adjusted counts of words,
    and to tally (order + 1, TALLIES).
    """
    arrays = out if kept is None else out._replace(grams=kept.grams)
    nodes = NO_NODES if kept is None else kept.nodes
    words = ALL_WORDS if allowed is None else allowed, NO_LENGTHS if lengths is None else lengths
    result: tuple[int, int, int] = sweep_from(
        0, windows, positions, order, cutoffs, *words, *scratch, *arrays, nodes, unigrams, tally, compact
    )
    return result


# All arrays are plain arguments, and there are no helper functions: numba counts references, by atomic additions, to
# arrays that are fields or arguments of a call, which made this loop ten times slower.
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
    kept_nodes,
    unigrams,
    tally,
    compact,
):
    """`sweep` of a part of the positions of one context, that of their last `floor` words (0: whole partitions).

    The context stays open; its n-grams in these positions are in sets[floor, : sizes[floor]]. kept_nodes: those of
    `Kept`, whose n-grams then are `grams`, or NO_NODES. allowed, lengths: ALL_WORDS and NO_LENGTHS for none.
    """
    # unsigned: indexing needs no test for negative numbers
    windows, seats, sets = windows.view(np.uint32), seats.view(np.uint32), sets.view(np.uint32)
    grams, nodes, sums = grams.view(np.uint32), nodes.view(np.uint32), sums.view(np.uint32)
    m, width = len(positions), seats.shape[1]
    limited, spelled, keeps = len(allowed) > 0, len(lengths) > 0, len(kept_nodes) > 0
    held = n = rows = 0
    alone: np.bool_ = np.bool_(False)  # the row before is the only one so far of its history
    words, shared_words = np.empty(ROWS + 1, np.uint8), np.empty(ROWS + 1, np.uint8)
    for i in range(m):
        row = i & (ROWS - 1)
        if row == 0:
            history_words(windows, order, floor, i, words, shared_words)
        ahead = np.int64(min(i + AHEAD, m - 1))  # tables by word do not fit into the cache
        prefetch(unigrams, np.int64(windows[ahead, 0]))
        prefetch(seats, width * np.int64(windows[ahead, 0]))
        if spelled:
            prefetch(lengths, np.int64(windows[ahead, 0]))  # those of the history are its neighbours', too
        have, before, after = np.int64(words[row]), np.int64(shared_words[row]), np.int64(shared_words[row + 1])
        shared, word = max(before, after), windows[i, 0]
        at_row = rows  # the row's index, if the second pass needs it
        rows += 1
        if shared < have:  # else no n-gram occurs here alone
            characters = np.int64(0)
            if spelled:
                characters += lengths[END if word == BOUNDARY else word]
            keep = True
            if limited:
                keep = allowed[word] != 0
            for k in range(2, have + 2):
                if spelled:
                    characters += lengths[windows[i, k - 1]]
                if limited:
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
                    sets[shared, seat, 1] = at_row
                elif compact and not alone and shared == have:
                    rows -= 1
            else:
                seats[word, shared - 1] = size
                sets[shared, size, 0], sets[shared, size, 1] = word, at_row
                sets[shared, size, 2], sets[shared, size, 3] = 1, 1
                sizes[shared] = size + 1
        alone = before < have
        if at_row < rows and at_row < i:
            positions[at_row] = positions[i]
            for j in range(order):
                windows[at_row, j] = windows[i, j]
        for length in range(shared, after, -1):
            k, begin, up = length + 1, held, length - 1
            earliest = np.int64(1 << 62)
            total, ones, twos, more, dropped = 0, 0, 0, 0, 0
            characters = np.int64(0)
            keep = True
            for j in range(1, k):
                if spelled:
                    characters += lengths[windows[i, j]]
                if limited:
                    keep = keep and allowed[windows[i, j]] != 0
            for seat in range(sizes[length]):
                if seat + AHEAD < sizes[length]:
                    ahead = np.int64(sets[length, seat + AHEAD, 0])
                    if spelled:
                        prefetch(lengths, ahead)
                    if length == 1:
                        prefetch(unigrams, ahead)
                    else:
                        prefetch(seats, width * ahead)
                word, at = sets[length, seat, 0], sets[length, seat, 1]
                adjusted, raw = sets[length, seat, 2], sets[length, seat, 3]
                if not keeps:
                    grams[held, 0], grams[held, 1], grams[held, 2], grams[held, 3] = word, at, adjusted, raw
                    held += 1
                else:
                    grams[held, 0] = ~np.int64(at) if raw > 1 else np.int64(at)  # overwritten by the next if dropped
                    grams[held, 1] = adjusted
                earliest = min(earliest, positions[at])
                total += adjusted
                if adjusted < 5:
                    tally[k, adjusted] += 1
                kept = raw > cutoffs[k] and keep
                if limited:
                    kept = kept and allowed[word] != 0
                if kept:
                    tally[k, KEPT] += 1
                    if keeps:
                        held += 1
                    if spelled:
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
            nodes[n, 0], nodes[n, 1], nodes[n, 2], nodes[n, 3] = length, begin, held, rows - 1
            if keeps:
                kept_nodes[n, 0], kept_nodes[n, 1], kept_nodes[n, 2] = length, held, dropped
            first[n] = earliest - 1
            sums[n, 0], sums[n, 1], sums[n, 2], sums[n, 3], sums[n, 4] = total, ones, twos, more, dropped
            n += 1
    return n, held, rows
