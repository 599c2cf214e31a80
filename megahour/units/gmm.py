"""Diagonal Gaussian mixtures of monophones: the flat start that gives frames their first phones.

Observations (T, 39) are cepstra with first and second differences, mean removed per utterance. All statistics are
float64 sums over shards, so a corpus is streamed and never held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

CEPSTRA = 13
VARIANCE_FLOOR = 0.05
MIN_OCCUPANCY = 20.0


def observations(features: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """(T, F) log-mel (or F ≤ 20 cepstra as they are) → (T, 3 · 13 or 3 · F) float32."""
    frames = features.astype(np.float32)
    if frames.shape[1] > 20:
        frames = scipy.fft.dct(frames, type=2, axis=1, norm="ortho")[:, :CEPSTRA]
    frames = frames - frames.mean(axis=0, keepdims=True)
    first = _difference(frames)
    return np.concatenate([frames, first, _difference(first)], axis=1).astype(np.float32)


def _difference(frames: NDArray[np.float32]) -> NDArray[np.float32]:
    """Regression slope over ±2 frames (HTK book, equation 5.16)."""
    padded = np.pad(frames, ((2, 2), (0, 0)), mode="edge")
    n = frames.shape[0]
    slope = ((padded[3 : n + 3] - padded[1 : n + 1]) + 2 * (padded[4 : n + 4] - padded[:n])) / 10
    return slope.astype(np.float32)


@dataclass
class Mixtures:
    """P phones × M components: `weights` (P, M), `means` and `variances` (P, M, D)."""

    weights: NDArray[np.float64]
    means: NDArray[np.float64]
    variances: NDArray[np.float64]

    def component_scores(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """(T, D) → (T, P, M): log w + log N(x; μ, σ²), as two matrix products."""
        phones, mixtures, dims = self.means.shape
        precision = (1.0 / self.variances).reshape(-1, dims)
        linear = (self.means / self.variances).reshape(-1, dims)
        constant = np.log(np.maximum(self.weights, 1e-10)).reshape(-1) - 0.5 * (
            np.log(2 * np.pi * self.variances) + np.square(self.means) / self.variances
        ).sum(-1).reshape(-1)
        scores = x @ linear.T.astype(np.float32) - 0.5 * (x * x) @ precision.T.astype(np.float32)
        result: NDArray[np.float32] = (scores + constant.astype(np.float32)).reshape(-1, phones, mixtures)
        return result

    def scores(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """(T, D) → (T, P) log-likelihoods."""
        parts = self.component_scores(x)
        top = parts.max(axis=2)
        total: NDArray[np.float32] = np.log(np.exp(parts - top[:, :, None]).sum(axis=2)) + top
        return total

    def split(self) -> Mixtures:
        """Twice the components: each moved by ±0.2 standard deviations."""
        move = 0.2 * np.sqrt(self.variances)
        return Mixtures(
            np.concatenate([self.weights, self.weights], axis=1) / 2,
            np.concatenate([self.means - move, self.means + move], axis=1),
            np.concatenate([self.variances, self.variances], axis=1),
        )


class Statistics:
    """Occupancy, first and second order sums for P × M Gaussians."""

    def __init__(self, phones: int, mixtures: int, dims: int) -> None:
        self.occupancy = np.zeros((phones, mixtures))
        self.first = np.zeros((phones, mixtures, dims))
        self.second = np.zeros((phones, mixtures, dims))

    def add(self, x: NDArray[np.float32], phones: NDArray[np.int32], model: Mixtures | None) -> None:
        """Frames (T, D) with their phones (T,); shared out over the components of `model` by posterior."""
        exact = x.astype(np.float64)
        if model is None:
            shares = np.ones((x.shape[0], 1))
        else:
            parts = model.component_scores(x)[np.arange(x.shape[0]), phones].astype(np.float64)
            shares = np.exp(parts - parts.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
        for phone in np.unique(phones):
            own = phones == phone
            gamma = shares[own].T
            self.occupancy[phone] += gamma.sum(axis=1)
            self.first[phone] += gamma @ exact[own]
            self.second[phone] += gamma @ np.square(exact[own])

    def estimate(self) -> Mixtures:
        """Maximum likelihood; components with few frames take the moments of all phones together."""
        everywhere = self.occupancy.sum()
        mean = self.first.sum((0, 1)) / everywhere
        variance = self.second.sum((0, 1)) / everywhere - np.square(mean)
        occupancy = self.occupancy[:, :, None]
        enough = occupancy >= MIN_OCCUPANCY
        safe = np.maximum(occupancy, 1.0)
        means = np.where(enough, self.first / safe, mean)
        variances = np.where(enough, self.second / safe - np.square(means), variance)
        weights = (self.occupancy + 1e-6) / (self.occupancy + 1e-6).sum(axis=1, keepdims=True)
        return Mixtures(weights, means, np.maximum(variances, VARIANCE_FLOOR * variance))
