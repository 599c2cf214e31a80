"""Drops the unspoken words of partly spoken cues, and keeps the spoken ones.

A transcript may end a sentence differently from the speaker, or repeat a part of it; a clip may be cut off. The skip
arc of `ctc` keeps or skips a whole cue. Here each word of a doubtful cue may be dropped, at the cue's own cost per
token, and the remaining words are realigned. Runs of fewer than `FEWEST_DROPPED` tokens stay, since a few prove
nothing, and so do words that were spoken but badly recognised (`decoys`) and at least `LEAST_KEPT` of the cue.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.align.ctc import AlignmentPath, Problem, align_tokens
from megahour.align.decoys import CuePlace
from megahour.align.edges import runs
from megahour.align.timed import align_timed

FEWEST_DROPPED = 12
LEAST_KEPT = 0.5
DEAR = 2.0  # a cue is checked if `FEWEST_DROPPED` tokens in a row cost this many times their price

Ints = NDArray[np.int32]


def drop_unspoken_words(
    posteriors: NDArray[Any], problem: Problem, path: AlignmentPath, frame_loss: NDArray[np.float32]
) -> AlignmentPath:
    """`path` without the unspoken words of its cues. The score is that of the old path.

    posteriors: (T, V) as for `ctc.align`. frame_loss: (T,) nats by which the path's unit is below the best one.
    """
    bounds, lengths = problem.boundaries, np.diff(problem.boundaries)
    states = path.states
    for cue in _doubtful(problem, path, frame_loss).tolist():
        low, high = int(path.start_frames[bounds[cue]]), int(path.end_frames[bounds[cue + 1] - 1])
        tokens = spoken_tokens(posteriors[low:high], problem, cue, float(problem.skip_nats[cue]))
        if len(tokens) == lengths[cue]:
            continue
        window = CuePlace.of(posteriors, problem, low, high, timed=True)  # where its neighbours leave it
        placed = align_part(posteriors, problem, cue, window, tokens)
        if placed is not None and not _dropped_are_spoken(problem, cue, window, placed):
            states = states.copy() if states is path.states else states
            states[low:high] = placed
    return path if states is path.states else path.moved(states)


def _doubtful(problem: Problem, path: AlignmentPath, frame_loss: NDArray[np.float32]) -> NDArray[np.intp]:
    """Cues on the path, long enough, any `FEWEST_DROPPED` tokens in a row of which cost `DEAR` times their price."""
    lengths = np.diff(problem.boundaries)
    first = np.arange(max(0, len(problem.tokens) - FEWEST_DROPPED + 1))
    cue = np.repeat(np.arange(len(lengths)), lengths)
    total = np.concatenate([[0.0], np.cumsum(frame_loss, dtype=np.float64)])
    begin, end = path.start_frames[first], path.end_frames[first + FEWEST_DROPPED - 1]
    inside = (
        (cue[first] == cue[first + FEWEST_DROPPED - 1]) & (begin >= 0) & (lengths[cue[first]] >= 2 * FEWEST_DROPPED)
    )
    dear = total[end] - total[begin] > (DEAR * FEWEST_DROPPED * problem.skip_nats / lengths)[cue[first]]
    return np.unique(cue[first][inside & dear])


def spoken_tokens(posteriors: NDArray[Any], problem: Problem, cue: int, nats: float) -> Ints:
    """Tokens of `cue` (as in `problem`) that are worth their price in posteriors (T, V); all if hardly any are.

    nats: price of the whole cue.
    """
    begin, end = int(problem.boundaries[cue]), int(problem.boundaries[cue + 1])
    own, every = problem.tokens[begin:end], np.arange(begin, end, dtype=np.int32)
    if problem.free < 0:
        return every
    words = np.concatenate([[0], np.flatnonzero(own[:-1] == problem.free) + 1, [len(own)]]).astype(np.int32)
    price = (nats / len(own) * np.diff(words)).astype(np.float32)
    star = np.zeros(len(words), bool)
    star[[0, -1]] = True
    by_word = replace(problem, tokens=own, boundaries=words, skip_nats=price, star=star)
    states, _ = align_timed(posteriors, by_word)
    spoken = np.isin(np.arange(len(price)), np.searchsorted(words, states[states >= 0], "right") - 1)
    stays = np.ones(len(own), bool)
    for first, last in runs(~spoken).tolist():
        if words[last] - words[first] >= FEWEST_DROPPED:
            ends = last == len(spoken)
            stays[words[first] - int(ends and first > 0) : words[last]] = False  # with the space before an end
    return every[stays] if stays.sum() >= LEAST_KEPT * len(own) else every


def align_part(posteriors: NDArray[Any], problem: Problem, cue: int, place: CuePlace, tokens: Ints) -> Ints | None:
    """States (T,) of the frames of `place`, with these `tokens` of `cue` spoken; None if they do not fit."""
    lengths, skip_nats = np.array([len(tokens)], np.int32), np.array([np.inf], np.float32)
    rests = int(problem.boundaries[cue]), int(problem.boundaries[cue + 1])
    return align_tokens(posteriors[place.low : place.high], problem, tokens, lengths, skip_nats, rests)


def _dropped_are_spoken(problem: Problem, cue: int, place: CuePlace, states: Ints) -> bool:
    """Whether words of `cue` that `states` (T,) leave out are nevertheless spoken where they would be."""
    begin, end = int(problem.boundaries[cue]), int(problem.boundaries[cue + 1])
    missing = ~np.isin(np.arange(begin, end), states[states >= 0])
    for first, last in runs(missing).tolist():
        before = np.flatnonzero((states >= 0) & (states < begin + first))
        after = np.flatnonzero(states >= begin + last)
        start, stop = int(before[-1]) + 1 if len(before) else 0, int(after[0]) if len(after) else len(states)
        if place.says(problem.tokens[begin + first : begin + last], problem.tokens, start, stop):
            return True
    return False
