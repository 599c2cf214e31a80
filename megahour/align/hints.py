"""Subtitle times as soft hints: short cues that the path places far from where their neighbours suggest.

The residual of a spoken cue is its start on the path less its hint; the running median over its neighbours is the drift
of the subtitles there, and the median distance from the drift is their jitter. A drift may jump: at a cut each side has
its own median. A short cue, which a few sounds in untranscribed speech may resemble, is off its hint beyond `REACH`
jitters; it is then searched for at its hint, and left out if it is not there. A long text that fits is sufficient
evidence and stays where it is, and so does everything if times are few or erratic.

On a path that squeezes minutes of text into seconds, neighbouring residuals differ by seconds. Subtitles jump at cuts,
not at every cue, so only runs of `IN_STEP` cues that agree with their neighbours determine the drift.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.align.anchors import part, silence
from megahour.align.ctc import AlignmentPath, NoPathError, Problem, align_cue, align_tokens, cue_frames
from megahour.align.timed import align_timed, time_costs

NEIGHBOURS = 21  # cues whose median is the drift
FEWEST = 12  # spoken cues with hints, below which hints are ignored
IN_STEP = 4  # cues in a row
LEAST_IN_STEP = 0.25  # share of the cues with hints, below which times are erratic and all of them count
REACH = 8.0  # jitters by which a cue may be off
SHORT_TOKENS = 20  # a cue of more tokens is not moved
SIGMAS = 6.0  # standard deviations of cue times in the tolerance
DOUBT = 2.0  # standard deviations off its time, beyond which a cue is rechecked
MAX_CELLS = 2e7  # frames x tokens of a stretch to realign
SLOWEST = 3.0  # times the document's median frames per token that a cue may take

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected starts of cues: start (J,) frames, NaN unknown, within `tolerance` frames."""

    start: Floats
    tolerance: float

    def off(self, starts: NDArray[np.int32], problem: Problem) -> NDArray[np.bool_]:
        """(J,) which short spoken cues start elsewhere."""
        far = np.abs(starts - self.start) > self.tolerance  # NaN compares as False
        return far & (starts >= 0) & (np.diff(problem.boundaries) <= SHORT_TOKENS)


def expect(starts: NDArray[np.int32], hints: Floats, least_frames: float) -> Expected | None:
    """Expected starts from starts on a path (J,; -1 not spoken) and hints (J,; NaN none), in frames.

    The tolerance is at least `least_frames`. None with too few hints, or if any distance is tolerated.
    """
    known = np.flatnonzero((starts >= 0) & np.isfinite(hints))
    if len(known) < FEWEST or not np.isfinite(least_frames):
        return None
    residual = starts[known] - hints[known]
    agree = _in_step(residual, least_frames)
    if agree.mean() >= LEAST_IN_STEP:
        known, residual = known[agree], residual[agree]
    half = NEIGHBOURS // 2
    around = np.pad(residual, half, mode="reflect")
    drift = np.median(np.lib.stride_tricks.sliding_window_view(around, NEIGHBOURS), axis=1)
    jitter = float(np.median(np.abs(residual - drift)))
    return Expected(hints + np.interp(np.arange(len(hints)), known, drift), max(least_frames, REACH * jitter))


def _in_step(residual: Floats, tolerance: float) -> NDArray[np.bool_]:
    """(N,) which cues are in a run of `IN_STEP` or more, each within `tolerance` frames of the one before it."""
    turns = np.flatnonzero(np.abs(np.diff(residual)) > tolerance) + 1
    edges = np.concatenate([[0], turns, [len(residual)]])
    lengths = np.diff(edges)
    return np.repeat(lengths >= IN_STEP, lengths)


def apply_hints(
    posteriors: NDArray[Any], problem: Problem, path: AlignmentPath, hints: Floats, least_frames: float
) -> AlignmentPath:
    """`path` with short cues that are off their hints moved to where they are expected, or left out.

    posteriors: (T, V) as for `ctc.align`. hints: (J,) frames, NaN for none. The score is that of the old path.
    """
    first = problem.boundaries[:-1]
    expected = expect(path.start_frames[first], hints, least_frames)
    if expected is None:
        return path
    pace = slow_pace(path, problem)
    path = _in_time(posteriors, problem, path, expected, pace)
    off = expected.off(path.start_frames[first], problem)
    if not off.any():
        return path
    states = path.states.copy()
    spoken = np.flatnonzero(path.start_frames[first] >= 0)
    runs = np.split(spoken, np.flatnonzero(np.diff(off[spoken].astype(np.int8))) + 1)
    for run in runs:
        if off[run[0]]:
            _search(posteriors, problem, path, states, run, expected, pace)
    narrowed = path.moved(states)
    silence(states, problem, expected.off(narrowed.start_frames[first], problem) & off)
    return path.moved(states)


