"""The threshold τ of gradient threshold compression over the steps of a training: fixed, or adapted to a density.

τ is in units of the gradient of one sender (a worker, or a node's mean). Small thresholds matter most in the first
steps, when gradients are large and point the same way: both kinds can warm up from denser messages.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from megahour.sync.params import GtcOptions

_GAIN = 0.05
_LARGEST_MOVE = 0.05  # of ln τ, a step: residuals remember some 1/density steps, so faster control would swing


class Schedule(ABC):
    """The threshold τ of each step. All workers make the same calls with the same values, so all have the same τ."""

    steps: int
    threshold: float

    @abstractmethod
    def now(self, estimate: Callable[[float], float]) -> float:
        """τ of this step. estimate: returns the τ that a share ρ of the gradients exceeds, for the first step."""

    def step(self, beyond: float | None) -> None:
        """End a step. beyond: share of the senders' elements beyond τ; None after dense averaging."""
        self.steps += 1

    def state(self) -> Tensor:
        """(2,) float64, for checkpoints: steps, τ."""
        return torch.tensor([self.steps, self.threshold], dtype=torch.float64)

    def restore(self, state: Tensor) -> None:
        """Resume the number of steps from `state()`; a given τ may have changed."""
        self.steps = int(state[0])


@dataclass
class GivenThreshold(Schedule):
    """τ_t = τ·f^(1 - t/T) in the first T steps, τ afterwards.

    Parameters
    ----------
    threshold: τ.
    warmup_steps: T; 0: none.
    warmup_from: f ≤ 1, the first step's share of τ.
    """

    threshold: float
    warmup_steps: int = 0
    warmup_from: float = 0.1
    steps: int = 0

    def now(self, estimate: Callable[[float], float]) -> float:
        """τ of this step."""
        return self.threshold * _warmup(self.steps, self.warmup_steps, self.warmup_from)


@dataclass
class TargetDensity(Schedule):
    """τ follows a target ρ for the share of elements that are beyond it.

    ln τ += 0.05·ln(seen / ρ), by at most 0.05 a step. In the first T steps the target is ρ·f^-(1 - t/T).

    Parameters
    ----------
    density: ρ.
    warmup_steps: T; 0: none.
    warmup_from: f ≤ 1, by which the first step's target is divided.
    """

    density: float
    warmup_steps: int = 0
    warmup_from: float = 0.1
    steps: int = 0
    threshold: float = 0.0

    def now(self, estimate: Callable[[float], float]) -> float:
        """τ of this step; in the first one the estimate, or 1 if all gradients are zero."""
        self.threshold = self.threshold or estimate(self.target()) or 1.0
        return self.threshold

    def target(self) -> float:
        """ρ of this step."""
        return min(0.5, self.density / _warmup(self.steps, self.warmup_steps, self.warmup_from))

    def step(self, beyond: float | None) -> None:
        """Moves τ towards the target."""
        if beyond is not None:
            wanted = _GAIN * math.log(max(beyond, 1e-12) / self.target())
            self.threshold *= math.exp(min(_LARGEST_MOVE, max(-_LARGEST_MOVE, wanted)))
            self.threshold = min(2.0**60, max(2.0**-60, self.threshold))
        super().step(beyond)

    def restore(self, state: Tensor) -> None:
        """Resume the number of steps and τ."""
        super().restore(state)
        self.threshold = float(state[1])


def schedule(options: GtcOptions) -> Schedule:
    """The schedule of the options' `threshold` or `density`."""
    if options.threshold is not None:
        return GivenThreshold(options.threshold, options.warmup_steps, options.warmup_from)
    assert options.density is not None
    return TargetDensity(options.density, options.warmup_steps, options.warmup_from)


def estimate_threshold(gradient: Tensor, density: float) -> float:
    """τ that the share `density` of a gradient (D,) exceeds, estimated from at most 65,536 evenly spaced elements."""
    sample = gradient[:: max(1, gradient.numel() // 2**16)].abs()
    within = max(1, min(sample.numel(), round(sample.numel() * (1 - density))))
    return float(sample.kthvalue(within).values)


def _warmup(step: int, steps: int, first: float) -> float:
    """A factor that rises from `first` to 1 at step `steps`."""
    return first ** (1 - step / steps) if step < steps else 1.0
