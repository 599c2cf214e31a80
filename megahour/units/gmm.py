"""Diagonal Gaussian mixtures for phones or senones (the *classes*), and the statistics to train them.

Observations (T, 39) are cepstra with deltas and delta-deltas, with the mean of each utterance removed. Statistics are
exact sums over utterances, so the corpus is streamed and never held in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from megahour.core.compiled import compiled
from megahour.units.sums import ExactSums

CEPSTRA = 13
VARIANCE_FLOOR = 0.05
MIN_OCCUPANCY = 20.0


def cepstra(features: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """(T, F) log-mel features → (T, 13) float32 cepstra with the mean removed. F ≤ 20 are cepstra already."""
    frames = features.astype(np.float32)
    if frames.shape[1] > 20:
        frames = frames @ _cosines(frames.shape[1])
    centred: NDArray[np.float32] = frames - frames.mean(axis=0, keepdims=True)
    return centred


def with_differences(frames: NDArray[np.float32]) -> NDArray[np.float32]:
    """(T, F) → (T, 3 · F): appends deltas and delta-deltas."""
    first = _difference(frames)
    return np.concatenate([frames, first, _difference(first)], axis=1)


def observations(features: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """(T, F) log-mel features → (T, 39) float32 cepstra with deltas; F ≤ 20 cepstra → (T, 3 · F)."""
    return with_differences(cepstra(features))


@cache
def _cosines(mels: int) -> NDArray[np.float32]:
    """(mels, 13): the first columns of the orthonormal DCT-II."""
    matrix: NDArray[np.float32] = scipy.fft.dct(np.eye(mels), type=2, axis=1, norm="ortho")[:, :CEPSTRA]
    return matrix.astype(np.float32)


def _difference(frames: NDArray[np.float32]) -> NDArray[np.float32]:
    """Deltas: the regression slope over ±2 frames (HTK book, equation 5.16). The edge frames are repeated."""
    padded = np.concatenate([frames[:1], frames[:1], frames, frames[-1:], frames[-1:]])
    n = frames.shape[0]
    slope: NDArray[np.float32] = ((padded[3 : n + 3] - padded[1 : n + 1]) + 2 * (padded[4:] - padded[:n])) / 10
    return slope


@dataclass(frozen=True)
class Mixtures:
    """C classes × M components: `weights` (C, M), `means` and `variances` (C, M, D). Weight 0: no component."""

    weights: NDArray[np.float64]
    means: NDArray[np.float64]
    variances: NDArray[np.float64]

    @property
    def components(self) -> int:
        return int(self.means.shape[1])

    @cached_property
    def _affine(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(C, M) and (C, M, 2 · D), so that log w + log N(x; μ, σ²) = first + second · [x, x²]."""
        quadratic = np.concatenate([self.means / self.variances, -0.5 / self.variances], axis=-1)
        normal = -0.5 * (np.log(2 * np.pi * self.variances) + np.square(self.means) / self.variances).sum(-1)
        with np.errstate(divide="ignore"):
            constant = np.maximum(np.log(self.weights), -1e9) + normal
        return constant.astype(np.float32), quadratic.astype(np.float32)

    def affine(self, classes: NDArray[np.integer[Any]]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Of n classes: (n · M,) and (n · M, 2 · D), so that log w + log N(x; μ, σ²) = first + second · [x, x²]."""
        constant, quadratic = (array[classes] for array in self._affine)
        return constant.reshape(-1), quadratic.reshape(-1, quadratic.shape[-1])

    def scores(self, x: NDArray[np.float32], classes: NDArray[np.integer[Any]] | None = None) -> NDArray[np.float32]:
        """(T, D) → (T, n) log-likelihoods of the given classes, by default of all classes."""
        constant, quadratic = self.affine(np.arange(len(self.means)) if classes is None else classes)
        parts = np.concatenate([x, x * x], axis=1) @ quadratic.T + constant
        if self.components == 1:
            return parts
        result = np.empty((len(x), len(constant) // self.components), np.float32)
        _log_sums(parts, self.components, result)
        return result

    def split(self, occupancy: NDArray[np.float64], least: float = 0.0) -> Mixtures:
        """Split each component in two, at ±0.2 standard deviations; those with `occupancy` below `least` stay whole.

        occupancy: (C, M) frames. The result has 2 · M components; the twin of an unsplit one has weight 0.
        """
        twin = (occupancy >= least) & (self.weights > 0)
        move = np.where(twin[..., None], 0.2 * np.sqrt(self.variances), 0.0)
        half = np.where(twin, self.weights / 2, self.weights)
        return Mixtures(
            np.concatenate([half, np.where(twin, half, 0.0)], axis=1),
            np.concatenate([self.means - move, self.means + move], axis=1),
            np.concatenate([self.variances, self.variances], axis=1),
        )


@compiled(fastmath={"reassoc", "contract"})
def _log_sums(parts: NDArray[np.float32], components: int, result: NDArray[np.float32]) -> None:
    for t in range(parts.shape[0]):
        for c in range(result.shape[1]):
            first = c * components
            top = parts[t, first]
            for m in range(1, components):
                top = max(top, parts[t, first + m])
            total = np.float32(0.0)
            for m in range(components):
                total += np.exp(parts[t, first + m] - top)
            result[t, c] = top + np.log(total)


def collect(sums: ExactSums, x: NDArray[np.float32], classes: NDArray[np.integer[Any]], model: Mixtures | None) -> None:
    """Add the statistics of frames (T, D) with known classes (T,) to `sums`.

    Rows are [occupancy, Σx (D,), Σx² (D,)], with key class · M + component. A frame counts for each component of its
    class by posterior under `model`; without a model each class has one component.
    """
    used, local = np.unique(classes, return_inverse=True)
    components = 1 if model is None else model.components
    rows = np.zeros((len(used) * components, sums.width))
    if model is None or components == 1:
        constant, quadratic = np.zeros(0, np.float32), np.zeros((0, 0), np.float32)
    else:
        constant, quadratic = model.affine(used)
    _collect(x, local.astype(np.int32), components, constant, quadratic, rows)
    keys = (used.astype(np.int64)[:, None] * components + np.arange(components)).reshape(-1)
    sums.add(keys, rows)


@compiled(fastmath={"reassoc", "contract"})
def _collect(
    x: NDArray[np.float32],
    classes: NDArray[np.int32],
    components: int,
    constant: NDArray[np.float32],
    quadratic: NDArray[np.float32],
    rows: NDArray[np.float64],
) -> None:
    dims = x.shape[1]
    shares = np.ones(components)
    for t in range(x.shape[0]):
        first = classes[t] * components
        if components > 1:
            top = -np.inf
            for m in range(components):
                score = constant[first + m]
                for d in range(dims):
                    score += x[t, d] * (quadratic[first + m, d] + x[t, d] * quadratic[first + m, dims + d])
                shares[m] = score
                top = max(top, shares[m])
            total = 0.0
            for m in range(components):
                shares[m] = np.exp(shares[m] - top)
                total += shares[m]
            for m in range(components):
                shares[m] /= total
        for m in range(components):
            share = shares[m]
            if share > 1e-6:
                rows[first + m, 0] += share
                for d in range(dims):
                    value = np.float64(x[t, d])
                    rows[first + m, 1 + d] += share * value
                    rows[first + m, 1 + dims + d] += share * value * value


def occupancies(sums: ExactSums, classes: int, components: int) -> NDArray[np.float64]:
    """(classes, components) frame counts of the statistics from `collect`."""
    return sums.rows(np.arange(classes * components))[:, 0].reshape(classes, components)


def estimate(sums: ExactSums, classes: int, components: int, before: Mixtures | None = None) -> Mixtures:
    """Maximum-likelihood estimate from the statistics of `collect`.

    Variances are floored at `VARIANCE_FLOOR` times the variance of all frames. A component with fewer than
    `MIN_OCCUPANCY` frames keeps its mean and variance from `before`; without `before` it takes those of all frames.
    """
    every = sums.rows(np.arange(classes * components))
    dims = (sums.width - 1) // 2
    whole = every.sum(axis=0)
    mean = whole[1 : 1 + dims] / whole[0]
    variance = whole[1 + dims :] / whole[0] - np.square(mean)
    occupancy = every[:, 0].reshape(classes, components)
    rows = (every[:, 1:] / np.maximum(every[:, :1], 1.0)).reshape(classes, components, 2, dims)
    enough = (occupancy >= MIN_OCCUPANCY)[..., None]
    means = np.where(enough, rows[:, :, 0], mean if before is None else before.means)
    own = rows[:, :, 1] - np.square(rows[:, :, 0])
    variances = np.where(enough, own, variance if before is None else before.variances)
    present = np.ones(occupancy.shape, bool) if before is None else before.weights > 0
    weights = np.where(present, occupancy + 1e-6, 0.0)
    return Mixtures(
        weights / weights.sum(axis=1, keepdims=True), means, np.maximum(variances, VARIANCE_FLOOR * variance)
    )