def _in_time(
    posteriors: NDArray[Any], problem: Problem, path: AlignmentPath, expected: Expected, pace: float
) -> AlignmentPath:
    """`path` with the stretches around cues that are off their times realigned, using their times."""
    bounds = problem.boundaries
    starts, ends = path.start_frames[bounds[:-1]], path.end_frames[bounds[1:] - 1]
    sigma = expected.tolerance / SIGMAS
    spoken = starts >= 0
    off = spoken & (np.abs(starts - expected.start) > DOUBT * sigma)
    if not off.any():
        return path
    states, done = path.states.copy(), 0
    sure = np.flatnonzero(spoken & ~off)
    for cue in np.flatnonzero(off).tolist():
        if cue < done:
            continue
        at = int(np.searchsorted(sure, cue))
        low, high = int(sure[at - 2]) + 1 if at > 1 else 0, int(sure[at + 1]) if at + 1 < len(sure) else len(spoken)
        low = max(low, done)
        done = high
        left = int(ends[:low].max(initial=0))
        right = int(starts[high:][starts[high:] >= 0].min(initial=len(states)))
        if (right - left) * int(bounds[high] - bounds[low]) > MAX_CELLS or right <= left:
            continue
        piece = part(problem, int(bounds[low]), int(bounds[high]))
        room = pace * np.diff(bounds[low : high + 1])
        entry = time_costs(expected.start[low:high] - left, room, sigma, right - left)
        try:
            timed, _ = align_timed(posteriors[left:right], piece, entry)
        except NoPathError:
            continue
        states[left:right] = np.where(timed >= 0, timed + bounds[low], timed - bounds[low])
        for moved in range(low, high):
            _place_words(posteriors[left:right], problem, states[left:right], moved)
    return path if np.array_equal(states, path.states) else path.moved(states)


def _place_words(posteriors: NDArray[Any], problem: Problem, states: NDArray[np.int32], cue: int) -> None:
    """Realign a spoken `cue` within its frames of `states` (T,), which change, by the audio alone.

    Its time pulls its first and its last token alone, and so may tear them from the words between.
    """
    begin, end = int(problem.boundaries[cue]), int(problem.boundaries[cue + 1])
    own = np.flatnonzero((states >= begin) & (states < end))
    if not len(own):
        return
    low, high = int(own[0]), int(own[-1]) + 1
    if (placed := align_cue(posteriors[low:high], problem, cue)) is not None:
        states[low:high] = placed


def slow_pace(path: AlignmentPath, problem: Problem) -> float:
    """Frames per token of slow speech."""
    first, last = cue_frames(path, problem.boundaries)
    spoken = first >= 0
    if not spoken.any():
        return float(len(path.states))
    return SLOWEST * float(np.median((last - first)[spoken] / np.diff(problem.boundaries)[spoken]))


def _search(
    posteriors: NDArray[Any],
    problem: Problem,
    path: AlignmentPath,
    states: NDArray[np.int32],
    run: NDArray[np.intp],
    expected: Expected,
    pace: float,
) -> None:
    """Realign the cues of `run`, neighbours among the spoken ones, where they are expected; writes `states`."""
    bounds, lengths = problem.boundaries, np.diff(problem.boundaries)[run]
    left = int(path.end_frames[: bounds[run[0]]].max(initial=0))
    after = path.start_frames[bounds[run[-1] + 1] :]
    right = int(after[after >= 0].min(initial=len(states)))
    low = int(np.clip(np.min(expected.start[run] - expected.tolerance), left, right))
    high = int(np.clip(np.max(expected.start[run] + expected.tolerance + pace * lengths), low, right))
    tokens = np.concatenate([np.arange(bounds[cue], bounds[cue + 1], dtype=np.int32) for cue in run])
    states[left:low], states[low:right] = ~tokens[0], ~bounds[run[-1] + 1]
    rests = int(tokens[0]), int(bounds[run[-1] + 1])
    placed = align_tokens(posteriors[low:high], problem, tokens, lengths, problem.skip_nats[run], rests)
    if placed is not None:
        states[low:high] = placed[0]
