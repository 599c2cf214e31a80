"""Aligns a stretch whose cues have times: exact Viterbi with a cost for cues that start off their times.

It is the recursion of `ctc` with one more term. Entering the first token of cue j at frame t costs

    pen(t - e[j])      pen(x) = min(x^2 / (2 sigma^2), MOST_NATS)

where e[j] is the frame at which the cue is expected; entering its last token costs pen(max(0, t - e[j] - room[j])), so
that not only the first token keeps the time. This models normal errors of times, with a bound for the rare wrong time,
beyond which only the audio counts. Stretches are small, so the moves of all cells are kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.align.ctc import NoPathError, Problem, frame_costs
from megahour.core.compiled import compiled

MOST_NATS = 24.0

Floats = NDArray[np.float32]
Times = NDArray[np.float64]


def time_costs(expected: Times, room: Times, sigma: float, frames: int) -> Floats:
    """(2, J, frames) nats for entering the first and the last token of cue j at each frame.

    expected: (J,) frame at which each cue starts; NaN costs nothing. room: (J,) frames that it takes at most.
    """
    off = np.arange(frames) - expected[:, None]
    off = np.stack([off, np.maximum(off - room[:, None], 0)]) / sigma
    return np.nan_to_num(np.minimum(off * off / 2, MOST_NATS)).astype(np.float32)


def align_timed(
    posteriors: NDArray[Any], problem: Problem, entry: Floats | None = None
) -> tuple[NDArray[np.int32], float]:
    """States (T,) of the best path, as in `ctc.AlignmentPath`, and its cost in nats.

    posteriors: (T, V) as for `ctc.align`. entry: (2, J, T) nats of `time_costs`, or none. Memory 2 T U bytes. Raises
    NoPathError.
    """
    if entry is None:
        entry = np.zeros((2, len(problem.skip_nats), len(posteriors)), np.float32)
    costs, star = frame_costs(posteriors, problem)
    rest = costs[:, problem.blank].copy()
    around = np.where(problem.star, star[:, None], rest[:, None]).astype(np.float32)
    tokens, bounds = problem.tokens.astype(np.int32), problem.boundaries.astype(np.int64)
    states = np.empty(len(costs), np.int32)
    cost = _best(costs, rest, around, tokens, bounds, problem.skip_nats.astype(np.float32), entry, states)
    if not np.isfinite(cost):
        raise NoPathError(f"{len(tokens)} tokens do not fit in {len(costs)} frames")
    return states, float(cost)


@compiled
def _best(costs, rest, around, tokens, bounds, skip, entry, states):  # type: ignore[no-untyped-def]
    """Fill `states` (T,) and return the cost. around: (T, J+1) cost of a frame of rest at each boundary."""
    frames, length, cues = costs.shape[0], tokens.shape[0], skip.shape[0]
    emit, still = np.full(length, np.float32(np.inf)), np.full(length + 1, np.float32(np.inf))
    to_emit, to_still = np.zeros((frames, length), np.uint8), np.zeros((frames, length + 1), np.uint8)
    first = np.full(length + 1, -1, np.int64)
    for j in range(cues + 1):
        first[bounds[j]] = j
    still[0] = 0
    for j in range(cues):  # cues that are left out before the first frame
        still[bounds[j + 1]] = still[bounds[j]] + skip[j]
    for t in range(frames):
        for u in range(length, -1, -1):
            left = emit[u - 1] if u else np.float32(np.inf)
            j = first[u]
            if u < length:
                entering = entry[0, j, t] if j >= 0 else np.float32(0)
                if j < 0 and first[u + 1] >= 0:
                    entering = entry[1, first[u + 1] - 1, t]
                best, move = emit[u], 0
                if still[u] + entering < best:
                    best, move = still[u] + entering, 1
                if u and tokens[u] != tokens[u - 1] and left + entering < best:
                    best, move = left + entering, 2
                emit[u], to_emit[t, u] = best + costs[t, tokens[u]], move
            quiet = around[t, j] if j >= 0 else rest[t]
            to_still[t, u] = left < still[u]
            still[u] = min(left, still[u]) + quiet
        for j in range(cues):
            skipped = still[bounds[j]] + skip[j]
            if skipped < still[bounds[j + 1]]:
                still[bounds[j + 1]], to_still[t, bounds[j + 1]] = skipped, 2
    resting, u = still[length] <= emit[length - 1], length
    cost = still[length] if resting else emit[length - 1]
    if not resting:
        u = length - 1
    for t in range(frames - 1, -1, -1):
        if resting:
            while to_still[t, u] == 2:
                u = bounds[first[u] - 1]
            states[t] = ~u
            if to_still[t, u] == 1:
                resting, u = False, u - 1
        else:
            states[t] = u
            if to_emit[t, u] == 1:
                resting = True
            elif to_emit[t, u] == 2:
                u -= 1
    return cost
