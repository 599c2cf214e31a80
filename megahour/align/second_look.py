"""A second look at cues that the path leaves out, where somebody speaks at their place.

The cost of leaving a cue out fits the document's usual errors. A cue that the model hears badly, with words or sounds
that it never learned, costs more, and goes although it is said. Whether it is, other texts of the same document tell:
stretches as long as the cue, each aligned to the same place as the cue is,

    C(y) = min over paths that speak y, with the star before and after it       N = the star alone

A cue that is said fits better than such decoys; one that is not, beside speech that nobody wrote down, is a text like
any other. It counts as said if C(y) is by MARGIN |C(d) - N| less than C(d) for every decoy d; where its time, too,
says that it is here, if C(y) exceeds no more than TIMED_CHANCE of the C(d). A long cue must be said in each of its
parts: of a text that ends otherwise than the speech does, the beginning alone would be enough to win.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.align.anchors import greedy_path, kmers
from megahour.align.ctc import NoPathError, Path, Problem, align, scale_of, spans
from megahour.align.hints import expect, slow_pace
from megahour.core.compiled import compiled

DECOYS = 100
MARGIN = 0.2
TIMED_CHANCE = 0.05
FEWEST_TOKENS = 4  # of a cue: shorter ones fit anywhere
PART_TOKENS = 24
LEAST_HEARD, LEAST_HEARD_LONG = 0.5, 0.65  # greedy tokens at the place, for each token of the cue; of one with parts
LEAST_SPOKEN = 0.5  # share of the cues on the path, below which text and audio hardly belong together
NEAR = 0.5  # of the tolerance of `hints`: how far from its time a cue may begin
MAX_CELLS = 4e5  # frames x tokens of a cue and its place
SHARED = 0.3  # share of k-mers in common with the cue above which a decoy is the cue's own text again
KMER = 4

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Place:
    """Frames low .. high-1 where a cue may be, and whether its time says so.

    costs (T, V), rest and star (T,): nats below each frame's best unit, of a unit, of silence within the cue, and of
    whatever is around it.
    """

    low: int
    high: int
    timed: bool
    costs: Floats
    rest: Floats
    star: Floats

    @classmethod
    def of(cls, posteriors: NDArray[Any], problem: Problem, low: int, high: int, *, timed: bool) -> Place:
        costs = posteriors[low:high].astype(np.float32) * scale_of(posteriors)
        costs = costs.max(axis=1, keepdims=True) - costs
        star = np.minimum(costs[:, problem.blank], problem.star_nats)
        if problem.free >= 0:
            star = np.minimum(star, costs[:, problem.free])
        return cls(low, high, timed, costs, costs[:, problem.blank].copy(), star)

    def says(self, own: Ints, text: Ints, begin: int = 0, end: int | None = None) -> bool:
        """Whether `own` (U,) is said in frames begin .. end-1 of the place; decoys are stretches of `text`."""
        others = decoys(text, own)
        if len(others) < DECOYS // 2:
            return False
        part = slice(begin, end)
        texts = np.vstack([own[None], others])
        found = cue_costs(self.costs[part], self.rest[part], self.star[part], texts) - self.star[part].sum()
        if self.timed and np.mean(found[1:] <= found[0]) <= TIMED_CHANCE:
            return True
        least = found[1:].min()
        return bool(found[0] <= least - MARGIN * abs(least))


def look_again(
    posteriors: NDArray[Any],
    problem: Problem,
    path: Path,
    refused: NDArray[np.bool_],
    hints: NDArray[np.float64] | None = None,
    least_frames: float = np.inf,
) -> Path:
    """`path` with those cues that it leaves out though they are said. The score stays the old path's.

    posteriors: (T, V) as for `ctc.align`. refused: (J,) cues that are not to be looked for. hints, least_frames: as for
    `hints.heed_hints`.
    """
    bounds = problem.boundaries
    first, last = path.start_frames[bounds[:-1]].copy(), path.end_frames[bounds[1:] - 1].copy()
    lengths = np.diff(bounds)
    left_out = np.flatnonzero((first < 0) & ~refused & (lengths >= FEWEST_TOKENS))
    if not len(left_out) or np.mean(first >= 0) < LEAST_SPOKEN:
        return path
    expected = None if hints is None else expect(first, hints, least_frames)
    pace, states = slow_pace(path, problem), path.states
    for cue in left_out.tolist():
        left, after = int(last[:cue].max(initial=0)), first[cue + 1 :]
        right = int(after[after >= 0].min(initial=len(states)))
        low, high, timed = left, right, False
        if expected is not None and np.isfinite(at := expected.start[cue]):
            near = NEAR * expected.tolerance
            low = int(np.clip(at - near, left, right))
            high = int(np.clip(at + near + pace * lengths[cue], low, right))
            timed = True
        if not lengths[cue] <= high - low <= MAX_CELLS / lengths[cue]:
            continue
        least = LEAST_HEARD if lengths[cue] < 2 * PART_TOKENS else LEAST_HEARD_LONG
        if _heard(posteriors[low:high], problem) < least * lengths[cue]:
            continue
        place = Place.of(posteriors, problem, low, high, timed=timed)
        placed = _said(posteriors, problem, cue, place)
        if placed is not None:
            own = low + np.flatnonzero(placed >= 0)
            first[cue], last[cue] = own[0], own[-1] + 1
            states = states.copy() if states is path.states else states
            states[left:low], states[low:high], states[high:right] = ~bounds[cue], placed, ~bounds[cue + 1]
    return path if states is path.states else Path(states, *spans(states, len(problem.tokens)), path.score)


def _said(posteriors: NDArray[Any], problem: Problem, cue: int, place: Place) -> Ints | None:
    """States of the frames of `place` with `cue` spoken there, or None where it is not."""
    begin, end = int(problem.boundaries[cue]), int(problem.boundaries[cue + 1])
    own = problem.tokens[begin:end]
    if not place.says(own, problem.tokens):
        return None
    piece = replace(
        problem,
        tokens=own,
        boundaries=np.array([0, end - begin], np.int32),
        skip_nats=np.array([np.inf], np.float32),
        star=np.ones(2, bool),
    )
    try:
        path = align(posteriors[place.low : place.high], piece)
    except NoPathError:  # more repeated tokens than frames
        return None
    edges = np.linspace(0, len(own), max(1, len(own) // PART_TOKENS) + 1).astype(np.intp).tolist()
    for a, b in pairwise(edges) if len(edges) > 2 else ():
        start = int(path.end_frames[a - 1]) if a else 0
        stop = int(path.start_frames[b]) if b < len(own) else None
        if not place.says(own[a:b], problem.tokens, start, stop):
            return None
    return np.where(path.states >= 0, path.states + begin, path.states - begin).astype(np.int32)


def _heard(posteriors: NDArray[Any], problem: Problem) -> int:
    """Tokens of the greedy path through posteriors (T, V), spaces apart."""
    units, _ = greedy_path(posteriors, problem.blank)
    return int(np.count_nonzero(units != problem.free))


def decoys(text: Ints, own: Ints) -> Ints:
    """(D, U) stretches of `text` as long as `own` (U,), at even distances, without those that are like it."""
    length = len(own)
    starts = np.unique(np.linspace(0, len(text) - length, DECOYS).astype(np.intp))
    shared = np.concatenate([[0], np.cumsum(np.isin(kmers(text, KMER), kmers(own, KMER)))])
    share = (shared[starts + length - KMER + 1] - shared[starts]) / (length - KMER + 1)
    found: Ints = text[starts[share <= SHARED, None] + np.arange(length)]
    return found


@compiled
def cue_costs(costs, rest, star, texts):  # type: ignore[no-untyped-def]
    """(N,) float32: nats of the best path through T frames that speaks each of `texts` (N, U) int32.

    costs (T, V), rest and star (T,): as in `Place`. The recursion of `ctc` for one cue without a skip, without a way
    back.
    """
    count, length = texts.shape
    result = np.empty(count, np.float32)
    emit, still = np.empty(length, np.float32), np.empty(length + 1, np.float32)
    for n in range(count):
        emit[:], still[:] = np.inf, np.inf
        still[0] = 0
        for t in range(costs.shape[0]):
            still[length] = min(still[length], emit[length - 1]) + star[t]
            for u in range(length - 1, -1, -1):
                unit = texts[n, u]
                enter, stay = min(emit[u], still[u]), still[u]
                if u:
                    stay = min(stay, emit[u - 1])
                    if unit != texts[n, u - 1]:
                        enter = min(enter, emit[u - 1])
                emit[u] = enter + costs[t, unit]
                still[u] = stay + (rest[t] if u else star[t])
        result[n] = min(still[length], emit[length - 1])
    return result
