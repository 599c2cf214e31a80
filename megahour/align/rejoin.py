"""Brings the first or last words of a cue back to its others from across a pause.

The words of a cue are seldom said on both sides of a pause with other speech in between, yet the path of a weak model
may put the first ones at the end of the speech before, which has no text: there it costs a few nats less, and sound
within a cue costs next to nothing if the model hears no letters in it. So here such a frame of sound costs as much as
one of speech without a text between cues, `star_nats`: words apart from the others are moved to the sound beside
these, on their side of the pause, if that costs less altogether.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megahour.align.anchors import greedy_path
from megahour.align.ctc import AlignmentPath, NoPathError, Problem, align, cue_frames, frame_costs
from megahour.align.edges import SHORTEST_PAUSE, levels_of, long_runs, loud_frames
from megahour.align.recover_cues import FEWEST_DROPPED

Ints = NDArray[np.int32]


class _Apart(NamedTuple):
    """Words apart from the others of their cue: tokens `first` up to `stop`; leading: they come before the others."""

    first: int
    stop: int
    leading: bool


def sounding(level: NDArray[np.float32], frames: int, per_frame: float) -> NDArray[np.bool_]:
    """Which of `frames` output frames have sound or belong to a closure between sounds.

    level: (T10,) energy at 10 ms, of which an output frame has `per_frame`.
    """
    sound = ~long_runs(~loud_frames(levels_of(level)), SHORTEST_PAUSE)
    middles = ((np.arange(frames) + 0.5) * per_frame).astype(np.intp)
    padded = np.append(sound, False)  # a recording's last output frame may end after it
    return np.asarray(padded[np.minimum(middles, len(sound))])


def rejoin(
    posteriors: NDArray[Any],
    problem: Problem,
    path: AlignmentPath,
    token_word: Ints,
    sound: NDArray[np.bool_],
    gap: int,
) -> AlignmentPath:
    """`path` with words that are apart from the others of their cue moved to these, if that costs less.

    Fewer than `FEWEST_DROPPED` tokens are moved, since a few fit anywhere. posteriors: (T, V) as for `ctc.align`.
    token_word: (U,) word of each token, -1 for spaces. sound: (T,) as of `sounding`. gap: frames between words that
    are apart. The score is that of the old path.
    """
    states, unread = path.states, None
    for words in _apart(problem, path, token_word, sound, gap):
        unread = _unread(posteriors, problem, path) if unread is None else unread
        placed = _beside(posteriors, problem, path, words, sound, unread)
        if placed is not None:
            low, own = placed
            states = states.copy() if states is path.states else states
            states[low : low + len(own)] = own
    return path if states is path.states else path.moved(states)


def _apart(
    problem: Problem, path: AlignmentPath, token_word: Ints, sound: NDArray[np.bool_], gap: int
) -> Iterator[_Apart]:
    """The words beyond the widest gap with a pause of each cue, where these are few."""
    own = np.flatnonzero((token_word >= 0) & (path.start_frames >= 0))
    cue = np.searchsorted(problem.boundaries, own, "right") - 1
    start, end = path.start_frames[own], path.end_frames[own]
    wide = (cue[1:] == cue[:-1]) & (token_word[own[1:]] != token_word[own[:-1]]) & (start[1:] - end[:-1] >= gap)
    widest: dict[tuple[int, bool], tuple[int, _Apart]] = {}
    for at in np.flatnonzero(wide).tolist():
        first, last = np.searchsorted(cue, cue[at]), np.searchsorted(cue, cue[at], "right")
        before, after = at + 1 - first, last - at - 1
        leading = bool(before <= after)
        if min(before, after) >= FEWEST_DROPPED or sound[end[at] : start[at + 1]].all():
            continue
        width = int(start[at + 1] - end[at])
        words = _Apart(*((own[first], own[at + 1]) if leading else (own[at] + 1, own[last - 1] + 1)), leading)
        key = int(cue[at]), leading
        if key not in widest or width > widest[key][0]:
            widest[key] = width, words
    yield from (words for _, words in widest.values())


def _unread(posteriors: NDArray[Any], problem: Problem, path: AlignmentPath) -> NDArray[np.bool_]:
    """(T,) frames in and around which no letter is heard, for as long as a token usually takes."""
    first, last = cue_frames(path, problem.boundaries)
    spoken = first >= 0
    pace = float(np.median((last - first)[spoken] / np.diff(problem.boundaries)[spoken]))
    units, frames = greedy_path(posteriors, problem.blank)
    letters = np.zeros(len(posteriors), bool)
    letters[frames[units != problem.free]] = True
    return np.asarray(np.convolve(letters, np.ones(2 * round(pace) + 1), "same") == 0)


def _beside(
    posteriors: NDArray[Any],
    problem: Problem,
    path: AlignmentPath,
    words: _Apart,
    sound: NDArray[np.bool_],
    unread: NDArray[np.bool_],
) -> tuple[int, Ints] | None:
    """The first frame that changes and the new states, with `words` in the sound beside the others of their cue.

    None if they do not fit there, or cost more.
    """
    first, stop, leading = words
    if leading:
        begin, end = int(path.start_frames[first]), int(path.start_frames[stop])
        silent = np.flatnonzero(~sound[begin:end])
        low, high = begin + int(silent[-1]) + 1, end
    else:
        begin, end = int(path.end_frames[first - 1]), int(path.end_frames[stop - 1])
        silent = np.flatnonzero(~sound[begin:end])
        low, high = begin, begin + int(silent[0])
    star = np.array([leading, not leading])
    piece = replace(
        problem,
        tokens=problem.tokens[first:stop],
        boundaries=np.array([0, stop - first], np.int32),
        skip_nats=np.array([np.inf], np.float32),
        star=star,
    )
    try:
        aligned = align(posteriors[low:high], piece)
    except NoPathError:  # too few frames
        return None
    costs, between = frame_costs(posteriors[begin:end], problem)
    now = path.states[begin:end]
    unit = np.where(now >= 0, problem.tokens[np.maximum(now, 0)], problem.blank)
    before = costs[np.arange(len(now)), unit]
    beside = np.zeros(end - begin, bool)
    beside[low - begin : high - begin] = True
    dear = beside & unread[begin:end]
    before[dear] = np.maximum(before[dear], problem.star_nats)
    after = -aligned.score + float(between[~beside].sum(dtype=np.float64))
    if after >= before.sum(dtype=np.float64):
        return None
    states = np.full(end - begin, ~first if leading else ~stop, np.int32)
    own = aligned.states
    states[low - begin : high - begin] = np.where(own >= 0, own + first, own - first)
    return begin, states
