"""Synchronous trainers of N workers as matrices of N rows, for experiments at the speed of their gradients.

The steps are those of `megahour.sync`, the codec is the trainer's own; what is spared is threads that take turns.
`gtc_convergence.py` checks at the start of every run that real synchronisers make the same weights, bit for bit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from megahour.sync.compress.codec import decode, encode, exact_threshold, new_residual, sent
from megahour.sync.compress.threshold import Schedule, estimate_threshold


class StackedDense:
    """Σ_i g_i / N of clipped gradients, in the order of ranks."""

    def __init__(self, clip_norm: float) -> None:
        self._clip_norm = clip_norm

    def mean(self, gradients: Tensor) -> Tensor:
        """(N, D) → (D,)."""
        total = torch.zeros_like(gradients[0])
        for gradient, scale in zip(gradients, scales(gradients, self._clip_norm), strict=True):
            total += gradient * scale
        return total

    def metrics(self) -> dict[str, float]:
        """Of the last step."""
        return {}


class StackedGtc:
    """`sync.gtc` of N workers without nodes, whose model is one section of a message."""

    def __init__(self, workers: int, elements: int, clip_norm: float, schedule: Schedule, capacity: float) -> None:
        self._clip_norm, self._schedule, self._workers = clip_norm, schedule, workers
        self._residuals = new_residual(workers * elements).view(workers, elements)
        self._limit = self._room = math.ceil(capacity * elements)
        self._starts = [0] * workers
        self._last: dict[str, float] = {}

    def mean(self, gradients: Tensor) -> Tensor:
        """(N, D) → (D,), what the optimiser sees; the gradients are overwritten."""
        workers, elements = gradients.shape
        factors = scales(gradients, self._clip_norm)

        def estimate(density: float) -> float:
            found = [s * estimate_threshold(g, density) for s, g in zip(factors, gradients, strict=True)]
            return float(torch.tensor(found, dtype=torch.float64).sum())

        threshold = self._schedule.now(estimate)
        v = exact_threshold(threshold / workers)
        messages = torch.zeros(workers, 1 + self._room, dtype=torch.int32)
        for i, (gradient, scale) in enumerate(zip(gradients, factors, strict=True)):
            made = encode(gradient, self._residuals[i], v, messages[i], scale=scale, start=self._starts[i])
            self._starts[i] = made.start
        total = torch.zeros(elements)
        decode(messages, v, total)
        beyond = int(messages[:, 0].sum()) / (workers * elements)
        density = sum(sent(messages)) / (workers * elements)
        room = messages.shape[1] / elements
        self._last = {"threshold": threshold, "density": density, "beyond": beyond, "room": room}
        self._schedule.step(beyond)
        self._room = min(self._limit, max(1024, math.ceil(1.25 * int(messages[:, 0].max()))))
        return total

    def metrics(self) -> dict[str, float]:
        """Of the last step, as those of `Gtc`."""
        return self._last


def scales(gradients: Tensor, clip_norm: float) -> list[float]:
    """Each worker's share of the mean times its factor of clipping."""
    norms = [float(torch.linalg.vector_norm(gradient)) for gradient in gradients]
    return [(1 / len(norms)) * min(1.0, clip_norm / (norm + 1e-6)) for norm in norms]
