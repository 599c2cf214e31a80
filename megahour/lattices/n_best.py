"""The best paths of a word lattice, and its best texts."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np

from megahour.lattices.lattice import Lattice, completions

Way = tuple[int, Any]  # an arc and the way before it, or ()
TRIED = 100  # paths looked at for each text that is wanted


class BestPath(NamedTuple):
    """A path: its words, arcs and cost in nats, of which `graph` is the graph's."""

    words: tuple[str, ...]
    arcs: tuple[int, ...]
    cost: float
    graph: float


def best_paths(lattice: Lattice, scale: float) -> Iterator[BestPath]:
    """All paths, best first, at acoustic scale `scale` (A* with the exact cost to the end as heuristic).

    Our lattices have each sequence of words once, those of other recognisers may have it several times.
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


def best_texts(lattice: Lattice, scale: float, texts: int) -> list[BestPath]:
    """The best path of each of the `texts` best texts; fewer where many paths have the same text."""
    found: dict[tuple[str, ...], BestPath] = {}
    for path in islice(best_paths(lattice, scale), TRIED * texts):
        found.setdefault(path.words, path)
        if len(found) == texts:
            break
    return list(found.values())


def _unrolled(way: Any) -> list[int]:
    arcs = []
    while way:
        arc, way = way
        arcs.append(arc)
    return arcs[::-1]
