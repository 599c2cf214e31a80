"""Laws of error rates against hours, fitted by least squares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """WER = floor + factor · hours^-exponent, in %."""

    floor: float
    factor: float
    exponent: float

    def __call__(self, hours: Floats | float) -> Floats:
        return np.asarray(self.floor + self.factor * np.asarray(hours) ** -self.exponent)

    def __str__(self) -> str:
        floor = f"{self.floor:.1f} + " if self.floor else ""
        return f"{floor}{self.factor:.1f} · hours^-{self.exponent:.2f}"


def power(hours: Floats, wer: Floats) -> Law:
    """WER = b · hours^-c, by least squares of the logarithms."""
    slope, intercept = np.polyfit(np.log(hours), np.log(wer), 1)
    return Law(0.0, float(np.exp(intercept)), -float(slope))


def with_floor(hours: Floats, wer: Floats) -> Law:
    """WER = a + b · hours^-c, a ≥ 0, by least squares of relative errors.

    For each c of a grid, 0.01 to 3, the best a and b solve two linear equations; the c with the smallest sum wins.
    """
    exponents = np.arange(1, 301)[:, None] / 100  # (C, 1)
    one, shape = 1 / wer, hours**-exponents / wer  # (P,), (C, P): a · one + b · shape is to be 1
    floor_factor = shape @ one
    determinant = (one @ one) * (shape**2).sum(axis=1) - floor_factor**2
    floor = (one.sum() * (shape**2).sum(axis=1) - shape.sum(axis=1) * floor_factor) / determinant
    floor = np.maximum(floor, 0)
    factor = ((1 - floor[:, None] * one) * shape).sum(axis=1) / (shape**2).sum(axis=1)
    lost = ((floor[:, None] * one + factor[:, None] * shape - 1) ** 2).sum(axis=1)
    best = int(np.argmin(lost))
    return Law(float(floor[best]), float(factor[best]), float(exponents[best, 0]))


Fit = Callable[[Floats, Floats], Law]
FITS: dict[str, Fit] = {"b · hours^-c": power, "a + b · hours^-c": with_floor}
