"""Tests whether a text belongs to audio whose greedy reading does not show it: is it badly recognised, or wrong?

The text is aligned, and so is its decoy, the same text with the letters of each cue reversed: the same letters in cues
of the same lengths. With the costs above those of the star alone,

    C(text) <= C(decoy) - margin |C(decoy)|

holds, with a margin of 0.2, for the right text even if two of three letters are misread. A text of another recording
costs as much as its decoy, and so does any text with a model that recognises nothing. If cues are single letters or
palindromes, the letters of the whole text are reversed instead; a text of a few letters is not tested.

`order_deviation` is a sharper test: the same words in random orders cost as much as a text of another recording,
whatever the model and the language, since its order means nothing here. A right text of a few lines costs less by many
standard deviations. A sentence that both recordings share has many words in order, too, but is one cue of many: so long
texts must also cost less than their cues in random orders.

`foreign_cues` finds stretches that belong to other recordings, such as the second half of a file of two texts. Where
such lines meet speech without a text, many fit as well as a badly read right line does, and few are left out. So each
cue is judged by its neighbours on the path, too: a stretch in which less than `MOSTLY` of the tokens are in sure cues
is refused, unless its cues cost less in this order than in others by `BELOW_OTHERS`, as badly read right ones do.
Shorter stretches than two neighbourhoods stay, since their order says too little, and long ones are tested in sections.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from megahour.align.anchors import Anchoring, NoAnchorsError, align_pieces, anchors_of, part
from megahour.align.ctc import Problem, align, scale_of
from megahour.align.edges import runs
from megahour.align.evidence import MOSTLY, SEVERAL, SURE

FEWEST_TOKENS = 8
LEAST_OTHER = 0.5  # share of the places at which a decoy must have another letter
FEWEST_CUES, FEWEST_WORDS = 3, 5  # of a text whose order is tested
ORDERS = 20
ENDS = 2  # cues that recordings of a series may share, on either end
BELOW_OTHERS = 5.0  # standard deviations; texts of other recordings of 12 cues and more had up to 3.4
MOST_CELLS = 4e9  # frames x tokens, for the order to be tested


def belongs(posteriors: NDArray[Any], problem: Problem, anchoring: Anchoring, margin: float) -> bool:
    """Whether posteriors (T, V) fit the text of `problem` better than any.

    Also True if it cannot be told: without times a long text of repetitions has no anchors, nor has a decoy, and each
    is too large to be aligned in one.
    """
    decoy = decoy_of(problem)
    if decoy is None:
        return True
    star = _star(posteriors, problem)
    try:
        own, other = (_cost(posteriors, each, anchoring) - star for each in (problem, decoy))
    except NoAnchorsError:
        return True
    return bool(own <= other - margin * abs(other))


def _cost(posteriors: NDArray[Any], problem: Problem, anchoring: Anchoring) -> float:
    return -align_pieces(posteriors, problem, anchors_of(posteriors, problem, anchoring), anchoring)[0].score


def order_deviation(posteriors: NDArray[Any], problem: Problem, *, words: bool = False) -> float | None:
    """Standard deviations by which the cues of `problem`, or its words, cost less in posteriors (T, V) than reordered.

    None if that cannot be told: they are few, all alike, too many to be aligned in several orders, or no word has a
    space beside it.
    """
    spaced = words and problem.free >= 0 and bool(np.any(problem.tokens == problem.free))
    if (words and not spaced) or len(posteriors) * len(problem.tokens) > MOST_CELLS:
        return None
    pieces = _Pieces.of(problem, words)
    if len(pieces.tokens) < (FEWEST_WORDS if words else FEWEST_CUES):
        return None
    others = np.array([align(posteriors, pieces.reordered(order)).score for order in _orders(len(pieces.tokens))])
    spread = float(others.std(ddof=1))
    if not spread:
        return None
    return (align(posteriors, problem).score - float(others.mean())) / spread


def spoken_part(problem: Problem, spoken: NDArray[np.bool_]) -> Problem:
    """A `problem` from its first to its last `spoken` cue (J,): the text may go on before and after the recording.

    The path spreads the few cues that fit of another recording's text over all of it, so hardly any is left out.
    """
    at = np.flatnonzero(spoken)
    if not len(at):
        return problem
    first, end = int(at[0]), int(at[-1]) + 1
    core = part(problem, int(problem.boundaries[first]), int(problem.boundaries[end]))
    return replace(core, star=problem.star[first : end + 1])


def without_ends(problem: Problem) -> Problem:
    """A `problem` of `SEVERAL` cues without its first and last `ENDS`, which recordings of a series may share."""
    cues = len(problem.skip_nats)
    ends = ENDS if cues >= SEVERAL else 0
    return part(problem, int(problem.boundaries[ends]), int(problem.boundaries[cues - ends]))


def _orders(count: int) -> list[NDArray[np.intp]]:
    """Other orders of cues or words: `ORDERS` drawn by chance, or all of up to four."""
    if count > 4:
        random = np.random.default_rng(count)
        return [random.permutation(count) for _ in range(ORDERS)]
    return [np.array(order) for order in list(permutations(range(count)))[1:]]


class _Pieces(NamedTuple):
    """The cues of a problem, or its words: the tokens of each, and whether it ends its cue."""

    problem: Problem
    tokens: list[NDArray[np.int32]]
    last: NDArray[np.bool_]

    @classmethod
    def of(cls, problem: Problem, words: bool) -> _Pieces:
        spaces = np.flatnonzero(problem.tokens == problem.free) if words else np.zeros(0, np.intp)
        ends = np.union1d(spaces, problem.boundaries[1:])
        starts = np.insert(ends[:-1] + np.isin(ends[:-1], spaces), 0, 0)
        tokens = [problem.tokens[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return cls(problem, tokens, np.isin(ends, problem.boundaries))

    def reordered(self, order: NDArray[np.intp]) -> Problem:
        """The same pieces in another order, as many in each cue."""
        before, space = self.problem, np.array([self.problem.free], np.int32)
        tokens: list[NDArray[np.int32]] = []
        for piece, is_last in zip(order.tolist(), self.last.tolist(), strict=True):
            tokens += [self.tokens[piece]] if is_last else [self.tokens[piece], space]
        ends = np.cumsum([len(self.tokens[piece]) for piece in order.tolist()] + ~self.last)[self.last]
        bounds = np.insert(ends, 0, 0).astype(np.int32)
        longer = (np.diff(bounds) / np.diff(before.boundaries)).astype(np.float32)
        whole_cues = len(order) == len(before.skip_nats)
        skip_nats = before.skip_nats[order] if whole_cues else before.skip_nats * longer
        return replace(before, tokens=np.concatenate(tokens), boundaries=bounds, skip_nats=skip_nats)


def decoy_of(problem: Problem) -> Problem | None:
    """A decoy that is equally hard to find; None if the text is too short or too uniform."""
    tokens, bounds = problem.tokens, problem.boundaries
    by_cue = np.repeat(bounds[:-1] + bounds[1:] - 1, np.diff(bounds)) - np.arange(len(tokens))
    for other in (tokens[by_cue], tokens[::-1]):
        if len(tokens) >= FEWEST_TOKENS and np.mean(other != tokens) >= LEAST_OTHER:
            return replace(problem, tokens=np.ascontiguousarray(other))
    return None


def _star(posteriors: NDArray[Any], problem: Problem) -> float:
    """Nats of a path without tokens."""
    sign = -1 if scale_of(posteriors) < 0 else 1  # 8-bit values are costs
    best = (posteriors.min if sign < 0 else posteriors.max)(axis=1).astype(np.float32)
    quiet = posteriors[:, problem.blank].astype(np.float32)
    if problem.free >= 0:
        quiet = sign * np.maximum(sign * quiet, sign * posteriors[:, problem.free].astype(np.float32))
    return float(np.minimum((best - quiet) * scale_of(posteriors), problem.star_nats).sum(dtype=np.float64))


NEAR = 10  # cues of the path on either side
LONGEST = 100  # cues that are tested together, as the memory and time of the test grow with their square


def foreign_cues(
    z: NDArray[np.float64], lengths: NDArray[np.integer[Any]], order: Callable[[int, int], float | None]
) -> NDArray[np.bool_]:
    """(J,) which cues are in foreign stretches, by their deviations z (NaN: not on the path) and `lengths` in tokens.

    order: `order_deviation` of cues first .. last-1 in the audio between their neighbours; they stay where it is None.
    """
    foreign = np.zeros(len(z), bool)
    placed = np.flatnonzero(np.isfinite(z))
    if len(placed) <= 2 * NEAR:
        return foreign
    sure, weight = z[placed] <= SURE, lengths[placed].astype(np.float64)
    share = _around(sure * weight) / _around(weight)
    for first, last in runs(share < MOSTLY).tolist():
        while first and not sure[first - 1]:
            first -= 1
        while last < len(placed) and not sure[last]:
            last += 1
        begin, end = int(placed[first]), int(placed[last - 1]) + 1
        if end - begin <= 2 * NEAR:
            continue
        for section in np.array_split(np.arange(begin, end), math.ceil((end - begin) / LONGEST)):
            deviation = order(int(section[0]), int(section[-1]) + 1)
            foreign[section] = deviation is not None and deviation < BELOW_OTHERS
    return foreign


def _around(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of each value and of its `NEAR` neighbours on either side."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    return np.asarray(total[np.minimum(at + NEAR + 1, len(values))] - total[np.maximum(at - NEAR, 0)])
