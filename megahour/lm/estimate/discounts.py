"""Modified Kneser-Ney discounts from numbers of n-grams (Chen & Goodman 1998, equation 26), and unigrams.

    D(j) = j - (j+1) · n_1/(n_1 + 2 n_2) · n_(j+1)/n_j          j = 1, 2, 3+;  D(0) = 0

Where lmplz gives up or wants `--discount_fallback`, an order that cannot be estimated gets D = 0.5, 1, 1.5, unless
`KneserNey` says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.core.errors import MegahourError
from megahour.lm.text.arrays import Float64, Int64

UNKNOWN = 0  # the number of `<unk>`
Discount = tuple[float, float, float]
FALLBACK: Discount = (0.5, 1.0, 1.5)


class KneserNey(NamedTuple):
    """What lmplz lets one change. fallback: D of orders that cannot be estimated; None: these are an error.
    interpolated: unigrams share what is freed evenly; else `<unk>` has it all, as SRILM does it. least_words: share it
    among at least so many words, those that the text lacks being `<unk>`."""

    fallback: Discount | None = FALLBACK
    interpolated: bool = True
    least_words: int = 0


USUAL = KneserNey()


def discounts(tallies: Sequence[Int64], fallback: Discount | None = FALLBACK) -> tuple[list[Discount], dict[int, str]]:
    """D(1), D(2), D(3+) of each order from its numbers (5,) of n-grams with adjusted counts 0 … 4.

    Also the orders that got the fallback, each with the reason. Raises MegahourError: an order that needs one when
    there is none.
    """
    result: list[Discount] = []
    fallbacks: dict[int, str] = {}
    for k, n in enumerate(tallies, 1):
        missing = [j for j in (1, 2, 3) if n[j] == 0]
        if missing:
            fallbacks[k] = f"no {k}-gram has an adjusted count of {missing[0]}: small, artificial or repeated text"
            result.append(_given(fallback, fallbacks[k]))
            continue
        y = n[1] / (n[1] + 2 * n[2])
        d1, d2, d3 = (float(j - (j + 1) * y * n[j + 1] / n[j]) for j in (1, 2, 3))
        if not all(0 <= d <= j for j, d in enumerate((d1, d2, d3), 1)):
            fallbacks[k] = f"{k}-gram discounts {d1:.3f} {d2:.3f} {d3:.3f} are out of range: repeated sentences?"
            d1, d2, d3 = _given(fallback, fallbacks[k])
        result.append((d1, d2, d3))
    return result, fallbacks


def _given(fallback: Discount | None, why: str) -> Discount:
    if fallback is None:
        remedy = "remove repeated lines from the text, or give discounts for such orders: --discount_fallback 0.5 1 1.5"
        raise MegahourError(why, remedy=remedy)
    return fallback


def unigram_probabilities(
    adjusted: Int64,
    discount: Discount,
    bos: int,
    allowed: npt.NDArray[np.uint8] | None = None,
    how: KneserNey = USUAL,
) -> Float64:
    """p(w) (V,) from adjusted counts (V,), interpolated with 1/(V-1) as in lmplz; word `bos` is never predicted: 1.

    allowed (V,): V counts these only; the counts of other words go to the interpolation, and their p is of no use.
    """
    taken = np.array([0.0, *discount])[np.minimum(adjusted, 3)]
    freed = taken if allowed is None else np.where(allowed, taken, adjusted)
    words = len(adjusted) if allowed is None else int(np.count_nonzero(allowed))
    total = adjusted.sum()
    probability = adjusted - taken
    probability /= total
    if how.interpolated:
        probability += freed.sum() / total / max(words - 1, how.least_words)
    else:
        probability[UNKNOWN] += freed.sum() / total
    probability[bos] = 1.0
    return np.asarray(probability, np.float64)
