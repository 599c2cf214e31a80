"""Weights of a linear mixture for a held-out text, by expectation maximisation (as SRILM's `compute-best-mix`).

    p(w_t|h_t) = Σ_i λ_i p_i(w_t|h_t)        λ_i ← λ_i · 1/T Σ_t p_i(w_t|h_t) / p(w_t|h_t)

The likelihood is concave in λ, and max_i 1/T Σ_t p_i/p - 1 is an upper bound of the log-likelihood per token that is
still to gain. The iteration stops when it is below a tolerance, so the result does not depend on the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megahour.core.errors import MegahourError
from megahour.lm.text.arrays import Float64

TOLERANCE = 1e-6
MAX_ITERATIONS = 10_000


@dataclass(frozen=True)
class Fit:
    """Weights, and the perplexities of a text.

    perplexities (M,): of each model over the tokens that it allows; impossible (M,): number of all other tokens. Do not
    compare these perplexities between models of different vocabularies. perplexity: of the mixture on `tokens` tokens;
    left_out: tokens that are impossible for all models. shared_perplexities (M,), shared_perplexity: over the `shared`
    tokens that every model allows. gap: upper bound of the log-likelihood per token, in nats, that other weights gain.
    """

    weights: list[float]
    perplexities: list[float]
    impossible: list[int]
    perplexity: float
    tokens: int
    left_out: int
    shared: int
    shared_perplexities: list[float]
    shared_perplexity: float
    iterations: int
    gap: float


def fit(
    log10_probs: Float64,
    weights: Sequence[float] | None = None,
    *,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
) -> Fit:
    """Tune the weights of M models on log10_probs (M, T), or evaluate `weights` if they are given.

    Raises MegahourError: no token is possible, or the iteration does not converge.

    >>> fitted = fit(np.log10([[0.5, 0.1], [0.1, 0.5]]))
    >>> [round(weight, 3) for weight in fitted.weights], round(fitted.perplexity, 3)
    ([0.5, 0.5], 3.333)
    """
    models = len(log10_probs)
    possible = np.isfinite(log10_probs)
    usable = possible.any(axis=0)
    if not usable.any():
        raise MegahourError("no held-out token is in any model", remedy="give held-out text in the models' words")
    probs = 10.0 ** log10_probs[:, usable]
    tuned = np.full(models, 1.0 / models) if weights is None else check_weights(weights, models)
    iterations, gap = 0, 0.0
    if weights is None and models > 1:
        tuned, iterations, gap = _expectation_maximisation(probs, tuned, tolerance, max_iterations)
    with np.errstate(divide="ignore"):
        mixed = np.asarray(np.log10(tuned @ probs))
    shared = np.asarray(possible.all(axis=0))
    return Fit(
        tuned.tolist(),
        [_perplexity(row[ok]) for row, ok in zip(log10_probs, possible, strict=True)],
        (usable & ~possible).sum(axis=1).tolist(),
        _perplexity(mixed),
        int(usable.sum()),
        int((~usable).sum()),
        int(shared.sum()),
        [_perplexity(row[shared]) for row in log10_probs],
        _perplexity(mixed[shared[usable]]),
        iterations,
        gap,
    )


def check_weights(weights: Sequence[float], models: int) -> Float64:
    """Weights as an array (M,), scaled to sum to one.

    Raises MegahourError: the number of weights is wrong, one is negative, or the sum differs from one by more than 1 %.
    """
    result = np.array(weights, np.float64)
    remedy = "give one weight ≥ 0 for each model, summing to 1, or none and a held-out text"
    if len(result) != models:
        raise MegahourError(f"{len(result)} weights for {models} models", remedy=remedy)
    if not (np.isfinite(result) & (result >= 0)).all():
        raise MegahourError(f"weights {list(weights)} are not all numbers ≥ 0", remedy=remedy)
    if abs(result.sum() - 1.0) > 0.01:
        raise MegahourError(f"weights {list(weights)} sum to {result.sum():g}", remedy=remedy)
    return np.asarray(result / result.sum(), np.float64)


def _expectation_maximisation(
    probs: Float64, weights: Float64, tolerance: float, max_iterations: int
) -> tuple[Float64, int, float]:
    for iteration in range(1, max_iterations + 1):
        gains = (probs / (weights @ probs)).mean(axis=1)
        gap = float(gains.max() - 1.0)
        if gap < tolerance:
            return weights, iteration, gap
        weights = weights * gains
        weights /= weights.sum()
    raise MegahourError(
        f"after {max_iterations} iterations the weights can still gain {gap:.1e} nats per token, above {tolerance:.1e}",
        remedy="raise the tolerance or the limit",
    )


def _perplexity(log10_probs: Float64) -> float:
    return float(10.0 ** -log10_probs.mean()) if len(log10_probs) else float("inf")
