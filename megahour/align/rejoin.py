"""Brings the first or last words of a cue back to its others from across a pause.

The words of a cue are seldom said on both sides of a pause with other speech in between, yet the path of a weak model
may put the first ones at the end of the speech before, which has no text: there it costs a few nats less, and sound
within a cue costs next to nothing if the model hears no letters in it. So here such a frame of sound costs as much as
one of speech without a text between cues, `star_nats`, for as long as the words usually take: words apart from the
others are moved to the sound beside these, on their side of the pause, if that costs less altogether.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megahour.align.anchors import greedy_path
from megahour.align.ctc import AlignmentPath, Problem, align_tokens, frame_costs
from megahour.align.edges import SHORTEST_PAUSE, levels_of, long_runs, loud_frames
from megahour.align.recover_cues import FEWEST_DROPPED

MOST_CELLS = 2e7  # frames x units between words that are apart

Ints = NDArray[np.int32]
Indices = NDArray[np.intp]
Mask = NDArray[np.bool_]


class _Apart(NamedTuple):
    """The spoken `tokens` of words apart from the others of `cue`; beside: the nearest token of the others."""

    cue: int
    tokens: Ints
    beside: int

    @property
    def leading(self) -> bool:
        """Whether the words come before the others."""
        return self.beside > int(self.tokens[0])


class _Spoken(NamedTuple):
    """(N,) the spoken tokens but spaces, their cues, and their words."""

    token: Indices
    cue: Indices
    word: Ints


def sounding(level: NDArray[np.float32], frames: int, per_frame: float) -> Mask:
    """Which of `frames` output frames have sound or belong to a closure between sounds.

    level: (T10,) energy at 10 ms, of which an output frame has `per_frame`.
    """
    sound = ~long_runs(~loud_frames(levels_of(level)), SHORTEST_PAUSE)
    middles = ((np.arange(frames) + 0.5) * per_frame).astype(np.intp)
    padded = np.append(sound, False)  # a recording's last output frame may end after it
    return np.asarray(padded[np.minimum(middles, len(sound))])


def rejoin(
    posteriors: NDArray[Any], problem: Problem, path: AlignmentPath, token_word: Ints, sound: Mask, gap: int
) -> AlignmentPath:
    """`path` with words that are apart from the others of their cue moved to these, if that costs less.

    Fewer than `FEWEST_DROPPED` tokens are moved, since a few fit anywhere. posteriors: (T, V) as for `ctc.align`.
    token_word: (U,) word of each token, -1 for spaces. sound: (T,) as of `sounding`. gap: frames between words that
    are apart. The score is that of the old path.
    """
    tokens = np.flatnonzero((token_word >= 0) & (path.start_frames >= 0))
    spoken = _Spoken(tokens, np.searchsorted(problem.boundaries, tokens, "right") - 1, token_word[tokens])
    apart = list(_apart(path, spoken, sound, gap))
    if not apart:
        return path
    pace, states = _pace(path, spoken), path.states.copy()
    unread = _unread(posteriors, problem, round(pace))
    for words in apart:
        if (placed := _beside(posteriors, problem, path, words, sound, unread, pace)) is not None:
            first, own = placed
            states[first : first + len(own)] = own
    return path if np.array_equal(states, path.states) else path.moved(states)


def _apart(path: AlignmentPath, spoken: _Spoken, sound: Mask, gap: int) -> Iterator[_Apart]:
    """The words beyond the widest gap with a pause of each cue, where these are few."""
    own, cue, word = spoken
    start, end = path.start_frames[own], path.end_frames[own]
    wide = (cue[1:] == cue[:-1]) & (word[1:] != word[:-1]) & (start[1:] - end[:-1] >= gap)
    widest: dict[tuple[int, bool], tuple[int, _Apart]] = {}
    for at in np.flatnonzero(wide).tolist():
        first, stop = np.searchsorted(cue, cue[at]), np.searchsorted(cue, cue[at], "right")
        before, after = int(at + 1 - first), int(stop - at - 1)
        if min(before, after) >= FEWEST_DROPPED or sound[end[at] : start[at + 1]].all():
            continue
        low, high, beside = (
            (own[first], own[at + 1], own[at + 1]) if before <= after else (own[at] + 1, own[stop - 1] + 1, own[at])
        )
        tokens = np.arange(low, high, dtype=np.int32)
        words = _Apart(int(cue[at]), tokens[path.start_frames[tokens] >= 0], int(beside))
        width, key = int(start[at + 1] - end[at]), (words.cue, words.leading)
        if key not in widest or width > widest[key][0]:
            widest[key] = width, words
    yield from (words for _, words in widest.values())


def _pace(path: AlignmentPath, spoken: _Spoken) -> float:
    """Frames per token from a word to the next one of its cue: the median, which pauses do not change."""
    begins = np.flatnonzero(np.diff(spoken.word, prepend=-1) != 0)
    own, cue = spoken.token[begins], spoken.cue[begins]
    within = np.flatnonzero(cue[1:] == cue[:-1])
    frames = path.start_frames[own[within + 1]] - path.start_frames[own[within]]
    return float(np.median(frames / (own[within + 1] - own[within])))


def _unread(posteriors: NDArray[Any], problem: Problem, around: int) -> Mask:
    """(T,) frames without a letter that is heard in them, or in `around` frames on either side."""
    units, frames = greedy_path(posteriors, problem.blank)
    letters = np.zeros(len(posteriors) + 1, np.int64)
    letters[frames[units != problem.free] + 1] = 1
    total, t = np.cumsum(letters), np.arange(len(posteriors))
    return np.asarray(total[np.minimum(t + around + 1, len(t))] == total[np.maximum(t - around, 0)])


def _beside(
    posteriors: NDArray[Any],
    problem: Problem,
    path: AlignmentPath,
    words: _Apart,
    sound: Mask,
    unread: Mask,
    pace: float,
) -> tuple[int, Ints] | None:
    """The first frame that changes and the new states, with `words` in the sound beside the others of their cue.

    None if they do not fit there, or cost more.
    """
    tokens, leading = words.tokens, words.leading
    if leading:
        begin, end = int(path.start_frames[tokens[0]]), int(path.start_frames[words.beside])
    else:
        begin, end = int(path.end_frames[words.beside]), int(path.end_frames[tokens[-1]])
    if (end - begin) * posteriors.shape[1] > MOST_CELLS:
        return None
    silent = np.flatnonzero(~sound[begin:end])
    low, high = (int(silent[-1]) + 1, end - begin) if leading else (0, int(silent[0]))
    if problem.tokens[tokens[-1 if leading else 0]] == problem.tokens[words.beside]:  # a blank must be between them
        low, high = (low, high - 1) if leading else (low + 1, high)
    bounds = problem.boundaries[words.cue : words.cue + 2].tolist()
    rests = (bounds[0], words.beside) if leading else (int(tokens[0]), bounds[1])
    one, never = np.array([len(tokens)], np.int32), np.array([np.inf], np.float32)
    stretch = posteriors[begin + low : begin + high]
    placed = align_tokens(stretch, problem, tokens, one, never, rests, (leading, not leading))
    if placed is None:
        return None
    own, score = placed
    outside = np.ones(end - begin, bool)
    outside[low:high] = False
    costs, between = frame_costs(posteriors[begin:end], problem)
    now = path.states[begin:end]
    unit = np.where(now >= 0, problem.tokens[np.maximum(now, 0)], problem.blank)
    before, most = costs[np.arange(len(now)), unit], round(pace * len(tokens))
    dear = np.flatnonzero(~outside & unread[begin:end])
    dear = dear[-most:] if leading else dear[:most]
    before[dear] = np.maximum(before[dear], problem.star_nats)
    after = -score + float(between[outside].sum(dtype=np.float64))
    if after >= before.sum(dtype=np.float64):
        return None
    states = np.concatenate([np.full(low, ~rests[0]), own, np.full(end - begin - high, ~rests[1])])
    return begin, states.astype(np.int32)
