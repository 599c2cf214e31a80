"""Fits the clock's constants to published figures, and reports errors on fitted and on held-out cells.

Nine cells of Table I determine six constants, by least squares of the logarithms. GTC slows down between 32 and
64 workers, and one cell cannot tell why: F₀ is fitted to that cell alone, so there it is not a prediction.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from megahour.clock import published
from megahour.clock.published import Cell
from megahour.clock.terms import Terms, speedup

FITTED = ("contention", "spread", "jitter", "dense_link", "message", "knee_flows")
START = np.array((0.15, 0.02, 0.04, 4.0, 0.01, 300.0))
"""Initial values of the search, in the units of `Terms`; `equal_fits` starts within a factor of ten of them."""


STARTS = 12
EQUAL = 1e-4  # fits whose errors differ by less (0.01 %) are equally good: the table has three digits


class Residual(NamedTuple):
    """A cell, the clock's prediction, and its relative error.

    `held_out` comes from a fit without the cell; `span` is the range over all fits that are as good.
    """

    cell: Cell
    fitted: float
    held_out: float | None
    span: tuple[float, float] | None

    @property
    def fitted_error(self) -> float:
        return self.fitted / self.cell.speedup - 1

    @property
    def held_out_error(self) -> float | None:
        return None if self.held_out is None else self.held_out / self.cell.speedup - 1


def fit(cells: Sequence[Cell], base: Terms, start: np.ndarray = START) -> Terms:
    """Fit the six constants in `FITTED` to `cells` (speed-ups); the others are taken from `base`."""
    return _fit(cells, base, start)[1]


def equal_fits(cells: Sequence[Cell], base: Terms) -> list[Terms]:
    """Sets of constants that fit `cells` equally well, within `EQUAL`: the cells do not determine how they differ."""
    starts = np.random.default_rng(0).uniform(-1, 1, (STARTS, len(FITTED)))
    found = [_fit(cells, base, START), *(_fit(cells, base, START * 10.0**at) for at in starts)]
    best = min(error for error, _ in found)
    return [terms for error, terms in found if error <= best + EQUAL]


def _fit(cells: Sequence[Cell], base: Terms, start: np.ndarray) -> tuple[float, Terms]:
    """(root mean square error of the logarithms, constants)."""

    def terms(logs: np.ndarray) -> Terms:
        return replace(base, **dict(zip(FITTED, np.exp(logs).tolist(), strict=True)))

    def errors(logs: np.ndarray) -> list[float]:
        fitted = terms(logs)
        return [math.log(speedup(cell.trainer, cell.workers, fitted) / cell.speedup) for cell in cells]

    # Bounds keep a constant that few cells determine from running away.
    low, high = np.log([1e-4, 1e-4, 1e-4, 1e-2, 1e-5, 10.0]), np.log([1.0, 0.5, 0.5, 100.0, 0.5, 1e5])
    began = np.clip(np.log(start), low + 1e-6, high - 1e-6)
    found = least_squares(errors, began, bounds=(low, high), xtol=1e-12, ftol=1e-12)
    return math.sqrt(2 * found.cost / len(cells)), terms(found.x)


@functools.cache
def table_one() -> tuple[Terms, list[Residual]]:
    """Constants fitted to Table I of the Amazon paper, and each cell's error, fitted and held out.

    GTC at 64 workers is not held out: without it nothing determines F₀.
    """
    base = Terms(node_workers=published.TABLE_I_NODE_WORKERS, block=published.TABLE_I_BLOCK)
    best = fit(published.TABLE_I, base)
    residuals = []
    for cell in published.TABLE_I:
        held_out, span = None, None
        if cell[:2] != ("gtc", 64):
            others = [other for other in published.TABLE_I if other != cell]
            predicted = [speedup(cell.trainer, cell.workers, terms) for terms in equal_fits(others, base)]
            held_out, span = speedup(cell.trainer, cell.workers, fit(others, base)), (min(predicted), max(predicted))
        residuals.append(Residual(cell, speedup(cell.trainer, cell.workers, best), held_out, span))
    return best, residuals


class Extrapolation(NamedTuple):
    """A cell with more workers than the fitted ones, and the range of predictions over all equally good fits."""

    cell: Cell
    span: tuple[float, float]

    @property
    def errors(self) -> tuple[float, float]:
        low, high = self.span
        return low / self.cell.speedup - 1, high / self.cell.speedup - 1


@functools.cache
def extrapolated(most: int = 16) -> list[Extrapolation]:
    """Predict the cells of Table I with more than `most` workers from the others: a test of extrapolation."""
    base = Terms(node_workers=published.TABLE_I_NODE_WORKERS, block=published.TABLE_I_BLOCK)
    fits = equal_fits([cell for cell in published.TABLE_I if cell.workers <= most], base)
    beyond = [cell for cell in published.TABLE_I if cell.workers > most]
    predicted = [[speedup(cell.trainer, cell.workers, terms) for terms in fits] for cell in beyond]
    return [Extrapolation(cell, (min(of), max(of))) for cell, of in zip(beyond, predicted, strict=True)]


class Hours(NamedTuple):
    """Published and predicted hours; `fitted`: a constant was chosen to make them agree."""

    workers: int
    published: float
    predicted: float
    fitted: bool


def ibm() -> list[Hours]:
    """H-ADPSGD: the time not overlapped is fitted to the 64 GPUs (one constant, one point); the 32 GPUs are held out.

    Both have 8 learners per node. The constant is per step, and the held-out time tests the assumption that the
    predecessor on 32 GPUs loses as much time per step.
    """
    base = Terms(node_workers=published.IBM_NODE_WORKERS)
    fitted_to = max(published.IBM_HOURS)
    time = fitted_to * published.IBM_HOURS[fitted_to] / published.IBM_ONE_WORKER_HOURS
    terms = replace(base, not_overlapped=time - 1)
    return [
        Hours(n, hours, published.IBM_ONE_WORKER_HOURS / speedup("gossip cta", n, terms), n == fitted_to)
        for n, hours in sorted(published.IBM_HOURS.items(), reverse=True)
    ]
