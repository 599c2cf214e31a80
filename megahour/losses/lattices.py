"""Exact sums over the paths of word lattices, one per utterance, like those of `arcs` over the paths of a graph.

An arc of a lattice spans several frames, each with a senone. Its acoustic score is the sum of its frames' scores, and
its gain is the number of its frames with the wanted senone. Forward and backward pass over arcs, not frames: the
lattices of a batch form one graph, which is processed level by level (the level of a state is the number of arcs on the
longest path to it). All operations are torch's, in logarithms, the same on every device, and never synchronise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from megahour.losses.arcs import PathSums, gathered, share

Int64 = NDArray[np.int64]


class LatticeArcs(NamedTuple):
    """One utterance's lattice. All paths lead from state 0 to the last state; without arcs there is no path.

    source, target: (A,), states. begin, length: (A,), first frame of each arc, and number of its frames. weight: (A,),
    in nats, higher is likelier. senones: those of all arcs' frames, in the order of the arcs.
    """

    source: NDArray[Any]
    target: NDArray[Any]
    begin: NDArray[Any]
    length: NDArray[Any]
    weight: NDArray[Any]
    senones: NDArray[Any]


@dataclass(frozen=True)
class LevelOfArcs:
    """The arcs (K,) of a level, the states (S,) at one of their ends, and each arc's index into these states (K,)."""

    arcs: Tensor
    states: Tensor
    place: Tensor

    def to(self, device: torch.device) -> LevelOfArcs:
        return LevelOfArcs(*(each.to(device, non_blocking=True) for each in (self.arcs, self.states, self.place)))


@dataclass(frozen=True)
class FrameLattices:
    """The lattices of B utterances as one graph.

    source, target, weight, utterance: (A,), of each arc. first, last: (B,), initial and final state of each lattice.
    arc, frame, senone: (N,), of each frame of each arc; `frame` counts within the utterance. states: number of states
    of all lattices. ahead, back: levels in the order of the forward pass (by the arcs' targets) and of the backward
    pass (by their sources).
    """

    source: Tensor
    target: Tensor
    weight: Tensor
    utterance: Tensor
    first: Tensor
    last: Tensor
    arc: Tensor
    frame: Tensor
    senone: Tensor
    states: int
    senones: int
    ahead: tuple[LevelOfArcs, ...]
    back: tuple[LevelOfArcs, ...]

    @staticmethod
    def of(lattices: Sequence[LatticeArcs]) -> FrameLattices:
        """Join lattices, on the host. Raises ValueError: an arc leads back, or frames and senones do not match."""
        sizes = [int(each.target.max()) + 1 if len(each.target) else 2 for each in lattices]
        first = np.cumsum([0, *sizes])
        source, target = (
            np.concatenate([getattr(each, name) + at for each, at in zip(lattices, first, strict=False)]).astype(int)
            for name in ("source", "target")
        )
        lengths, begin, weight, senone = (
            np.concatenate([getattr(each, name) for each in lattices])
            for name in ("length", "begin", "weight", "senones")
        )
        if (source >= target).any() or (lengths < 0).any() or lengths.sum() != len(senone):
            raise ValueError("an arc of a lattice leads back, or its frames do not fit its senones")
        arc = np.repeat(np.arange(len(source)), lengths)
        within = np.arange(len(arc)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        level = _levels(source, target, int(first[-1]))
        utterance = np.repeat(np.arange(len(lattices)), [len(each.source) for each in lattices])
        return FrameLattices(
            source=torch.from_numpy(source),
            target=torch.from_numpy(target),
            weight=torch.from_numpy(np.asarray(weight, np.float64)),
            utterance=torch.from_numpy(utterance),
            first=torch.from_numpy(first[:-1]),
            last=torch.from_numpy(first[1:] - 1),
            arc=torch.from_numpy(arc),
            frame=torch.from_numpy(np.asarray(begin[arc] + within, np.int64)),
            senone=torch.from_numpy(np.asarray(senone, np.int64)),
            states=int(first[-1]),
            senones=int(senone.max(initial=-1)) + 1,
            ahead=_by_level(level[target], target),
            back=_by_level(-level[source], source),
        )

    def to(self, device: torch.device) -> FrameLattices:
        """Copy to a device, asynchronously."""
        moved = {
            name: each.to(device, non_blocking=True) for name, each in vars(self).items() if isinstance(each, Tensor)
        }
        levels = {name: tuple(each.to(device) for each in getattr(self, name)) for name in ("ahead", "back")}
        return replace(self, **moved, **levels)  # type: ignore[arg-type]


def lattice_sums(lattices: FrameLattices, scores: Tensor, wanted: Tensor) -> PathSums:
    """Sums like `arcs.sums`: scores (B, T, V) in nats, any precision; wanted (B, T). Lattices end within T."""
    scores = scores.detach().double()
    wanted = wanted.to(scores.device)
    source, target, utterance, arc = lattices.source, lattices.target, lattices.utterance, lattices.arc
    at = utterance[arc], lattices.frame, lattices.senone
    weight = lattices.weight.index_add(0, arc, scores[at])
    right = torch.zeros_like(weight).index_add(0, arc, (lattices.senone == wanted[at[:2]]).double())
    nothing = scores.new_full((lattices.states,), -torch.inf)
    logs, gains = _swept(nothing.index_fill(0, lattices.first, 0.0), lattices.ahead, source, weight, right)
    after, after_gains = _swept(nothing.index_fill(0, lattices.last, 0.0), lattices.back, target, weight, right)
    log_sum, gain = logs[lattices.last], gains[lattices.last]
    through = share(logs[source] + weight + after[target], log_sum[utterance])
    gained = through * (gains[source] + right + after_gains[target] - gain[utterance])
    occupation, gain_gradient = (
        torch.zeros_like(scores).index_put_(at, each[arc], accumulate=True) for each in (through, gained)
    )
    return PathSums(log_sum, gain, occupation, gain_gradient)


def _swept(
    logs: Tensor, levels: Sequence[LevelOfArcs], before: Tensor, weight: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """Log sums (S,) of the paths to each state, starting from `logs` (S,), and the mean gains of these paths."""
    gains = torch.zeros_like(logs)
    for level in levels:
        own, states = level.arcs, level.states
        ways, their = logs[before[own]] + weight[own], gains[before[own]] + right[own]
        new, new_gains = gathered(ways[None], their[None], level.place, len(states))
        logs, gains = logs.index_copy(0, states, new[0]), gains.index_copy(0, states, new_gains[0])
    return logs, gains


def _levels(source: Int64, target: Int64, states: int) -> Int64:
    """Number of arcs on the longest path to each state (S,)."""
    level = np.zeros(states, np.int64)
    while True:
        longer = level.copy()
        np.maximum.at(longer, target, level[source] + 1)
        if (longer == level).all():
            return level
        level = longer


def _by_level(level: Int64, state: Int64) -> tuple[LevelOfArcs, ...]:
    """Group arcs by their `level` (A,), lowest first. state: (A,), the state at the relevant end of each arc."""
    levels = []
    for number in np.unique(level):
        arcs = np.flatnonzero(level == number)
        states, place = np.unique(state[arcs], return_inverse=True)
        levels.append(LevelOfArcs(*map(torch.from_numpy, (arcs, states, place.ravel()))))
    return tuple(levels)
