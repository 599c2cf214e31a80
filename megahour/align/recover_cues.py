"""Recovers cues that the path skips although they are spoken, and drops the unspoken words of partly spoken ones.

The cost of skipping a cue is fitted to the document's usual errors. A cue that the model recognises badly, with words
or sounds that it never learned, costs more and is skipped although it is spoken. Other texts and other places of the
document decide whether it is (`decoys`). A long cue must be spoken in each of its parts, since otherwise a matching
beginning would suffice. An unspoken end or beginning is dropped.

A transcript may end a sentence differently from the speaker, or repeat a part of it; a clip may be cut off. The skip
arc of `ctc` keeps or skips a whole cue. Here each word of a doubtful cue may be dropped, at the cue's own cost per
token, and the remaining words are realigned. Runs of fewer than `FEWEST_DROPPED` tokens stay, since a few prove
nothing, and so do words that were spoken but badly recognised (`decoys`) and at least `LEAST_KEPT` of the cue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.align.anchors import greedy_path
from megahour.align.ctc import AlignmentPath, Problem, align_cue, cue_frames
from megahour.align.decoys import PLACES, CuePlace, decoys, deviation
from megahour.align.edges import runs
from megahour.align.hints import Expected, expect, slow_pace
from megahour.align.timed import align_timed

FEWEST_DROPPED = 12
LEAST_KEPT = 0.5
COSTLY = 2.0  # a cue is checked if `FEWEST_DROPPED` tokens in a row cost this many times their price


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
        placed = align_cue(posteriors[low:high], problem, cue, tokens)
        if placed is not None and not _dropped_are_spoken(problem, cue, window, placed):
            states = states.copy() if states is path.states else states
            states[low:high] = placed
    return path if states is path.states else path.moved(states)


def _doubtful(problem: Problem, path: AlignmentPath, frame_loss: NDArray[np.float32]) -> NDArray[np.intp]:
    """Cues on the path, long enough, any `FEWEST_DROPPED` tokens in a row of which cost `COSTLY` times their price."""
    lengths = np.diff(problem.boundaries)
    first = np.arange(max(0, len(problem.tokens) - FEWEST_DROPPED + 1))
    cue = np.repeat(np.arange(len(lengths)), lengths)
    total = np.concatenate([[0.0], np.cumsum(frame_loss, dtype=np.float64)])
    begin, end = path.start_frames[first], path.end_frames[first + FEWEST_DROPPED - 1]
    inside = (
        (cue[first] == cue[first + FEWEST_DROPPED - 1]) & (begin >= 0) & (lengths[cue[first]] >= 2 * FEWEST_DROPPED)
    )
    dear = total[end] - total[begin] > (COSTLY * FEWEST_DROPPED * problem.skip_nats / lengths)[cue[first]]
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


FEWEST_TOKENS = 4  # of a cue without a time: shorter ones fit anywhere
FEWEST_TIMED = 2
PART_TOKENS = 24
LEAST_HEARD = 0.5  # least greedy tokens at the place per token of the cue
LEAST_SPOKEN = 0.5  # share of cues on the path, below which text and audio hardly belong together
NEAR = 0.5  # of the tolerance of `hints`: how far from its time a cue may begin
MAX_CELLS = 4e5  # frames x tokens of a cue and its place
DEAR = 0.5  # share of the decoys' total cost, above which words of a long cue are not spoken
MOST_HEARD = 2.0  # most greedy tokens at the place per token of such a cue

Ints = NDArray[np.int32]


@dataclass(slots=True)
class Look:
    """A document's path while cues are put back.

    first, last: (J,) frames of cues, -1 for skipped ones. most: deviation of `decoys` up to which a cue counts as
    spoken if its time and the length of the speech fit.
    """

    posteriors: NDArray[Any]
    problem: Problem
    states: Ints
    first: Ints
    last: Ints
    pace: float
    expected: Expected | None
    most: float

    def place(self, cue: int) -> CuePlace | None:
        """Where `cue` may be, between its neighbours and near its time; None if there is no room."""
        length = int(self.problem.boundaries[cue + 1] - self.problem.boundaries[cue])
        left, right = self.gap(cue)
        low, high, timed = left, right, False
        if self.expected is not None and np.isfinite(at := self.expected.start[cue]):
            near = NEAR * self.expected.tolerance
            low = int(np.clip(at - near, left, right))
            high = int(np.clip(at + near + self.pace * length, low, right))
            timed = True
        if not length <= high - low <= MAX_CELLS / length:
            return None
        return CuePlace.of(self.posteriors, self.problem, low, high, timed=timed)

    def gap(self, cue: int) -> tuple[int, int]:
        """Frames between the cues before and after `cue` that are on the path."""
        after = self.first[cue + 1 :]
        return int(self.last[:cue].max(initial=0)), int(after[after >= 0].min(initial=len(self.states)))

    def elsewhere(self, cue: int, place: CuePlace) -> list[CuePlace]:
        """Places of the same length as `cue`'s, each starting equally far before another cue of the path."""
        if self.expected is None:
            return []
        bounds, tokens = self.problem.boundaries, self.problem.tokens
        own, frames = tokens[bounds[cue] : bounds[cue + 1]].tobytes(), place.high - place.low
        others = np.flatnonzero(self.first >= 0)
        others = others[np.unique(np.linspace(0, len(others) - 1, PLACES).astype(np.intp))]
        starts = self.first[others] - round(NEAR * self.expected.tolerance)
        starts = np.clip(starts, 0, len(self.states) - frames).tolist()
        return [
            CuePlace.of(self.posteriors, self.problem, start, start + frames, timed=False)
            for other, start in zip(others.tolist(), starts, strict=True)
            if own not in tokens[bounds[other] : bounds[other + 1]].tobytes()
        ]

    def heard(self, low: int, high: int) -> int:
        """Number of tokens of the greedy path in frames low .. high-1, without spaces."""
        units, _ = greedy_path(self.posteriors[low:high], self.problem.blank)
        return int(np.count_nonzero(units != self.problem.free))

    def put_back(self, cue: int, place: CuePlace, placed: Ints) -> None:
        """Put `cue` on the path, with the states `placed` for the frames of its place."""
        (left, right), bounds = self.gap(cue), self.problem.boundaries
        own = place.low + np.flatnonzero(placed >= 0)
        self.first[cue], self.last[cue] = own[0], own[-1] + 1
        self.states[left : place.low], self.states[place.high : right] = ~bounds[cue], ~bounds[cue + 1]
        self.states[place.low : place.high] = placed


