"""The best paths of a word lattice, each with a different word sequence."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from megahour.lattices.lattice import Lattice, completions

Way = tuple[int, Any]  # an arc and the way before it, or ()


class BestPath(NamedTuple):
    """A path: its words, arcs and cost in nats, of which `graph` is the graph's."""

    words: tuple[str, ...]
    arcs: tuple[int, ...]
    cost: float
    graph: float


def best_paths(lattice: Lattice, scale: float) -> Iterator[BestPath]:
    """All paths, best first, at acoustic scale `scale` (A* with the exact cost to the end as heuristic).

    A lattice has each sequence of words once, so the paths are an n-best list of texts.
    """
    costs, rest = lattice.costs(scale).tolist(), completions(lattice, scale).tolist()
    first = np.searchsorted(lattice.source, np.arange(lattice.states + 1)).tolist()
    target, end, numbers = lattice.target.tolist(), lattice.states - 1, count()
    waiting: list[tuple[float, int, float, int, Any]] = [(rest[0], next(numbers), 0.0, 0, ())]
    while waiting and waiting[0][0] < np.inf:
        _, _, so_far, state, way = heapq.heappop(waiting)
        if state == end:
            arcs = tuple(_unrolled(way))
            yield BestPath(lattice.text(arcs), arcs, so_far, float(lattice.graph[list(arcs)].sum()))
            continue
        for arc in range(first[state], first[state + 1]):
            cost = so_far + costs[arc]
            heapq.heappush(waiting, (cost + rest[target[arc]], next(numbers), cost, target[arc], (arc, way)))


def _unrolled(way: Any) -> list[int]:
    arcs = []
    while way:
        arc, way = way
        arcs.append(arc)
    return arcs[::-1]
