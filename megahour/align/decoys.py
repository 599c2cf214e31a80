"""Decides whether a text is spoken at a place, by comparing its cost with those of other texts and at other places.

    C(y, p) = min over paths through the frames of place p that speak y, with the star before and after it
    N(p)    = the star alone                                                    D(y, p) = C(y, p) - N(p)

Other texts of the document as long as y, decoys d, show what any text would cost at the place. Rare letters, and sounds
that the model never learned, make a text expensive everywhere; other places q, where something else is spoken, show how
expensive. The remainder after subtracting both,

    z = (D(y, p) - mean D(d, p) - mean D(y, q) + mean D(d, q)) / deviation,

has mean 0 and deviation 1 for a text that is not spoken there, whatever the text and the place. (Normalisation by
cohorts on both sides comes from speaker verification: Auckenthaler et al. 2000.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.align.anchors import kmers
from megahour.align.ctc import Problem, frame_costs
from megahour.core.compiled import compiled

DECOYS = 100
MARGIN = 0.2
TIMED_CHANCE = 0.05
SHARED = 0.3  # share of common k-mers above which a decoy is a repetition of the text itself
KMER = 4
PLACES = 60  # other places to compare with
DECOYS_ELSEWHERE = 33

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CuePlace:
    """Frames low .. high-1 where a cue may be, and whether its subtitle time suggests them.

    costs (T, V), rest and star (T,): nats below each frame's best unit, for a unit, for silence within the cue, and for
    anything around it.
    """

    low: int
    high: int
    timed: bool
    costs: Floats
    rest: Floats
    star: Floats

    @classmethod
    def of(cls, posteriors: NDArray[Any], problem: Problem, low: int, high: int, *, timed: bool) -> CuePlace:
        costs, star = frame_costs(posteriors[low:high], problem)
        return cls(low, high, timed, costs, costs[:, problem.blank].copy(), star)

    def excess(self, texts: Ints, begin: int = 0, end: int | None = None) -> Floats:
        """(N,) D of each of `texts` (N, U) in frames begin .. end-1 of the place."""
        part = slice(begin, end)
        excess: Floats = cue_costs(self.costs[part], self.rest[part], self.star[part], texts) - self.star[part].sum()
        return excess

    def says(self, own: Ints, text: Ints, begin: int = 0, end: int | None = None) -> bool:
        """Whether `own` (U,) is spoken in frames begin .. end-1 of the place; decoys are stretches of `text`.

        It is if D(own) is below D(d) by MARGIN |D(d)| for every decoy d, or, if its subtitle time agrees, if D(own)
        exceeds at most TIMED_CHANCE of the D(d).
        """
        others = decoys(text, own)
        if len(others) < DECOYS // 2:
            return False
        excess = self.excess(np.vstack([own[None], others]), begin, end)
        if not np.isfinite(excess[0]):  # more tokens than frames
            return False
        if self.timed and np.mean(excess[1:] <= excess[0]) <= TIMED_CHANCE:
            return True
        least = excess[1:].min()
        return bool(excess[0] <= least - MARGIN * abs(least))


def deviation(place: CuePlace, elsewhere: Sequence[CuePlace], own: Ints, text: Ints) -> float:
    """z of `own` (U,) at `place`; 0 without enough decoys of `text` or places `elsewhere` of the same length."""
    others = decoys(text, own)
    if len(others) < DECOYS // 2 or len(elsewhere) < PLACES // 2:
        return 0.0
    texts = np.vstack([own[None], others[:: max(1, len(others) // DECOYS_ELSEWHERE)]])
    here = place.excess(texts)
    there = np.stack([each.excess(texts) for each in elsewhere])  # (places, texts)
    mine, theirs = there[:, 0], there[:, 1:]
    with np.errstate(invalid="ignore"):  # more tokens than frames
        spread = float(np.std(theirs - theirs.mean(axis=0) - theirs.mean(axis=1, keepdims=True) + theirs.mean()))
        value = float(here[0] - here[1:].mean() - mine.mean() + theirs.mean())
    return value / spread if spread > 0 and np.isfinite(value) else 0.0


def decoys(text: Ints, own: Ints) -> Ints:
    """(D, U) evenly spaced stretches of `text` as long as `own` (U,), without those similar to it."""
    length, k = len(own), min(KMER, len(own))
    starts = np.unique(np.linspace(0, len(text) - length, DECOYS).astype(np.intp))
    texts: Ints = text[starts[:, None] + np.arange(length)]
    alike = np.isin(kmers(texts.reshape(-1), k), kmers(own, k))
    alike = np.append(alike, np.zeros(k - 1, bool)).reshape(texts.shape)[:, : length - k + 1]
    return np.asarray(texts[alike.mean(axis=1) <= SHARED])


@compiled
def cue_costs(costs, rest, star, texts):  # type: ignore[no-untyped-def]
    """(N,) float32: nats of the best path through T frames that speaks each of `texts` (N, U) int32.

    costs (T, V), rest and star (T,): as in `CuePlace`. The recursion of `ctc` for one cue without a skip, without a way
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
