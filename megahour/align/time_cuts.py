"""Cuts long stretches without anchors at cue times that the audio confirms.

A text with repeated sentences, or a model that recognises too little for a whole k-mer, leaves stretches without an
anchor. Every `EVERY_S` of such a stretch, the cues with nearby times are aligned on their own, using their times
(`timed`). A cue in the middle becomes a cut if the audio has most of its neighbours too, equally far from their
times. So a time alone is never trusted: without support in the audio, nothing is cut.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.align.anchors import Anchoring, part
from megahour.align.ctc import NoPathError, Problem, spans
from megahour.align.timed import align_timed, time_costs

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
