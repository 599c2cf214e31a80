"""Exact forward-backward sums over the paths of a graph of senone arcs, one arc per frame, for all sequence criteria.

With acoustic scores l(t, v), the weight of a path is the sum of its arcs' weights and scores, and of its initial and
final weight. `sums` returns the log sum over all paths of an utterance's length, the share of it through each senone at
each frame (the occupation γ), the expected number of frames at which a path has a wanted senone (the gain F), and the
gradient of F by the scores, γ(t, v) · (F given v at t - F).

On a CPU, compiled loops use doubles that are scaled at each frame (`scaled_sums`). If these underflow, the utterance is
summed in logarithms. Other devices sum in logarithms only, with torch operations on the batch that never synchronise.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from megahour.losses.scaled_sums import ScaledGraph

Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]


@dataclass(frozen=True)
class ArcGraph:
    """An acceptor of senones without epsilons: S states and A arcs, each of which takes one frame.

    source, target, senone: int32 (A,). weight: float64 (A,), in nats, higher is likelier. initial, final: float64 (S,),
    weights of beginning and ending in a state, -inf if no path does.

    Raises
    ------
    ValueError: arrays of unequal length, states or senones out of range, or weights that are NaN or +inf.
    """

    source: Int32
    target: Int32
    senone: Int32
    weight: Float64
    initial: Float64
    final: Float64
    _moved: dict[torch.device, tuple[Tensor, ...]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        states, arcs = len(self.initial), len(self.source)
        if len(self.final) != states or not (len(self.target) == len(self.senone) == len(self.weight) == arcs):
            raise ValueError("the arcs' arrays, or those of the states, are unequal in length")
        ends = np.concatenate((self.source, self.target))
        if arcs and not (ends.min() >= 0 and ends.max() < states and self.senone.min() >= 0):
            raise ValueError(f"an arc leaves the {states} states, or has a senone below 0")
        if not all((each < np.inf).all() for each in (self.weight, self.initial, self.final)):
            raise ValueError("weights of a graph must be numbers below infinity")

    @staticmethod
    def of(
        source: ArrayLike, target: ArrayLike, senone: ArrayLike, weight: ArrayLike, initial: ArrayLike, final: ArrayLike
    ) -> ArcGraph:
        """Convert columns of any type."""
        source, target, senone = (np.asarray(each, np.int32) for each in (source, target, senone))
        weight, initial, final = (np.asarray(each, np.float64) for each in (weight, initial, final))
        return ArcGraph(source, target, senone, weight, initial, final)

    @property
    def arcs(self) -> int:
        return len(self.source)

    @property
    def senones(self) -> int:
        """One more than the highest senone."""
        return int(self.senone.max(initial=-1)) + 1

    @cached_property
    def scaled(self) -> ScaledGraph:
        """The graph in the form for CPUs."""
        return ScaledGraph.of(self.source, self.target, self.senone, self.weight, self.initial, self.final)

    def on(self, device: torch.device) -> tuple[Tensor, ...]:
        """Source, target, senone, weight, initial and final on a device, cached."""
        if device not in self._moved:
            whole = (torch.from_numpy(each).long() for each in (self.source, self.target, self.senone))
            real = (torch.from_numpy(each) for each in (self.weight, self.initial, self.final))
            self._moved[device] = tuple(each.to(device) for each in (*whole, *real))
        return self._moved[device]


class PathSums(NamedTuple):
    """Log sum (B,), gain (B,), occupation (B, T, V) and gradient of the gain (B, T, V) of B utterances, float64.

    Without a path, the log sum is -inf and everything else 0. Values beyond an utterance's length are 0.
    """

    log_sum: Tensor
    gain: Tensor
    occupation: Tensor
    gain_gradient: Tensor


def sums(graph: ArcGraph, scores: Tensor, lengths: Tensor, wanted: Tensor) -> PathSums:
    """Sums over the paths of each utterance.

    Parameters
    ----------
    scores (B, T, V): in nats, any precision; sums are in float64. lengths (B,): frames. wanted (B, T): the senone whose
        arcs gain 1 at a frame, below 0 for none.

    On a CPU, torch's threads share the utterances.
    """
    scores = scores.detach().double()
    lengths, wanted = lengths.to(scores.device), wanted.to(scores.device)
    if scores.device.type != "cpu":
        return _in_logarithms(graph, scores, lengths, wanted)
    nothing = torch.zeros(len(scores), dtype=torch.float64)
    found = PathSums(nothing, nothing.clone(), torch.zeros_like(scores), torch.zeros_like(scores))

    def some(own: Tensor) -> None:
        part, held = _scaled(graph.scaled, scores[own], lengths[own], wanted[own])
        for whole, values in zip(found, part, strict=True):
            whole[own] = values
        if len(own := own[~held]):
            for whole, values in zip(found, _in_logarithms(graph, scores[own], lengths[own], wanted[own]), strict=True):
                whole[own] = values

    threads = max(1, min(torch.get_num_threads(), len(scores)))
    together = min(graph.scaled.side_by_side(scores.shape[1]), -(-len(scores) // threads))
    parts = torch.split(lengths.argsort(descending=True, stable=True), max(1, together))
    if threads == 1:
        for own in parts:
            some(own)
    else:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(some, parts))
    return found


def _scaled(graph: ScaledGraph, scores: Tensor, lengths: Tensor, wanted: Tensor) -> tuple[PathSums, Tensor]:
    """Sums of utterances (B, T, V), the longest first, in scaled doubles; and which did not underflow (B,)."""
    frames = int(lengths[0])
    highest = scores[:, :frames].amax(dim=2)
    shift = torch.where(highest.isfinite(), highest, 0.0)
    emission = torch.zeros(frames, scores.shape[2], len(scores), dtype=torch.float64)
    emission.permute(2, 0, 1).copy_(scores[:, :frames] - shift[..., None]).exp_()
    through, gained = torch.zeros_like(scores), torch.zeros_like(scores)
    sums = through[:, :frames].permute(1, 2, 0), gained[:, :frames].permute(1, 2, 0)
    log_sum, gain, held = graph.sums(
        emission.numpy(), lengths.numpy(), wanted[:, :frames].T.numpy(), *(each.numpy() for each in sums)
    )
    of_shifts = torch.where(torch.arange(frames) < lengths[:, None], shift, 0.0).sum(1)
    found = PathSums(torch.from_numpy(log_sum) + of_shifts, torch.from_numpy(gain), through, gained)
    return found, torch.from_numpy(held) & found.log_sum.isfinite()


def _in_logarithms(graph: ArcGraph, scores: Tensor, lengths: Tensor, wanted: Tensor) -> PathSums:
    """`sums` of float64 scores with torch operations on their device. Gains are means over the paths so far."""
    source, target, senone, weight, initial, final = graph.on(scores.device)
    batch, frames, _ = scores.shape
    states = len(initial)
    going = torch.arange(frames, device=scores.device)[:, None, None] < lengths[:, None]  # (T, B, 1)
    sure = weight + scores.new_zeros(batch, 1)  # (B, A)
    logs, gains = initial.expand(batch, -1), scores.new_zeros(batch, states)
    kept = []
    for t in range(frames):
        kept.append((logs, gains))
        arcs = logs[:, source] + sure + scores[:, t, senone]
        right = gains[:, source] + (senone == wanted[:, t, None])
        new, new_gains = gathered(arcs, right, target, states)
        logs, gains = torch.where(going[t], new, logs), torch.where(going[t], new_gains, gains)
    log_sum = torch.logsumexp(logs + final, 1)
    gain = (share(logs + final, log_sum[:, None]) * gains).sum(1)
    occupation, gain_gradient = torch.zeros_like(scores), torch.zeros_like(scores)
    logs, gains = final.expand(batch, -1), scores.new_zeros(batch, states)
    for t in range(frames - 1, -1, -1):
        arcs = logs[:, target] + sure + scores[:, t, senone]
        right = gains[:, target] + (senone == wanted[:, t, None])
        before, before_gains = kept.pop()
        through = torch.where(going[t], share(before[:, source] + arcs, log_sum[:, None]), 0.0)
        occupation[:, t].index_add_(1, senone, through)
        gain_gradient[:, t].index_add_(1, senone, through * (before_gains[:, source] + right - gain[:, None]))
        new, new_gains = gathered(arcs, right, source, states)
        logs, gains = torch.where(going[t], new, logs), torch.where(going[t], new_gains, gains)
    return PathSums(log_sum, gain, occupation, gain_gradient)


def gathered(arcs: Tensor, gains: Tensor, ends: Tensor, states: int) -> tuple[Tensor, Tensor]:
    """Log sums (B, S) of the arcs (B, A) at each state, and the means of their gains. ends: states (A,)."""
    nothing = arcs.new_full((len(arcs), states), -torch.inf)
    highest = nothing.scatter_reduce(1, ends.expand_as(arcs), arcs, "amax")
    shift = torch.where(highest.isfinite(), highest, 0.0)
    total = torch.zeros_like(shift).index_add(1, ends, (arcs - shift[:, ends]).exp()).log() + shift
    return total, torch.zeros_like(shift).index_add(1, ends, share(arcs, total[:, ends]) * gains)


def share(part: Tensor, whole: Tensor) -> Tensor:
    """exp(part - whole), and 0 if `part` is -inf, even if `whole` is too."""
    return torch.where(part == -torch.inf, 0.0, (part - whole).exp())
