"""Aligns a stretch whose cues have times: exact Viterbi with a cost for cues that start off their times.

It is the recursion of `ctc` with one more term. Entering the first token of cue j at frame t costs

    pen(t - e[j])      pen(x) = min(x^2 / (2 sigma^2), MOST_NATS)

where e[j] is the frame at which the cue is expected; entering its last token costs pen(max(0, t - e[j] - room[j])), so
that not only the first token keeps the time. This models normal errors of times, with a bound for the rare wrong time,
beyond which only the audio counts. Stretches are small, so the moves of all cells are kept.

`with_cuts` cuts long stretches without anchors at cue times that the audio confirms. A text with repeated sentences, or
a model that recognises too little for a whole k-mer, leaves such stretches. Every `EVERY_S` of one, the cues with
nearby times are aligned on their own, using their times. A cue in the middle becomes a cut if the audio has most of its
neighbours too, equally far from their times. So a time alone is never trusted.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.align.anchors import Anchoring, part
from megahour.align.ctc import NoPathError, Problem, frame_costs, spans
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


CELLS = 5e8  # frames x tokens up to which a stretch needs no cuts
EVERY_S, WINDOW_S, SIGMA_S = 300.0, 45.0, 5.0  # between cuts; window of cues on either side; deviation of their times
FEWEST = 6  # cues in a window
LEAST_FOUND = 0.6  # share of them that the audio must have
MOST_CELLS = 2e7  # of a window
MOST_TRIES = 6  # windows for one cut

Anchors = list[tuple[int, int]]


def with_cuts(
    posteriors: NDArray[Any], problem: Problem, anchors: Anchors, hints: NDArray[np.float64], settings: Anchoring
) -> Anchors:
    """`anchors` (token, frame), with cuts inserted wherever two are too far apart.

    posteriors: (T, V) as for `ctc.align`. hints: (J,) frame at which each cue starts by its time, NaN unknown.
    """
    edges = [(0, 0), *anchors, (len(problem.tokens), len(posteriors))]
    points = list(anchors)
    for (token, frame), (next_token, next_frame) in pairwise(edges):
        if (next_frame - frame) * (next_token - token) > min(CELLS, settings.max_cells):
            first = int(np.searchsorted(problem.boundaries, token))
            last = int(np.searchsorted(problem.boundaries, next_token))
            points += _cuts(posteriors, problem, hints, (first, last), (frame, next_frame), settings)
    return sorted(points)


def _cuts(
    posteriors: NDArray[Any],
    problem: Problem,
    hints: NDArray[np.float64],
    cues: tuple[int, int],
    frames: tuple[int, int],
    settings: Anchoring,
) -> Anchors:
    """Cuts among `cues` [first, last) in `frames` [begin, end)."""
    second = settings.second_frames
    timed = cues[0] + np.flatnonzero(np.isfinite(hints[cues[0] : cues[1]]))
    cuts: Anchors = []
    due, tries = frames[0] + EVERY_S * second, 0
    while due < frames[1] - WINDOW_S * second:
        near = timed[np.abs(hints[timed] - due) <= WINDOW_S * second]
        cut = _cut(posteriors, problem, hints, near, frames, second) if len(near) >= FEWEST else None
        tries += 1
        if cut is not None and (not cuts or (cut[0] > cuts[-1][0] and cut[1] > cuts[-1][1])):
            cuts.append(cut)
            due, tries = cut[1] + EVERY_S * second, 0
        else:
            due += (WINDOW_S if tries < MOST_TRIES else EVERY_S) * second
    return cuts


def _cut(
    posteriors: NDArray[Any],
    problem: Problem,
    hints: NDArray[np.float64],
    near: NDArray[np.intp],
    frames: tuple[int, int],
    second: float,
) -> tuple[int, int] | None:
    """(token, frame) at which a cue in the middle of the cues `near` begins; None if the audio lacks them."""
    bounds = problem.boundaries
    first, last = int(near[0]), int(near[-1]) + 1
    low = int(np.clip(hints[near].min() - WINDOW_S * second, *frames))
    high = int(np.clip(hints[near].max() + WINDOW_S * second, *frames))
    if not 0 < (high - low) * (bounds[last] - bounds[first]) <= MOST_CELLS:
        return None
    room = np.full(last - first, float(high - low))
    entry = time_costs(hints[first:last] - low, room, SIGMA_S * second, high - low)
    try:
        states, _ = align_timed(posteriors[low:high], part(problem, int(bounds[first]), int(bounds[last])), entry)
    except NoPathError:
        return None
    starts = spans(states, int(bounds[last] - bounds[first]))[0][bounds[first:last] - bounds[first]]
    spoken = np.flatnonzero((starts >= 0) & np.isfinite(hints[first:last]))
    if len(spoken) < max(FEWEST, LEAST_FOUND * len(near)):
        return None
    off = starts[spoken] + low - hints[first + spoken]
    usual = np.abs(off - np.median(off)) <= SIGMA_S * second
    middle = spoken[usual & (np.abs(spoken - (last - first) / 2) <= (last - first) / 4)]
    if usual.sum() < LEAST_FOUND * len(near) or not len(middle):
        return None
    cue = int(middle[np.argmin(np.abs(off[np.searchsorted(spoken, middle)] - np.median(off)))])
    return int(bounds[first + cue]), low + int(starts[cue])
