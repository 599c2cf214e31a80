"""Synchronous SGD: in every step, the mean over workers of the whole gradient. The baseline of all other trainers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from megahour.core.errors import ConfigError
from megahour.sync.group.base import Group
from megahour.sync.params import DenseOptions
from megahour.sync.trainers import replicas
from megahour.sync.trainers.base import (
    agree,
    check_shared,
    check_weight,
    end_together,
    is_finite,
    own_state,
    reading,
    step_alone,
    unscale,
    update,
)
from megahour.sync.trainers.buckets import Buckets
from megahour.sync.trainers.flat import broadcast_model, gradient_norm, trainable


class Dense:
    """All workers take the optimiser's step with the mean gradient g = Σ w_i g_i / Σ w_i.

    A single worker takes the plain loop's steps, bit for bit. With several, a parameter without a gradient gets one of
    zeros, so that weight decay and momentum act on it. `metrics`: `gradient_norm` before clipping, if it was needed. If
    a worker is lost, all others raise `WorkerLostError` before they change the weights.
    """

    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer, group: Group, options: DenseOptions) -> None:
        broadcast_model(model, group)
        self.metrics: dict[str, float | Tensor] = {}
        self._model, self._optimiser, self.group = model, optimiser, group
        self._clip_norm, self._clip_mean = options.clip_norm, options.clip == "mean"
        self._early = options.backwards is not None
        self._parameters = trainable(model)
        self._buckets: Buckets | None = None
        if group.size > 1:
            self._buckets = Buckets(self._parameters, group, options.backwards, options.bucket_bytes)

    def step(self, *, weight: float = 1.0, scaler: GradScaler | None = None) -> None:
        """One step of all workers with Σ w_i g_i / Σ w_i; does nothing if all weights are 0.

        Raises ConfigError for a weight that `backwards` does not allow, `WorkerLostError` with unchanged weights.
        """
        check_weight(weight)
        if self._buckets is None:
            if weight:
                step_alone(self._parameters, self._optimiser, self._clip_norm, scaler, self.metrics)
            return
        if self._early:
            self._step_early(self._buckets, weight, scaler)
        else:
            self._step(self._buckets, weight, scaler)
        self._buckets.rest()

    def _step(self, buckets: Buckets, weight: float, scaler: GradScaler | None) -> None:
        check_shared(self._parameters, self._optimiser)
        unscale(self._optimiser, scaler)
        scale: float | Tensor = 1.0
        finite: bool | Tensor = True
        if weight and (scaler is not None or (self._clip_norm is not None and not self._clip_mean)):
            norm = gradient_norm(self._parameters)
            self.metrics["gradient_norm"] = read = reading(norm)
            finite = is_finite(norm)
            if self._clip_norm is not None and not self._clip_mean:
                scale = _scale(self._clip_norm, read)
        if isinstance(finite, Tensor):  # leave it on the device: an infinity reaches all workers through the sum
            finite = True
        agreed = agree(self.group, weight, finite or scaler is None)
        if not agreed.total:
            return
        if agreed.finite:
            buckets.send(scale * agreed.share)
            buckets.receive(1.0)
            if self._clip_mean and self._clip_norm is not None:
                self._clip()
        update(self._optimiser, scaler, self._all_finite(scaler) if agreed.finite else False)

    def _all_finite(self, scaler: GradScaler | None) -> bool | Tensor:
        """Whether the sum is finite, on an accelerator; on the CPU the workers have already agreed on it."""
        if scaler is None or self._parameters[0].device.type == "cpu":
            return True
        return is_finite(gradient_norm(self._parameters))

    def _step_early(self, buckets: Buckets, weight: float, scaler: GradScaler | None) -> None:
        """The step if backward sends buckets. With a scaler they hold scaled gradients; all workers see an infinity."""
        if weight not in (0.0, 1.0) or (not weight and buckets.begun):
            raise ConfigError(
                f"weight {weight} of a gradient that has been sent with weight 1",
                remedy="make the trainer with backwards=None",
            )
        buckets.send(weight)
        total = agree(self.group, weight).total
        buckets.receive(1.0 / total if total else 1.0)
        if total:
            step_alone(self._parameters, self._optimiser, self._clip_norm, scaler, self.metrics)

    def _clip(self) -> None:
        norm = nn.utils.clip_grad_norm_(self._parameters, self._clip_norm or math.inf)
        self.metrics["gradient_norm"] = reading(norm)

    def finish(self) -> None:
        """Average floating-point buffers; the weights are equal on all workers after each step. A collective call.

        Raises MegahourError on all workers if one of them has another model.
        """
        end_together(self.group)
        replicas.end_with_one_model(self._model, self.group)
        if self._buckets is not None:
            self._buckets.close()

    def state(self) -> dict[str, Tensor]:
        """Empty: there is no state besides model and optimiser."""
        return {}

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Does nothing, for any number of workers. Raises ConfigError for another trainer's state."""
        own_state("dense", states, self.group.rank, ())

    def rejoin(self, own: Mapping[str, Tensor], peer: Mapping[str, Tensor] | None) -> None:
        """Does nothing; see `regrouping`."""


def _scale(clip_norm: float, norm: float | Tensor) -> float | Tensor:
    """min(1, c / (‖g‖ + 1e-6)). If the norm is not finite: 1 for a float, and 0 or NaN for a tensor."""
    if isinstance(norm, Tensor):
        return (clip_norm / (norm + 1e-6)).clamp(max=1.0)
    return min(1.0, clip_norm / (norm + 1e-6)) if math.isfinite(norm) else 1.0
