"""Tests which cues of a path the audio supports, by the costs of other texts at the same places.

Posteriors and losses are not comparable between models: a model that reads half of all letters wrong is unsure
even of clear speech. So a cue's cost D (see `decoys`) is measured in standard deviations of the costs of other texts
of the document, of the same length, at its place:

    z = (D(cue) - mean D(others)) / deviation D(others)

A text that is not spoken there has 0, or slightly less, since the path chose the place for it. A spoken one is below
that by the root of its length times the weight of its letters, estimated from the document's own cues. A cue is refused
if

    z > min(quantile `false_accept` of the normal distribution - PER_FOLD log(s / MOST_SPEECH), -sqrt(length) w),

and z > SURE. s is the speech around the cue (`speech_around`): a text that is not spoken takes the place of speech
without a text, seldom of the same length, and leaves some of it over. A spoken one is between pauses or its neighbours.
w is the quantile `false_reject` of the weights -z / sqrt(length) of the document's cues.

A transcript is another recording's or not by two figures: how far the share of `SURE` cues on the path is beyond
`CHANCE`, and how far its cost is below those of its words, or its cues, in other orders (`wrong_transcript`). The
second is 0 +- 1 for a wrong one. A weak model is sure of few cues even of a right transcript, but their order still
tells. Where all lines resemble each other, as strings of digits do, a model may be sure of many cues of a wrong one,
but they are not in order. So the two are added. Of many cues it is enough that most are sure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.align.anchors import greedy_path
from megahour.align.ctc import AlignmentPath, Problem, cue_frames
from megahour.align.decoys import CuePlace, decoys

OTHERS = 30  # texts to compare a cue with
FEWEST_OTHERS = 10
FEWEST_CUES = 8  # of a document, for its own weights to be used
FEWEST_TOKENS = 4  # of a cue that contributes a weight
SURE = -4.0  # deviations; an unspoken text gets there by chance one time in ten, whatever the model
CHANCE = 0.1
MOSTLY = 0.5  # share of sure cues that is enough by itself, if it is `BEYOND_CHANCE` deviations above chance,
BEYOND_CHANCE = 3.0
MANY = 20  # and the cues are as many: of fewer the order is asked, too
SEVERAL = 12  # cues whose order tells enough to be asked beside that of the words
TOGETHER, TOGETHER_BY_WORDS = 3.5, 4.0  # deviations of both figures, for several cues and for fewer
LEAST_ORDER = 1.0  # deviations of the cues' order, if too few are sure
LEAST_WORDS, LEAST_WORDS_OF_SEVERAL = 2.0, 4.0  # deviations of the words' order
LEAST_SURE = 0.15  # share of sure cues
MOST_SPEECH = 1.2  # times the usual amount of speech around a cue that leaves nothing over
PER_FOLD = 4.0  # deviations by which a cue must be surer, with e times that amount
SAMPLED = 40  # cues sampled for the cost of other texts
MOST_CELLS = 4e5  # frames x tokens, for a cue to be tested
ROUNDING = 1e-9
LEAST_SAID, AS_WELL = 0.5, 0.5  # tokens heard beside a cue, and what it gains there, as shares of the cue's own
MAD = 1.4826  # standard deviations per median absolute deviation

Floats = NDArray[np.float64]


def deviations(posteriors: NDArray[Any], problem: Problem, path: AlignmentPath, around: int) -> Floats:
    """(J,) z of each cue on the path; NaN for others, and without texts to compare with.

    posteriors: (T, V) as for `ctc.align`. around: frames on either side of a cue that belong to its place.
    """
    z = np.full(len(problem.skip_nats), np.nan)
    for cue, own, others in _compared(posteriors, problem, path, around, 1):
        if others.std() > 0:
            z[cue] = (own - others.mean()) / others.std()
    return z


def extra_cost_of_others(posteriors: NDArray[Any], problem: Problem, path: AlignmentPath) -> float:
    """Extra cost of other texts at the places of some cues of the path: median, in nats per token."""
    placed = int((path.start_frames[problem.boundaries[:-1]] >= 0).sum())
    lengths = np.diff(problem.boundaries)
    compared = _compared(posteriors, problem, path, 0, max(1, placed // SAMPLED))
    gains = [(others.mean() - own) / lengths[cue] for cue, own, others in compared]
    return max(0.0, float(np.median(gains))) if gains else float("inf")


def _compared(
    posteriors: NDArray[Any], problem: Problem, path: AlignmentPath, around: int, every: int
) -> Iterator[tuple[int, float, Floats]]:
    """Every `every`-th cue on the path, its cost D at its place, and the costs of other texts there."""
    bounds = problem.boundaries
    first, last = cue_frames(path, bounds)
    placed = np.flatnonzero(first >= 0)
    ends, starts = np.insert(last[placed], 0, 0), np.append(first[placed], len(posteriors))
    for i in range(0, len(placed), every):
        cue = int(placed[i])
        low, high = max(int(ends[i]), int(first[cue]) - around), min(int(starts[i + 1]), int(last[cue]) + around)
        spoken = path.start_frames[bounds[cue] : bounds[cue + 1]] >= 0
        own = problem.tokens[bounds[cue] : bounds[cue + 1]][spoken]
        if high - low < len(own) or (high - low) * len(own) > MOST_CELLS:
            continue
        place = CuePlace.of(posteriors, problem, low, high, timed=False)
        costs = place.excess(np.vstack([own[None], _others(problem.tokens, own)])).astype(np.float64)
        others = costs[1:][np.isfinite(costs[1:])]
        if len(others) >= FEWEST_OTHERS and np.isfinite(costs[0]):
            yield cue, float(costs[0]), others


def _others(text: NDArray[np.int32], own: NDArray[np.int32]) -> NDArray[np.int32]:
    """(N, U) texts as long as `own` (U,): stretches of `text`, or permutations of its tokens if there are too few."""
    others = decoys(text, own) if len(text) > len(own) else np.zeros((0, len(own)), np.int32)
    if len(others) < FEWEST_OTHERS:
        return np.random.default_rng(len(own)).permuted(np.tile(own, (OTHERS, 1)), axis=1)
    return others[:: max(1, len(others) // OTHERS)]


def said_beside(posteriors: NDArray[Any], problem: Problem, path: AlignmentPath, around: int) -> NDArray[np.bool_]:
    """(J,) which cues of the path fit the speech beside them, which has no text, about as well as their own place.

    Such a cue may belong to either place. posteriors: (T, V) as for `ctc.align`. around: frames on either
    side of a cue that belong to its place.
    """
    units, frames = greedy_path(posteriors, problem.blank)
    frames, bounds = frames[units != problem.free], problem.boundaries
    first, last = cue_frames(path, bounds)
    placed, beside = np.flatnonzero(first >= 0), np.zeros(len(first), bool)
    ends, starts = np.insert(last[placed], 0, 0), np.append(first[placed], len(posteriors))

    def gain(texts: NDArray[np.int32], low: int, high: int) -> float:
        """Nats by which the first text costs less than the others between two frames."""
        costs = CuePlace.of(posteriors, problem, low, high, timed=False).excess(texts)
        others = costs[1:][np.isfinite(costs[1:])]
        return float(others.mean() - costs[0]) if len(others) else 0.0

    for i, cue in enumerate(placed.tolist()):
        left, begin, end, right = (int(at) for at in (ends[i], first[cue], last[cue], starts[i + 1]))
        length = int(bounds[cue + 1] - bounds[cue])
        for low, high in ((left, begin), (end, right)):
            heard = np.searchsorted(frames, high) - np.searchsorted(frames, low)
            if heard >= LEAST_SAID * length and length <= high - low <= MOST_CELLS / length:
                own = problem.tokens[bounds[cue] : bounds[cue + 1]]
                texts = np.vstack([own[None], _others(problem.tokens, own)])
                usual = gain(texts, max(left, begin - around), min(right, end + around))
                beside[cue] |= gain(texts, low, high) >= AS_WELL * max(usual, 0.0)
    return beside


def speech_around(posteriors: NDArray[Any], problem: Problem, path: AlignmentPath, around: int) -> Floats:
    """(J,) tokens heard around each cue of the path per token of it, in units of the document's median within cues.

    posteriors: (T, V) as for `ctc.align`. around: frames on either side, as far as the next cues of the path. NaN for
    cues that are not on the path; 1 where nothing is heard in most cues.
    """
    units, frames = greedy_path(posteriors, problem.blank)
    frames = frames[units != problem.free]
    first, last = cue_frames(path, problem.boundaries)
    placed = np.flatnonzero(first >= 0)
    first, last = first[placed], last[placed]
    low, high = np.maximum(first - around, np.insert(last[:-1], 0, 0)), last + around
    high = np.minimum(high, np.append(first[1:], len(posteriors)))
    letters = np.add.reduceat((problem.tokens != problem.free).astype(np.int64), problem.boundaries[:-1])[placed]

    def heard(begin: NDArray[np.int32], end: NDArray[np.int32]) -> Floats:
        return np.asarray((np.searchsorted(frames, end) - np.searchsorted(frames, begin)) / letters)

    speech = np.full(len(problem.skip_nats), np.nan)
    usual = float(np.median(heard(first, last))) if len(placed) else 0.0
    speech[placed] = heard(low, high) / usual if usual else 1.0
    return speech


def unheard(
    z: Floats,
    lengths: NDArray[np.integer[Any]],
    false_accept: float,
    false_reject: float,
    speech: Floats | float = 1.0,
) -> NDArray[np.bool_]:
    """(J,) which cues are refused, of `lengths` tokens; none where z is NaN, and none by a `false_reject` of 0.

    speech: (J,) as of `speech_around`.
    """
    usual = NormalDist().inv_cdf(false_accept)
    left = np.log(np.maximum(np.broadcast_to(speech, z.shape), MOST_SPEECH) / MOST_SPEECH)
    limit = np.minimum(usual, np.maximum(SURE, usual - PER_FOLD * left))
    weighed = np.isfinite(z) & (lengths >= FEWEST_TOKENS)
    if weighed.sum() >= FEWEST_CUES and false_reject > 0:
        weight = -z[weighed] / np.sqrt(lengths[weighed])
        least = max(0.0, usual_quantile(weight, false_reject))
        limit = np.minimum(limit, np.maximum(SURE, -np.sqrt(lengths) * least))
    with np.errstate(invalid="ignore"):
        return np.asarray(z > limit)


def usual_quantile(values: Floats, share: float) -> float:
    """A quantile of the normal distribution of most of `values`, fitted by median and absolute deviations."""
    usual = float(np.median(values))
    return usual + NormalDist().inv_cdf(share) * MAD * float(np.median(np.abs(values - usual)))


def is_of_another(
    z: Floats,
    lengths: NDArray[np.integer[Any]],
    least: float,
    words: Callable[[], float | None] = lambda: None,
    cues: Callable[[], float | None] = lambda: None,
) -> bool:
    """Whether the cues on the path, by `lengths`, are sure and in order no more than by chance.

    least: share of all tokens in sure cues, for these to be enough. words, cues: deviations by which the words and the
    cues cost less in this order than in others, None if that cannot be told. False if there is too little to compare
    with.
    """
    judged = np.isfinite(z)
    sure = float(lengths[judged & (np.nan_to_num(z) <= SURE)].sum())
    placed, count = float(lengths[judged].sum()), int(judged.sum())
    if not placed:
        return False
    beyond = (sure / placed - CHANCE) / math.sqrt(CHANCE * (1 - CHANCE) / count)
    enough = sure >= max(MOSTLY * placed, least * float(lengths.sum())) and beyond >= BEYOND_CHANCE - ROUNDING
    if (enough and count >= MANY) or sure < LEAST_SURE * placed:
        return not enough
    by_words, several = words(), len(lengths) >= SEVERAL
    if by_words is not None and not several:
        return by_words < LEAST_WORDS or (beyond + by_words) / math.sqrt(2) < TOGETHER_BY_WORDS
    if by_words is not None and by_words < LEAST_WORDS_OF_SEVERAL:
        return True
    by_cues = cues()
    if by_cues is None:
        return not enough
    return (beyond + by_cues) / math.sqrt(2) < TOGETHER or (not enough and by_cues < LEAST_ORDER)
