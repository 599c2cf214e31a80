"""Positions of a corpus by history: partitioned by the last word, sorted by the words before it.

A position p stands for the predicted token T[p] and its history T[p-1], T[p-2], …, back to the BOUNDARY before the
sentence. In partitions by the last word of the history, one partition has all that Kneser-Ney smoothing needs above
unigrams: n(h w), the sums over w, the number of different words before a suffix, and the probability of the suffix,
because a suffix of two words or more has the same last word (Heafield et al. 2013, section 3, sorts instead). Within a
partition positions are sorted by T[p-1], then T[p-2], …, so every context is a run of neighbours.
"""

from __future__ import annotations

import numpy as np

from megahour.core.compiled import compiled, put
from megahour.lm.text.arrays import Int64
from megahour.lm.text.machine import prefetch
from megahour.lm.text.tokenise import BOUNDARY

AHEAD = 24  # rows between the prefetch of a row and its use; a third of it for the entries of its word
LINE = 16  # positions in a cache line
ROWS = 1 << 11  # whose shared words are counted together: they stay in the cache
SMALL = 24  # largest node that is sorted by insertion


@compiled
def history_counts(tokens, begin, end, counts):  # type: ignore[no-untyped-def]
    """Add to counts (V,) how often each word is the last of a history, for positions begin .. end-1 (begin ≥ 1)."""
    for p in range(begin, end):
        counts[tokens[p - 1]] += 1


@compiled
def partition(tokens, begin, end, cursors, positions):  # type: ignore[no-untyped-def]
    """Write each position to the next place of its word in `positions`. cursors (V,) are advanced."""
    for p in range(begin, end):
        word = tokens[p - 1]
        positions[cursors[word]] = p
        cursors[word] += 1


@compiled
def partition_by_owner(tokens, begin, end, owner, cursors, positions):  # type: ignore[no-untyped-def]
    """`partition` by the owner (V,) of the word instead, with one cursor per owner: fewer streams of writes."""
    for p in range(begin, end):
        part = owner[tokens[p - 1]]
        at = cursors[part]
        prefetch(positions, at + LINE)
        positions[at] = p
        cursors[part] = at + 1


@compiled
def order_by_word(windows, first, cursors, index):  # type: ignore[no-untyped-def]
    """index (m,): the rows of windows (m, order) in stable order of the history's last word.

    cursors: next places of the words `first`, first + 1, …; they are advanced.
    """
    for i in range(len(index)):
        word = windows[i, 1] - first
        index[cursors[word]] = i
        cursors[word] += 1


def buckets(counts: Int64, largest: int) -> Int64:
    """Divide the words into ranges of at most `largest` positions, or of one word; return their edges (B + 1,)."""
    edges = np.empty(len(counts) + 1, np.int64)
    size = _buckets(counts, largest, edges)
    edges[size] = len(counts)
    return edges[: size + 1]


@compiled
def _buckets(counts, largest, edges):  # type: ignore[no-untyped-def]
    """Write the first word of each range; return the number of ranges."""
    size, held = 1, 0
    edges[0] = 0
    for word in range(len(counts)):
        if held and counts[word] and held + counts[word] > largest:
            edges[size], held = word, 0
            size += 1
        held += counts[word]
    return size


# With a constant in the place of `order`, LLVM unrolls the loops over the words of a history: the functions below call
# these once for each usual order.
@compiled(inline=True)
def _gather(tokens, positions, order, windows):  # type: ignore[no-untyped-def]
    m = len(positions)
    for i in range(m):
        # Neighbours in a partition are far apart in the corpus: without the prefetch each row is a cache miss.
        if i + AHEAD < m:
            prefetch(tokens, np.int64(positions[i + AHEAD]))
            prefetch(tokens, np.int64(positions[i + AHEAD]) - order + 1)
        p = np.uint64(positions[i])  # unsigned, as below
        for j in range(order):
            windows[i, j] = tokens[p - np.uint64(j)]


@compiled(inline=True)
def _permute(order, windows, positions, index, windows_out, positions_out):  # type: ignore[no-untyped-def]
    index = index.view(np.uint32)
    for i in range(len(index)):
        row = index[i]
        positions_out[i] = positions[row]
        for j in range(order):
            windows_out[i, j] = windows[row, j]


@compiled
def gather(tokens, positions, order, windows):  # type: ignore[no-untyped-def]
    """windows (m, order): column j is T[p-j], p ≥ order - 1. Words before the sentence's BOUNDARY have no meaning."""
    if order == 3:
        _gather(tokens, positions, 3, windows)
    elif order == 5:
        _gather(tokens, positions, 5, windows)
    else:
        _gather(tokens, positions, order, windows)


@compiled
def permute(windows, positions, index, windows_out, positions_out):  # type: ignore[no-untyped-def]
    """Copy rows of windows (m, order) and positions (m,) in the order of index (m,)."""
    order = windows.shape[1]
    if order == 3:
        _permute(3, windows, positions, index, windows_out, positions_out)
    elif order == 5:
        _permute(5, windows, positions, index, windows_out, positions_out)
    else:
        _permute(order, windows, positions, index, windows_out, positions_out)


@compiled
def word_nodes(first, ends, stack):  # type: ignore[no-untyped-def]
    """Fill the stack of `sort_histories` where rows are grouped by word already: those of word `first` + i end at
    ends[i]. Returns `top`."""
    top = start = 0
    for i in range(len(ends)):
        stop = ends[i]
        if stop - start > 1 and first + i != BOUNDARY:
            stack[top], stack[top + 1], stack[top + 2] = start, stop, 2
            top += 3
        start = stop
    return top


