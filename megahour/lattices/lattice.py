"""Word lattices: what they hold, their best path, and exact sums over all their paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megahour.core.compiled import compiled

Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]


@dataclass(frozen=True)
class Lattice:
    """S states in topological order and A arcs sorted by source, then word. Paths lead from the first state to the
    last.

    source, target, word: int32 (A,); `words[word]` is the spelling; word 0 is none, only on arcs to the last state.
    graph, acoustic: costs float64 (A,) in nats; acoustic costs are unscaled. frame: int32 (S,).
    labels: int32, one per frame of each arc, in order of the arcs; empty if unknown.
    """

    source: Int32
    target: Int32
    word: Int32
    graph: Float64
    acoustic: Float64
    frame: Int32
    labels: Int32
    words: Sequence[str]

    @property
    def states(self) -> int:
        return len(self.frame)

    @property
    def arcs(self) -> int:
        return len(self.source)

    @property
    def frames(self) -> int:
        return int(self.frame[-1])

    def costs(self, scale: float) -> Float64:
        """Total costs of the arcs (A,), with acoustic costs scaled by `scale`."""
        return self.graph + scale * self.acoustic

    def text(self, arcs: Sequence[int]) -> tuple[str, ...]:
        """The words of a path."""
        return tuple(self.words[self.word[arc]] for arc in arcs if self.word[arc])

    def labels_of(self, arcs: Sequence[int]) -> Int32:
        """The labels of a path, one a frame."""
        ends = np.cumsum(self.frame[self.target] - self.frame[self.source])
        begins = ends - (self.frame[self.target] - self.frame[self.source])
        return np.concatenate([self.labels[begins[arc] : ends[arc]] for arc in arcs] or [np.zeros(0, np.int32)])


class PathWeights(NamedTuple):
    """-ln of the sum over all paths, and each arc's share of it (A,), from 0 to 1."""

    cost: float
    posterior: Float64


def posteriors(lattice: Lattice, scale: float) -> PathWeights:
    """Forward-backward over all paths, with the acoustics at `scale` and the graph's costs as they are."""
    return PathWeights(*_posteriors(lattice.source, lattice.target, lattice.costs(scale), lattice.states))


def completions(lattice: Lattice, scale: float) -> Float64:
    """Least cost from each state to the end (S,), infinite if the end cannot be reached."""
    return np.asarray(_backward(lattice.source, lattice.target, lattice.costs(scale), lattice.states))


def best_path(lattice: Lattice, scale: float) -> list[int]:
    """Arcs of the path with the least cost; ties go to the first arc."""
    backward, costs = completions(lattice, scale), lattice.costs(scale)
    first = np.searchsorted(lattice.source, np.arange(lattice.states + 1))
    state, arcs = 0, []
    while state != lattice.states - 1:
        out = np.arange(first[state], first[state + 1])
        arcs.append(int(out[np.argmin(costs[out] + backward[lattice.target[out]])]))
        state = int(lattice.target[arcs[-1]])
    return arcs


def pruned(lattice: Lattice, scale: float, beam: float) -> Lattice:
    """Without arcs whose best path is worse than the best of all by more than `beam`, and without paths that end
    nowhere. Raises ValueError: no path leads to the end."""
    costs, backward = lattice.costs(scale), completions(lattice, scale)
    forward = _forward(lattice.source, lattice.target, costs, lattice.states)
    if not backward[0] < np.inf:
        raise ValueError("no path leads to the final state")
    through = forward[lattice.source] + costs + backward[lattice.target]
    kept = (through <= backward[0] + beam + 1e-7) & (through < np.inf)
    used = np.zeros(lattice.states, np.bool_)
    used[[0, -1]] = used[lattice.source[kept]] = True
    number = (np.cumsum(used) - 1).astype(np.int32)
    lengths = lattice.frame[lattice.target] - lattice.frame[lattice.source]
    return replace(
        lattice,
        **{name: getattr(lattice, name)[kept] for name in ("word", "graph", "acoustic")},
        source=number[lattice.source[kept]],
        target=number[lattice.target[kept]],
        frame=lattice.frame[used],
        labels=lattice.labels[np.repeat(kept, lengths)] if len(lattice.labels) else lattice.labels,
    )


@compiled
def _forward(source, target, cost, states):  # type: ignore[no-untyped-def]
    least = np.full(states, np.inf)
    least[0] = 0.0
    for a in range(len(source)):
        least[target[a]] = min(least[target[a]], least[source[a]] + cost[a])
    return least


@compiled
def _backward(source, target, cost, states):  # type: ignore[no-untyped-def]
    least = np.full(states, np.inf)
    least[states - 1] = 0.0
    for a in range(len(source) - 1, -1, -1):
        least[source[a]] = min(least[source[a]], cost[a] + least[target[a]])
    return least


@compiled
def _posteriors(source, target, cost, states):  # type: ignore[no-untyped-def]
    forward, backward = np.full(states, -np.inf), np.full(states, -np.inf)
    forward[0], backward[states - 1] = 0.0, 0.0
    for a in range(len(source)):
        forward[target[a]] = np.logaddexp(forward[target[a]], forward[source[a]] - cost[a])
    for a in range(len(source) - 1, -1, -1):
        backward[source[a]] = np.logaddexp(backward[source[a]], backward[target[a]] - cost[a])
    share = np.empty(len(source))
    for a in range(len(source)):
        share[a] = np.exp(forward[source[a]] - cost[a] + backward[target[a]] - forward[states - 1])
    return -forward[states - 1], share
