"""A decoding graph laid out for lattice search. Its epsilons (arcs without a label) must not form cycles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megahour.units.fst import FstArrays

Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


class SearchGraph(NamedTuple):
    """A graph of S states. The arcs of a state are consecutive, epsilons first.

    first, labelled, stop: int64 (S,), a state's first arc, its first arc with a label, and the end of its arcs. level:
    int32 (S,), below `levels`; an epsilon leads to a higher level. gains: bool (S,), whether an epsilon of the state
    has a negative cost.
    """

    start: int
    first: Int64
    labelled: Int64
    stop: Int64
    label: Int32
    word: Int32
    cost: Float64
    target: Int32
    final: Float64
    level: Int32
    levels: int
    gains: NDArray[np.bool_]


def search_graph(fst: FstArrays) -> SearchGraph:
    """Lay out a graph. Raises ValueError: epsilons form a cycle, or a cost is NaN or negative infinity."""
    label, source, target = fst.arcs["ilabel"], fst.source, fst.arcs["nextstate"]
    cost, final = fst.arcs["weight"].astype(np.float64), fst.final.astype(np.float64)
    if not ((cost > -np.inf).all() and (final > -np.inf).all()):
        raise ValueError("a cost of the graph is NaN or negative infinity")
    counts = np.bincount(source, minlength=fst.states)
    first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    order = np.lexsort((label != 0, source))  # stable: epsilons first
    epsilons = np.bincount(source[label == 0], minlength=fst.states)
    gains = np.zeros(fst.states, np.bool_)
    gains[source[(label == 0) & (cost < 0)]] = True
    level = _levels(source[label == 0], target[label == 0], fst.states)
    return SearchGraph(
        fst.start,
        first[:-1],
        first[:-1] + epsilons,
        first[1:],
        np.ascontiguousarray(label[order]),
        np.ascontiguousarray(fst.arcs["olabel"][order]),
        cost[order],
        np.ascontiguousarray(target[order]),
        final,
        level,
        int(level.max()) + 1,
        gains,
    )


def _levels(source: Int32, target: Int32, states: int) -> Int32:
    """Level of each state (S,): the largest number of consecutive epsilons that lead to it."""
    level = np.zeros(states, np.int32)
    for _ in range(states + 1):
        raised = level.copy()
        np.maximum.at(raised, target, level[source] + 1)
        if np.array_equal(raised, level):
            return level
        level = raised
    raise ValueError("the graph has a cycle of arcs without labels")