@compiled
def sort_histories(windows, order, index, scratch, seat, keys, sizes, stack, top):  # type: ignore[no-untyped-def]
    """Sort index (m,) by columns 1 .. order-1 of windows; equal histories keep their order.

    stack[:top]: the nodes to sort, three numbers each: begin, end, and the column by which they are to be split. One
    node (0, m, 1) sorts all.
    Scratch: scratch (m,) int32; seat (V,) int32; keys, sizes (≥ min(m, V) + 1,) int32; stack (≥ 3 m + 3,) int32. Nodes
    are split by the next word. Seats are assigned in order of appearance, so nothing is cleared between nodes.
    """
    # unsigned: indexing needs no test for negative numbers
    windows, index, scratch = windows.view(np.uint32), index.view(np.uint32), scratch.view(np.uint32)
    seat, keys, sizes = seat.view(np.uint32), keys.view(np.uint32), sizes.view(np.uint32)
    pairs = np.empty(SMALL, np.uint64)
    while top:
        top -= 3
        begin, end, level = stack[top], stack[top + 1], stack[top + 2]
        if end - begin <= SMALL:  # by insertion, two words at a time
            size = end - begin
            for i in range(size):
                item = index[begin + i]
                word = windows[item, level]
                pair = np.uint64(word) << np.uint64(32)
                if word != BOUNDARY and level + 1 < order:
                    pair |= np.uint64(windows[item, level + 1])
                j = i
                while j > 0 and pairs[j - 1] > pair:
                    pairs[j], index[begin + j] = pairs[j - 1], index[begin + j - 1]
                    j -= 1
                pairs[j], index[begin + j] = pair, item
            start = 0
            for i in range(1, size + 1 if level + 2 < order else 0):
                if i < size and pairs[i] == pairs[start]:
                    continue
                ends = pairs[start] >> np.uint64(32) == BOUNDARY or pairs[start] & np.uint64(0xFFFFFFFF) == BOUNDARY
                if i - start > 1 and not ends:
                    stack[top], stack[top + 1], stack[top + 2] = begin + start, begin + i, level + 2
                    top += 3
                start = i
            continue
        children, grouped = 0, True
        for i in range(begin, end):
            prefetch(windows, np.int64(index[min(i + AHEAD, end - 1)]) * order + level)
            prefetch(seat, np.int64(windows[index[min(i + AHEAD // 3, end - 1)], level]))
            word = windows[index[i], level]
            at = seat[word]
            if at >= children or keys[at] != word:
                at = children
                seat[word], keys[at], sizes[at] = at, word, 0
                children += 1
            sizes[at] += 1
            grouped = grouped and at == children - 1
        if grouped:
            start = begin
            for at in range(children):
                start += sizes[at]
                sizes[at] = start
        else:
            start = begin
            for at in range(children):
                size = sizes[at]
                sizes[at] = start
                start += size
            for i in range(begin, end):
                item = index[i]
                at = seat[windows[item, level]]
                scratch[sizes[at]] = item
                sizes[at] += 1
            put(index[begin:end], scratch[begin:end])
        if level + 1 < order:
            start = begin
            for at in range(children):
                stop = sizes[at]
                if stop - start > 1 and keys[at] != BOUNDARY:
                    stack[top], stack[top + 1], stack[top + 2] = start, stop, level + 1
                    top += 3
                start = stop


@compiled(inline=True)
def _history_words(windows, order, floor, begin, words, shared):  # type: ignore[no-untyped-def]
    size = min(len(windows) - begin, ROWS)
    for i in range(size + (begin + size < len(windows))):  # no branches on words, which would be predicted wrongly
        row, above = begin + i, max(begin + i - 1, 0)
        have, same, inside, alike = np.uint8(1), np.uint8(0), np.uint8(1), np.uint8(1)
        for j in range(1, order):
            alike &= np.uint8(windows[row, j] == windows[above, j]) & inside
            same += alike
            inside &= np.uint8(windows[row, j] != BOUNDARY)
            have += inside
        words[i] = have - inside
        shared[i] = max(same, floor)
    if begin == 0:
        shared[0] = floor
    if begin + size == len(windows):
        shared[size] = floor


@compiled
def history_words(windows, order, floor, begin, words, shared):  # type: ignore[no-untyped-def]
    """words (ROWS + 1,): the length of each history from row `begin` on, at most order - 1; shared (ROWS + 1,): the
    number of words that it shares with the one before it, also for the row after them.

    windows (m, order): sorted. floor: number of words that all share, also with the ones before and after them.
    """
    if order == 3:
        _history_words(windows, 3, floor, begin, words, shared)
    elif order == 5:
        _history_words(windows, 5, floor, begin, words, shared)
    else:
        _history_words(windows, order, floor, begin, words, shared)


@compiled
def all_history_words(windows, order):  # type: ignore[no-untyped-def]
    """words (≥ m,) and shared (≥ m + 1,) of `history_words` for all rows of whole partitions."""
    size = len(windows) + ROWS + 1
    words, shared = np.empty(size, np.uint8), np.empty(size, np.uint8)
    for begin in range(0, len(windows), ROWS):
        history_words(windows, order, np.int64(0), begin, words[begin:], shared[begin:])
    return words, shared
