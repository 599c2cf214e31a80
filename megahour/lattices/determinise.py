"""Determinisation of a word graph: keeps for each word sequence its best path, with labels and scores.

States are subsets of entries with residual weights (Mohri 1997). A weight is a pair of graph and acoustic cost with the
frame labels, ordered by the sum of the costs; what all residuals of a subset share moves to the arc into it (Povey et
al., "Generating exact lattices in the WFST framework", 2012). A state's frame is the label count of any path to it.

Subsets are expanded in order of their least entry, which rises along every arc, so all arcs into a subset are made
before it is expanded. Its least forward cost is then known, and only arcs within the beam are made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megahour.core.compiled import compiled
from megahour.lattices.arrays import grown, grown_rows, sort_ways
from megahour.lattices.beam import ROUNDING
from megahour.lattices.lattice import Lattice
from megahour.lattices.word_graph import WordGraph

DELTA = 1e-4
"""Residual costs closer than this (nats) count as equal when subsets are merged."""
ENTRY, FROM, LENGTH = 0, 1, 2  # of a member: its entry, and the position of its residual labels
BEGIN, STOP, FRAME, BEHIND, NUMBER = 0, 1, 2, 3, 4  # of a subset: its members, frame, next in the queue, number
SOURCE, TARGET, WORD, TEXT = 0, 1, 2, 3  # of an arc


def determinised(graph: WordGraph, words: Sequence[str], lattice_beam: float, max_arcs: int) -> Lattice | None:
    """The determinised lattice, without arcs whose best path is more than `lattice_beam` worse than the best.

    words: the spelling of each word number. Returns None if it would have more than `max_arcs` arcs.
    """
    arcs, costs, made, frame, pool = _determinised(graph, graph.backward[0] + lattice_beam + ROUNDING, max_arcs)
    if made > max_arcs:
        return None
    arcs = arcs[:made]
    order = np.lexsort((arcs[:, WORD], arcs[:, SOURCE]))
    source, target, word, text = arcs[order].T
    frame = frame.astype(np.int32)
    lengths = (frame[target] - frame[source]).astype(np.int64)
    ends = np.cumsum(lengths)
    labels = pool[np.repeat(text - ends + lengths, lengths) + np.arange(lengths.sum())]
    source, target, word = (each.astype(np.int32) for each in (source, target, word))
    return Lattice(source, target, word, costs[order, 0], costs[order, 1], frame, labels, words)


@compiled
def _determinised(graph, limit, max_arcs):  # type: ignore[no-untyped-def]
    """Arcs (≥ A, 4) in no order with their costs (≥ A, 2), A, frames of the states, and the labels that arcs name.

    A is above `max_arcs` where there would be too many."""
    end = len(graph.first) - 1
    member, owed, pool = np.zeros((64, 3), np.int64), np.zeros((64, 2)), np.empty(1024, np.int32)
    subset, forward = np.zeros((64, 5), np.int64), np.zeros(64)
    arcs, costs, made = np.empty((64, 4), np.int64), np.empty((64, 2)), 0
    table, waiting = np.full(256, -1, np.int64), np.full(end + 1, -1, np.int64)
    subset[0, STOP], subset[0, BEHIND], waiting[0] = 1, -1, 0
    # Literals would compile the functions that take them once more.
    written, subsets, done = np.int64(0), np.int64(1), np.int64(0)
    for least in range(end + 1):
        s = waiting[least]
        while s >= 0:
            subset[s, NUMBER] = done
            done += 1
            key, by, over, ways = _ways(graph, member, owed, subset[s, BEGIN], subset[s, STOP], limit - forward[s])
            at = np.int64(0)
            while at < ways:
                first, after = subset[subsets - 1, STOP], at
                while after < ways and key[after] // (end + 1) == key[at] // (end + 1):
                    after += 1
                member, owed, pool, last, written = _members(
                    graph, over, by, at, after, member, owed, pool, first, written
                )
                best = first
                for i in range(first + 1, last):
                    if owed[i, 0] + owed[i, 1] < owed[best, 0] + owed[best, 1]:
                        best = i
                common = _common(pool, member, first, last)
                if made == max_arcs:
                    return arcs, costs, made + 1, np.empty(0, np.int64), pool
                arcs, costs = grown_rows(arcs, made + 1), grown_rows(costs, made + 1)
                arcs[made, SOURCE], arcs[made, WORD], arcs[made, TEXT] = s, key[at] // (end + 1), member[best, FROM]
                costs[made, 0], costs[made, 1] = owed[best, 0], owed[best, 1]
                for i in range(first, last):
                    owed[i, 0] -= costs[made, 0]
                    owed[i, 1] -= costs[made, 1]
                    member[i, FROM] += common
                    member[i, LENGTH] -= common
                subset, forward = grown_rows(subset, subsets + 1), grown(forward, subsets + 1)
                subset[subsets, BEGIN], subset[subsets, STOP] = first, last
                if 2 * subsets >= len(table):
                    table = _rehashed(table, subset, subsets, member, owed, pool)
                slot = _slot(table, subset, member, owed, pool, subsets)
                if table[slot] < 0:
                    table[slot] = subsets
                    forward[subsets], subset[subsets, FRAME] = np.inf, subset[s, FRAME] + common
                    subset[subsets, BEHIND] = waiting[member[first, ENTRY]]
                    waiting[member[first, ENTRY]] = subsets
                    subsets += 1
                arcs[made, TARGET] = table[slot]
                forward[table[slot]] = min(forward[table[slot]], forward[s] + costs[made, 0] + costs[made, 1])
                made, at = made + 1, after
            s = subset[s, BEHIND]
    frame = np.empty(subsets, np.int64)
    for s in range(subsets):
        frame[subset[s, NUMBER]] = subset[s, FRAME]
    for a in range(made):
        arcs[a, SOURCE], arcs[a, TARGET] = subset[arcs[a, SOURCE], NUMBER], subset[arcs[a, TARGET], NUMBER]
    return arcs, costs, made, frame, pool


@compiled
def _ways(graph, member, owed, begin, stop, room):  # type: ignore[no-untyped-def]
    """Arcs out of a subset within the beam, in order: word and target as one key, the member that each leaves, its
    number; and how many there are."""
    key, by, over, ways = np.empty(64, np.int64), np.empty(64, np.int64), np.empty(64, np.int64), np.int64(0)
    entries = len(graph.first)
    for k in range(begin, stop):
        if member[k, ENTRY] == entries - 1:
            break
        for a in range(graph.first[member[k, ENTRY]], graph.first[member[k, ENTRY] + 1]):
            to = graph.target[a]
            if owed[k, 0] + owed[k, 1] + graph.graph[a] + graph.acoustic[a] + graph.backward[to] <= room:
                key, by, over = grown(key, ways + 1), grown(by, ways + 1), grown(over, ways + 1)
                key[ways], by[ways], over[ways] = np.int64(graph.word[a]) * entries + to, k, a
                ways += 1
    sort_ways(key, by, over, ways)
    return key, by, over, ways


@compiled
def _members(graph, over, by, at, after, member, owed, pool, first, written):  # type: ignore[no-untyped-def]
    """Appends the members that ways at … after - 1, all with one word, lead to; keeps the best way to each entry."""
    last = first
    for way in range(at, after):
        a, k = over[way], by[way]
        to_graph, to_acoustic = owed[k, 0] + graph.graph[a], owed[k, 1] + graph.acoustic[a]
        if last > first and member[last - 1, ENTRY] == graph.target[a]:
            if to_graph + to_acoustic >= owed[last - 1, 0] + owed[last - 1, 1]:
                continue
            last -= 1
        member, owed = grown_rows(member, last + 1), grown_rows(owed, last + 1)
        already = member[k, LENGTH]
        length = already + graph.frame[graph.target[a]] - graph.frame[member[k, ENTRY]]
        pool = grown(pool, written + length)
        for j in range(already):
            pool[written + j] = pool[member[k, FROM] + j]
        for j in range(already, length):
            pool[written + j] = graph.labels[graph.text[a] + j - already]
        member[last, ENTRY], member[last, FROM], member[last, LENGTH] = graph.target[a], written, length
        owed[last, 0], owed[last, 1] = to_graph, to_acoustic
        written += length
        last += 1
    return member, owed, pool, last, written


@compiled
def _common(pool, member, first, last):  # type: ignore[no-untyped-def]
    """Length of the common prefix of the residual labels of members first … last - 1."""
    common = member[first, LENGTH]
    for i in range(first + 1, last):
        j = 0
        while j < min(common, member[i, LENGTH]) and pool[member[i, FROM] + j] == pool[member[first, FROM] + j]:
            j += 1
        common = j
    return common


@compiled
def _slot(table, subset, member, owed, pool, s):  # type: ignore[no-untyped-def]
    """Where subset `s` is in the table, or the free slot for it."""
    begin, count = subset[s, BEGIN], subset[s, STOP] - subset[s, BEGIN]
    mixed = np.uint64(1469598103934665603)
    for i in range(begin, begin + count):
        mixed = (mixed ^ np.uint64(member[i, ENTRY])) * np.uint64(1099511628211)
        for j in range(member[i, LENGTH]):
            mixed = (mixed ^ np.uint64(pool[member[i, FROM] + j])) * np.uint64(1099511628211)
    slot = np.int64((mixed >> np.uint64(20)) % np.uint64(len(table)))
    while table[slot] >= 0:
        other = subset[table[slot], BEGIN]
        same = subset[table[slot], STOP] - other == count
        for i in range(count):
            if not same:
                break
            one, two = begin + i, other + i
            same = member[one, ENTRY] == member[two, ENTRY] and member[one, LENGTH] == member[two, LENGTH]
            same = same and abs(owed[one, 0] - owed[two, 0]) < DELTA and abs(owed[one, 1] - owed[two, 1]) < DELTA
            j = 0
            while same and j < member[one, LENGTH]:
                same = pool[member[one, FROM] + j] == pool[member[two, FROM] + j]
                j += 1
        if same:
            return slot
        slot = (slot + 1) % len(table)
    return slot


@compiled
def _rehashed(table, subset, subsets, member, owed, pool):  # type: ignore[no-untyped-def]
    """The table with twice the room."""
    larger = np.full(2 * len(table), -1, np.int64)
    for s in range(subsets):
        larger[_slot(larger, subset, member, owed, pool, s)] = s
    return larger
