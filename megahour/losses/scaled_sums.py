"""Sums over the paths of a graph of senone arcs on a CPU, by compiled loops over several utterances side by side.

Arcs that lead to the same state with the same senone form a bundle, and the acoustics of a frame are one factor per
bundle. Each frame is then a product of a sparse matrix with the columns of all utterances, which vectorises well.
Doubles are scaled at each frame, and underflow is detected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.compiled import compiled

HELD = 1e-200
"""A frame's scaled sum below this may have lost paths that matter. Above it, lost paths are below 1e-100 of the sum."""
SIDE_BY_SIDE = 16
"""Largest number of utterances at a time. Each stores two doubles per bundle and frame."""
MOST_BYTES = 256 << 20
"""Largest size of these doubles, unless a single utterance needs more."""

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class ScaledGraph:
    """S states and P bundles of arcs, each with a `senone` (P,) and a target `state` (P,), sorted by state and senone.

    Arcs `into[p]` to `into[p + 1]` are those of bundle p, from states `source` with factor `weight`. Arcs `out[s]` to
    `out[s + 1]` leave state s, in bundles `target` with factor `ahead`. initial, final: (S,), factors scaled to at most
    1. shift: log of that scaling.
    """

    senone: NDArray[np.int64]
    state: NDArray[np.int64]
    into: NDArray[np.int64]
    source: NDArray[np.uint32]
    weight: Float64
    out: NDArray[np.int64]
    target: NDArray[np.uint32]
    ahead: Float64
    initial: Float64
    final: Float64
    shift: float

    @staticmethod
    def of(
        source: NDArray[Any],
        target: NDArray[Any],
        senone: NDArray[Any],
        weight: Float64,
        initial: Float64,
        final: Float64,
    ) -> ScaledGraph:
        """Build from arcs, and initial and final weights in nats (-inf: none)."""
        senones = int(senone.max(initial=0)) + 1
        bundles, bundle = np.unique(target.astype(np.int64) * senones + senone, return_inverse=True)
        factor, bundle = np.exp(weight), bundle.ravel()
        by_bundle, by_source = np.lexsort((source, bundle)), np.lexsort((bundle, source))
        shifts = [float(each.max()) if np.isfinite(each.max(initial=-np.inf)) else 0.0 for each in (initial, final)]
        return ScaledGraph(
            bundles % senones,
            bundles // senones,
            np.searchsorted(bundle[by_bundle], np.arange(len(bundles) + 1)),
            source[by_bundle].astype(np.uint32),
            factor[by_bundle],
            np.searchsorted(source[by_source], np.arange(len(initial) + 1)),
            bundle[by_source].astype(np.uint32),
            factor[by_source],
            np.exp(initial - shifts[0]),
            np.exp(final - shifts[1]),
            sum(shifts),
        )

    def side_by_side(self, frames: int) -> int:
        """Number of utterances of `frames` frames to process at a time."""
        return max(1, min(SIDE_BY_SIDE, MOST_BYTES // (16 * max(1, frames) * len(self.senone))))

    def sums(
        self,
        emission: Float64,
        lengths: NDArray[np.int64],
        wanted: NDArray[np.int64],
        through: Float64,
        gained: Float64,
    ) -> tuple[Float64, Float64, NDArray[np.bool_]]:
        """Log sums (B,), gains (B,), and whether there was no underflow (B,).

        emission (T, V, B): acoustic factors. lengths (B,): frames, the longest first. wanted (T, B): the senone that
        gains. through, gained (T, V, B), in any memory order: receive the occupation and the gradient of the gain
        within the utterances' lengths.
        """
        frames, _, batch = emission.shape
        wanted = np.ascontiguousarray(wanted)  # the kernels are compiled for each memory order
        log_sum, gain, held = np.full(batch, self.shift), np.zeros(batch), np.ones(batch, np.bool_)
        kept = np.empty((2, frames, len(self.senone), batch))
        _forward(
            self.senone, self.state, self.into, self.source, self.weight, self.initial, self.final,
            emission, lengths, wanted, kept[0], kept[1], log_sum, gain, held,
        )  # fmt: skip
        _backward(
            self.senone, self.state, self.out, self.target, self.ahead, self.final,
            emission, lengths, wanted, kept[0], kept[1], gain, held, through, gained,
        )  # fmt: skip
        return log_sum, gain, held


# Loops over the utterances are short and plain and index whole arrays, so that the compiler vectorises them.


@compiled(fastmath={"contract"})
def _forward(  # type: ignore[no-untyped-def]
    senone, state, into, source, weight, initial, final, emission, lengths, wanted, sums, gains, log_sum, gain, held
):
    """Fill `sums[t, p]`, over the paths of t + 1 frames that end with bundle p, and `gains`, weighted by their gains.

    Each frame is scaled: the factors of frame t are divided by the sum at t - 1, whose log is added to `log_sum`.
    """
    states, batch, going = len(initial), len(lengths), len(lengths)
    old, old_gains = np.zeros((states, batch)), np.zeros((states, batch))
    for s in range(states):
        for b in range(batch):
            old[s, b] = initial[s]
    scale, total = np.ones(batch), np.zeros(batch)
    factor, gaining = np.zeros(emission.shape[1:]), np.zeros(emission.shape[1], np.bool_)
    for t in range(len(emission) + 1):
        while going and lengths[going - 1] == t:
            going -= 1
            _end(old, old_gains, final, going, log_sum, gain, held)
        if t == len(emission):
            break
        _acoustics(emission[t], scale, wanted[t], factor, gaining)
        for p in range(len(senone)):
            for b in range(batch):
                sums[t, p, b] = 0.0
                gains[t, p, b] = 0.0
            for a in range(into[p], into[p + 1]):
                s, w = source[a], weight[a]
                for b in range(batch):
                    sums[t, p, b] += w * old[s, b]
                for b in range(batch):
                    gains[t, p, b] += w * old_gains[s, b]
            v = senone[p]
            if gaining[v]:
                for b in range(batch):
                    gains[t, p, b] += sums[t, p, b] if wanted[t, b] == v else 0.0
            for b in range(batch):
                sums[t, p, b] *= factor[v, b]
            for b in range(batch):
                gains[t, p, b] *= factor[v, b]
        old[:], old_gains[:], total[:] = 0.0, 0.0, 0.0
        for p in range(len(senone)):
            d = state[p]
            for b in range(batch):
                old[d, b] += sums[t, p, b]
            for b in range(batch):
                old_gains[d, b] += gains[t, p, b]
            for b in range(batch):
                total[b] += sums[t, p, b]
        for b in range(going):
            held[b] = held[b] and total[b] > HELD
            scale[b] = 1 / total[b] if held[b] else 0.0
            log_sum[b] += math.log(total[b]) if held[b] and t + 1 < lengths[b] else 0.0


@compiled
def _end(sums, gains, final, b, log_sum, gain, held):  # type: ignore[no-untyped-def]
    """Finish utterance b, at its last frame."""
    end = 0.0
    for s in range(len(final)):
        end += sums[s, b] * final[s]
        gain[b] += gains[s, b] * final[s]
    held[b] = held[b] and end > HELD
    gain[b] = gain[b] / end if held[b] else 0.0
    log_sum[b] += math.log(end) if held[b] else 0.0


@compiled
def _acoustics(emission, scale, wanted, factor, gaining):  # type: ignore[no-untyped-def]
    """Fill a frame's scaled factors (V, B), and whether each senone gains in any utterance."""
    gaining[:] = False
    for b in range(len(scale)):
        if 0 <= wanted[b] < len(gaining):
            gaining[wanted[b]] = True
    for v in range(len(factor)):
        for b in range(len(scale)):
            factor[v, b] = emission[v, b] * scale[b]


@compiled(fastmath={"contract"})
def _backward(  # type: ignore[no-untyped-def]
    senone, state, out, target, ahead, final, emission, lengths, wanted, sums, gains, gain, held, through, gained
):
    """Fill `through` and `gained`. `after[s]` sums over the remaining paths from s, scaled to at most 1; `after_gains`
    weights them by their gains."""
    states, batch, going = len(final), len(lengths), 0
    after, after_gains = np.zeros((states, batch)), np.zeros((states, batch))
    rest, rest_gains = np.zeros((len(senone), batch)), np.zeros((len(senone), batch))
    total, scale = np.zeros(batch), np.ones(batch)
    part, part_gains = np.zeros(emission.shape[1:]), np.zeros(emission.shape[1:])
    factor, gaining = np.zeros(emission.shape[1:]), np.zeros(emission.shape[1], np.bool_)
    for t in range(len(emission) - 1, -1, -1):
        while going < batch and lengths[going] > t:  # those that end here begin
            for s in range(states):
                after[s, going], after_gains[s, going] = final[s], 0.0
            scale[going] = 1.0
            going += 1
        _acoustics(emission[t], scale, wanted[t], factor, gaining)
        part[:], part_gains[:], total[:] = 0.0, 0.0, 0.0
        for p in range(len(senone)):
            v, d = senone[p], state[p]
            for b in range(batch):
                part[v, b] += sums[t, p, b] * after[d, b]
            for b in range(batch):
                part_gains[v, b] += gains[t, p, b] * after[d, b]
            for b in range(batch):
                part_gains[v, b] += sums[t, p, b] * after_gains[d, b]
            for b in range(batch):
                rest[p, b] = after[d, b] * factor[v, b]
            for b in range(batch):
                rest_gains[p, b] = after_gains[d, b] * factor[v, b]
            if gaining[v]:
                for b in range(batch):
                    rest_gains[p, b] += rest[p, b] if wanted[t, b] == v else 0.0
        for v in range(len(part)):
            for b in range(batch):
                total[b] += part[v, b]
        for b in range(going):
            held[b] = held[b] and total[b] > HELD
            total[b] = 1 / total[b] if held[b] else 0.0
        for v in range(len(part)):
            for b in range(going):
                through[t, v, b] = part[v, b] * total[b]
                gained[t, v, b] = (part_gains[v, b] - gain[b] * part[v, b]) * total[b]
        scale[:] = 0.0
        for s in range(states):
            for b in range(batch):
                after[s, b] = 0.0
                after_gains[s, b] = 0.0
            for a in range(out[s], out[s + 1]):
                p, w = target[a], ahead[a]
                for b in range(batch):
                    after[s, b] += w * rest[p, b]
                for b in range(batch):
                    after_gains[s, b] += w * rest_gains[p, b]
            for b in range(batch):
                scale[b] = max(scale[b], after[s, b])
        for b in range(batch):
            scale[b] = 1 / scale[b] if scale[b] > 0.0 else 0.0
