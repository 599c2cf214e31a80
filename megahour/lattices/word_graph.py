"""Turns a state lattice into a word graph: each stretch up to the next word becomes one arc, its best path.

A node where a word was just written, or the first node, is an *entry*. An arc of the word graph leads from an entry,
over arcs without words and one with a word, to that arc's end. It keeps the labels of its frames. All sequences of
words are there with their best scores.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megahour.core.compiled import compiled
from megahour.lattices.arrays import grown
from megahour.lattices.beam import StateLattice

Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


class WordGraph(NamedTuple):
    """E entries in topological order, the first of which begins all paths, and arcs in order of their entry.

    Entry E is the end; arcs to it have word 0. first: int64 (E + 1,). target, word: int32 (A,). graph, acoustic:
    float64 (A,), costs in nats. labels: int32, one a frame of each arc, which begin at text (A,) int64. frame: int32
    (E + 1,). backward: float64 (E + 1,), least cost to the end.
    """

    first: Int64
    target: Int32
    word: Int32
    graph: Float64
    acoustic: Float64
    text: Int64
    labels: Int32
    frame: Int32
    backward: Float64


def word_graph(lattice: StateLattice, lattice_beam: float) -> WordGraph:
    """Arcs whose best path is worse than the overall best by more than `lattice_beam` are left out."""
    return WordGraph(*_word_graph(lattice, lattice.backward[0] + lattice_beam))


@compiled
def _entries(lattice):  # type: ignore[no-untyped-def]
    """The entry number of each node, or -1 if it is not an entry; and the number of entries."""
    entry_of = np.full(len(lattice.frame), -1, np.int32)
    entry_of[0], entries = 0, 1
    for a in range(len(lattice.target)):
        if lattice.word[a]:
            entry_of[lattice.target[a]] = 0
    for n in range(1, len(entry_of)):
        if entry_of[n] == 0:
            entry_of[n] = entries
            entries += 1
    return entry_of, entries


@compiled
def _word_graph(lattice, limit):  # type: ignore[no-untyped-def]
    nodes = len(lattice.frame)
    entry_of, entries = _entries(lattice)
    first, backward, frame = np.zeros(entries + 1, np.int64), np.zeros(entries + 1), np.zeros(entries + 1, np.int32)
    frame[entries] = lattice.frame[nodes - 1]
    target, word, text = np.empty(64, np.int32), np.empty(64, np.int32), np.empty(64, np.int64)
    graph, acoustic, labels = np.empty(64), np.empty(64), np.empty(1024, np.int32)
    arcs, written = 0, 0
    # Of the nodes that the entry n reaches without a word: the best way there, its last arc and the node before.
    seen, by, before = np.full(nodes, -1, np.int32), np.empty(nodes, np.int64), np.empty(nodes, np.int32)
    way_graph, way_acoustic = np.empty(nodes), np.empty(nodes)
    for n in range(nodes):
        e = entry_of[n]
        if e < 0:
            continue
        backward[e], frame[e] = lattice.backward[n], lattice.frame[n]
        seen[n], way_graph[n], way_acoustic[n] = n, 0.0, 0.0
        room = limit - lattice.forward[n]
        last, m = n, n
        while m <= last:
            if seen[m] == n:
                for a in range(lattice.first[m], lattice.first[m + 1] + 1):  # the last stands for the end
                    ends = a == lattice.first[m + 1]
                    d = -1 if ends else lattice.target[a]
                    to_graph = way_graph[m] + (lattice.final[m] if ends else lattice.graph[a])
                    to_acoustic = way_acoustic[m] + (0.0 if ends else lattice.acoustic[a])
                    value = to_graph + to_acoustic
                    if not value + (0.0 if ends else lattice.backward[d]) <= room:
                        continue
                    if ends or lattice.word[a]:
                        target, word, text = grown(target, arcs + 1), grown(word, arcs + 1), grown(text, arcs + 1)
                        graph, acoustic = grown(graph, arcs + 1), grown(acoustic, arcs + 1)
                        target[arcs] = entries if ends else entry_of[d]
                        word[arcs] = 0 if ends else lattice.word[a]
                        graph[arcs], acoustic[arcs], text[arcs] = to_graph, to_acoustic, written
                        written += (lattice.frame[m] if ends else lattice.frame[d]) - lattice.frame[n]
                        labels = grown(labels, written)
                        _spell(lattice, n, m, -1 if ends else a, by, before, labels, written)
                        arcs += 1
                    elif seen[d] != n or value < way_graph[d] + way_acoustic[d]:
                        seen[d], way_graph[d], way_acoustic[d] = n, to_graph, to_acoustic
                        by[d], before[d] = a, m
                        last = max(last, d)
            m += 1
        first[e + 1] = arcs
    return (
        first, target[:arcs], word[:arcs], graph[:arcs], acoustic[:arcs], text[:arcs], labels[:written], frame,
        backward,
    )  # fmt: skip


@compiled
def _spell(lattice, start, node, arc, by, before, labels, end):  # type: ignore[no-untyped-def]
    """Write the labels of the best way from `start` to `node`, and of `arc` behind it, to labels[… end]."""
    if arc >= 0 and lattice.label[arc]:
        end -= 1
        labels[end] = lattice.label[arc] - 1
    while node != start:
        if lattice.label[by[node]]:
            end -= 1
            labels[end] = lattice.label[by[node]] - 1
        node = before[node]
