"""Word error rates of two systems on the same utterances, with the uncertainty of their difference.

    WER = (S + D + I) / words        WERR = (WER_baseline - WER_student) / WER_baseline

Intervals are those of the bootstrap of Bisani & Ney 2004: draw N of N utterances with replacement, many times, and take
quantiles of the rates on the draws. Both systems use the same draws, so the share of draws in which the student has
fewer errors is the probability of improvement. Words of one speaker are not independent: if speakers are known, whole
speakers are drawn. One utterance alone has no interval and no probability: all draws would be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megahour.corpus.text.edit_distance import Edits, align

Float64 = npt.NDArray[np.float64]
Interval = tuple[float, float]

CHUNK_CELLS = 1 << 22  # (draw, cluster) counts of a chunk of draws


@dataclass(frozen=True)
class Rate:
    """Word and character edits of one system, and the interval of its WER."""

    words: Edits
    characters: Edits
    interval: Interval

    @property
    def wer(self) -> float:
        return self.words.rate

    @property
    def cer(self) -> float:
        return self.characters.rate


@dataclass(frozen=True)
class Comparison:
    """WERR with its interval, and the share of draws in which the second system has fewer errors (ties count half)."""

    werr: float
    interval: Interval
    probability: float


def word_edits(reference: str, hypothesis: str) -> Edits:
    """Alignment of white-space separated words.

    >>> word_edits("one two three", "one too three").rate
    0.3333333333333333
    """
    return align(reference.split(), hypothesis.split())


def character_edits(reference: str, hypothesis: str) -> Edits:
    """Alignment of characters. A run of white space counts as one space."""
    return align(" ".join(reference.split()), " ".join(hypothesis.split()))


def relative_reduction(before: float, after: float) -> float:
    """(before - after) / before; NaN when `before` is 0.

    >>> relative_reduction(20.0, 15.0)
    0.25
    """
    return (before - after) / before if before else float("nan")


class Bootstrap:
    """Draws of clusters of utterances, the same for every system.

    clusters: (N,) label of each utterance's cluster (its speaker); None draws utterances.
    """

    def __init__(self, utterances: int, clusters: Sequence[str] | None, draws: int, seed: int) -> None:
        labels = np.arange(utterances) if clusters is None else np.unique(np.asarray(clusters), return_inverse=True)[1]
        self.cluster, self.clusters = labels, int(labels.max(initial=-1)) + 1
        self.draws, self.seed = draws, seed

    def totals(self, columns: npt.ArrayLike) -> Float64:
        """Sums over each draw of `columns` (N, C): (draws, C)."""
        values = np.asarray(columns, np.float64)
        each = np.stack([np.bincount(self.cluster, column, self.clusters) for column in values.T], axis=1)
        rng = np.random.Generator(np.random.PCG64(self.seed))
        chunk = max(1, CHUNK_CELLS // self.clusters)
        shares = np.full(self.clusters, 1 / self.clusters)
        parts = [
            rng.multinomial(self.clusters, shares, size=min(chunk, self.draws - start)) @ each
            for start in range(0, self.draws, chunk)
        ]
        return np.concatenate(parts)

    def spread(self, columns: npt.ArrayLike) -> Float64:
        """The same (draws, C), but NaN with a single cluster, whose draws do not differ and say nothing of chance."""
        return self.totals(columns) * (1.0 if self.clusters > 1 else np.nan)


def interval(values: Float64, level: float = 0.95) -> Interval:
    """Central interval of the finite values that holds `level` of them; NaN when there are none."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return float("nan"), float("nan")
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def rate(words: Sequence[Edits], characters: Sequence[Edits], bootstrap: Bootstrap) -> Rate:
    """Totals of one system over the utterances, with the WER's 95 % interval."""
    totals = bootstrap.spread([(edits.errors, edits.length) for edits in words])
    return Rate(sum(words, Edits()), sum(characters, Edits()), interval(_ratio(totals[:, 0], totals[:, 1])))


def compare(before: Sequence[Edits], after: Sequence[Edits], bootstrap: Bootstrap) -> Comparison:
    """Two systems on the same utterances, in the same order; with one utterance, interval and probability are NaN.

    Raises ValueError when the references differ.
    """
    if [edits.length for edits in before] != [edits.length for edits in after]:
        raise ValueError("the two systems were scored against different references; score them together")
    totals = bootstrap.spread([(b.errors, a.errors) for b, a in zip(before, after, strict=True)])
    old, new = totals[:, 0], totals[:, 1]
    better = np.where(np.isnan(old), np.nan, (new < old) + 0.5 * (new == old))
    whole_old, whole_new = (sum(edits.errors for edits in system) for system in (before, after))
    return Comparison(
        relative_reduction(whole_old, whole_new),
        interval(_ratio(old - new, old)),
        float(np.mean(better)),
    )


def _ratio(numerator: Float64, denominator: Float64) -> Float64:
    result = np.full(len(numerator), np.nan)
    np.divide(numerator, denominator, out=result, where=denominator > 0)
    return result