def recover_cues(
    posteriors: NDArray[Any],
    problem: Problem,
    path: AlignmentPath,
    refused: NDArray[np.bool_],
    hints: NDArray[np.float64] | None = None,
    least_frames: float = np.inf,
    said_chance: float = 0.1,
) -> AlignmentPath:
    """`path` with skipped cues put back that are spoken. The score is that of the old path.

    posteriors: (T, V) as for `ctc.align`. refused: (J,) cues not to search for. hints, least_frames: as for
    `hints.apply_hints`. said_chance: false-accept rate for unspoken cues whose time and length of speech fit.
    """
    first, last = cue_frames(path, problem.boundaries)
    expected = None if hints is None else expect(first, hints, least_frames)
    fewest = FEWEST_TOKENS if expected is None else np.where(np.isnan(expected.start), FEWEST_TOKENS, FEWEST_TIMED)
    left_out = np.flatnonzero((first < 0) & ~refused & (np.diff(problem.boundaries) >= fewest))
    if not len(left_out) or np.mean(first >= 0) < LEAST_SPOKEN:
        return path
    most = NormalDist().inv_cdf(said_chance) if said_chance > 0 else -np.inf
    look = Look(posteriors, problem, path.states.copy(), first, last, slow_pace(path, problem), expected, most)
    recovered = False
    for cue in left_out.tolist():
        if (window := look.place(cue)) and (placed := _said(look, cue, window)) is not None:
            look.put_back(cue, window, placed)
            recovered = True
    return path.moved(look.states) if recovered else path


def _said(look: Look, cue: int, place: CuePlace) -> Ints | None:
    """States of the frames of `place` with `cue` spoken there, whole or in part; None if it is not."""
    problem, posteriors = look.problem, look.posteriors[place.low : place.high]
    own, text = problem.tokens[problem.boundaries[cue] : problem.boundaries[cue + 1]], problem.tokens
    long = len(own) >= 2 * PART_TOKENS
    heard = look.heard(place.low, place.high)
    if heard < LEAST_HEARD * len(own) * (LEAST_KEPT if long else 1):
        return None
    if len(own) < FEWEST_TOKENS or not place.says(own, text):
        fits = place.timed and not long and heard <= MOST_HEARD * len(own)
        if not fits or deviation(place, look.elsewhere(cue, place), own, text) > look.most:
            return None
    begin, end = int(problem.boundaries[cue]), int(problem.boundaries[cue + 1])
    tokens = np.arange(begin, end, dtype=np.int32)
    if long:  # its words are expensive, or it would be on the path; unspoken words cost as much as any text
        any_text = DEAR * float(np.median(place.excess(decoys(text, own))))
        tokens = spoken_tokens(posteriors, problem, cue, max(any_text, float(problem.skip_nats[cue])))
    if heard < LEAST_HEARD * len(tokens):
        return None
    placed = align_cue(posteriors, problem, cue, tokens)
    return placed if placed is not None and (not long or _each_part(problem, place, tokens, placed)) else None


def _each_part(problem: Problem, place: CuePlace, tokens: Ints, states: Ints) -> bool:
    """Whether each part of a long cue's `tokens` is spoken where `states` (T,) of its place have it."""
    edges = np.linspace(0, len(tokens), max(1, len(tokens) // PART_TOKENS) + 1).astype(np.intp).tolist()
    for a, b in pairwise(edges):
        start = int(np.flatnonzero(states == tokens[a - 1])[-1]) + 1 if a else 0
        stop = int(np.flatnonzero(states == tokens[b])[0]) if b < len(tokens) else None
        if not place.says(problem.tokens[tokens[a:b]], problem.tokens, start, stop):
            return False
    return True
