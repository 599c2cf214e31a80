"""Modified Kneser-Ney: discounts (Chen & Goodman 1998, equation 26) and unigram probabilities.

    D(j) = j - (j+1) · n_1/(n_1 + 2 n_2) · n_(j+1)/n_j          j = 1, 2, 3+;  D(0) = 0

n_j is the number of n-grams with adjusted count j. An order whose counts give no valid discounts, where lmplz stops
without `--discount_fallback`, gets D = 0.5, 1, 1.5, unless `KneserNey` sets other values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.core.errors import MegahourError
from megahour.lm.text.arrays import Bytes, Float64, Int64
from megahour.lm.text.tokenise import BOUNDARY, END, UNKNOWN

Discount = tuple[float, float, float]
FALLBACK: Discount = (0.5, 1.0, 1.5)


class KneserNey(NamedTuple):
    """Options of Kneser-Ney smoothing, as in lmplz.

    fallback: discounts of orders whose counts give none; None makes such an order an error. interpolated: distribute
    the mass freed from unigrams evenly over all words; False: give it to `<unk>`, as SRILM does. least_words: assume a
    vocabulary of at least this many words.
    """

    fallback: Discount | None = FALLBACK
    interpolated: bool = True
    least_words: int = 0


USUAL = KneserNey()


def discounts(tallies: Sequence[Int64], fallback: Discount | None = FALLBACK) -> tuple[list[Discount], dict[int, str]]:
    """D(1), D(2), D(3+) of each order; and the orders that got the fallback, with the reason.

    tallies: for each order the numbers (5,) of n-grams with adjusted counts 0 … 4. Raises MegahourError: an order needs
    the fallback, which is None.

    >>> values, fallbacks = discounts([np.array([0, 40, 20, 12, 8])])
    >>> [round(value, 3) for value in values[0]], fallbacks
    ([0.5, 1.1, 1.667], {})
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
    """p(w) (V,) from adjusted counts (V,), interpolated with 1/(V-1) as in lmplz. Word `bos` is never predicted: 1.

    allowed (V,): V is the number of these words; the counts of all others go to the interpolation, and their p is
    meaningless.
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


@dataclass(frozen=True)
class Smoothing:
    """discounts (order + 2, 4): by order. unigram (V,): probabilities, that of `</s>` also under BOUNDARY."""

    discounts: Float64
    unigram: Float64


def smoothing_of(
    unigrams: Int64, tallies: Int64, how: KneserNey = USUAL, allowed: Bytes | None = None
) -> tuple[Smoothing, list[Discount], dict[int, str]]:
    """Discounts and unigram probabilities as arrays, and the discounts and fallbacks of `discounts`.

    unigrams (V,): adjusted counts of words. tallies (order - 1, 5): of the longer n-grams, as for `discounts`. allowed:
    as for `unigram_probabilities`. Raises MegahourError as `discounts`.
    """
    ones = np.array([np.count_nonzero(unigrams == adjusted) for adjusted in range(5)])
    result, fallbacks = discounts([ones, *tallies], how.fallback)
    table = np.zeros((len(result) + 2, 4))
    table[1:-1, 1:] = result
    unigram = unigram_probabilities(unigrams, result[0], BOUNDARY, allowed, how)
    unigram[BOUNDARY] = unigram[END]
    return Smoothing(table, unigram), result, fallbacks
