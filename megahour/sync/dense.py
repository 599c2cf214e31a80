"""Synchronous SGD: every step, the mean over workers of the whole gradient. What all other trainers are measured by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from megahour.core.errors import ConfigError
from megahour.sync import replicas
from megahour.sync.base import (
    agree,
    check_clip_norm,
    check_optimiser,
    check_shared,
    check_weight,
    default_group,
    end_together,
    own_state,
    step_alone,
    unscale,
    update,
)
from megahour.sync.buckets import BUCKET_BYTES, Buckets
from megahour.sync.flat import broadcast_model, trainable
from megahour.sync.group import Group

Clip = Literal["local", "mean"]


def dense(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    *,
    group: Group | None = None,
    clip_norm: float | None = None,
    clip: Clip = "local",
    backwards: int | None = None,
    bucket_bytes: int = BUCKET_BYTES,
) -> Dense:
    """Mean gradients g = Σ w_i g_i / Σ w_i, and the optimiser's step with them on all workers: 2 D fp32 values sent.

    A worker alone takes the plain loop's steps, bit for bit. With several, a parameter that had no gradient has one of
    zeros, so that weight decay and momentum act on it.

    Parameters
    ----------
    model, optimiser: any; the weights of all workers become those of rank 0.
    group: the workers; None: torch.distributed's default group, or one worker where it is not initialised.
    clip_norm: largest L2 norm of a gradient.
    clip: which gradient that is: each worker's own, before it is sent, or the mean of all.
    backwards: how many backward calls a step has, where it is the same number on all workers and in all steps: sums of
        the last layers then travel while the last call computes the first. It does not go with clipping each worker's
        own, whose norm is known too late, nor with weights other than 1 and 0. None: any number; sums travel in `step`.
    bucket_bytes: of one message, about.

    A lost worker raises `WorkerLostError` on all others before they change the weights.
    """
    check_clip_norm(clip_norm)
    check_optimiser(optimiser)
    if clip not in ("local", "mean"):
        raise ConfigError(f"clip {clip!r}", remedy='give "local" or "mean"')
    if backwards is not None and (backwards < 1 or (clip_norm is not None and clip == "local")):
        raise ConfigError(
            f"backwards={backwards} with clip_norm={clip_norm} of the {clip} gradient",
            remedy='give backwards ≥ 1 and clip="mean", or backwards=None',
        )
    return Dense(model, optimiser, default_group(group), clip_norm, clip, backwards, bucket_bytes)


class Dense:
    """`Synchroniser` made by `dense`. `metrics`: `gradient_norm` before clipping, where it was needed."""

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        group: Group,
        clip_norm: float | None,
        clip: Clip,
        backwards: int | None,
        bucket_bytes: int,
    ) -> None:
        broadcast_model(model, group)
        self.metrics: dict[str, float] = {}
        self._model, self._optimiser, self._group = model, optimiser, group
        self._clip_norm, self._clip_mean, self._early = clip_norm, clip == "mean", backwards is not None
        self._parameters = trainable(model)
        self._buckets = Buckets(self._parameters, group, backwards, bucket_bytes) if group.size > 1 else None

    def step(self, *, weight: float = 1.0, scaler: GradScaler | None = None) -> None:
        """One step of all workers with Σ w_i g_i / Σ w_i; nothing happens where no worker has weight.

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
        scale, finite = 1.0, True
        if weight and (scaler is not None or (self._clip_norm is not None and not self._clip_mean)):
            norm = float(nn.utils.get_total_norm([p.grad for p in self._parameters if p.grad is not None]))
            self.metrics["gradient_norm"] = norm
            finite = math.isfinite(norm)
            if self._clip_norm is not None and not self._clip_mean and finite:
                scale = min(1.0, self._clip_norm / (norm + 1e-6))
        agreed = agree(self._group, weight, finite or scaler is None)
        if not agreed.total:
            return
        if agreed.finite:
            buckets.send(scale * agreed.share)
            buckets.receive(1.0)
            if self._clip_mean and self._clip_norm is not None:
                self._clip()
        update(self._optimiser, scaler, agreed.finite)

    def _step_early(self, buckets: Buckets, weight: float, scaler: GradScaler | None) -> None:
        """Buckets left during backward, of scaled gradients where there is a scaler: an infinity reaches all."""
        if weight not in (0.0, 1.0) or (not weight and buckets.begun):
            raise ConfigError(
                f"weight {weight} of a gradient that has been sent with weight 1",
                remedy="make the trainer with backwards=None",
            )
        buckets.send(weight)
        total = agree(self._group, weight).total
        buckets.receive(1.0 / total if total else 1.0)
        if total:
            step_alone(self._parameters, self._optimiser, self._clip_norm, scaler, self.metrics)

    def _clip(self) -> None:
        norm = nn.utils.clip_grad_norm_(self._parameters, self._clip_norm or math.inf)
        self.metrics["gradient_norm"] = float(norm)

    def finish(self) -> None:
        """Averages floating-point buffers; the weights are the same on all workers after each step. Collective."""
        end_together(self._group)
        replicas.average_buffers(self._model, self._group)
        if self._buckets is not None:
            self._buckets.close()

    def state(self) -> dict[str, Tensor]:
        """Empty: what the model and the optimiser hold is all."""
        return {}

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Nothing is to be done, whatever the number of workers was. ConfigError: it is another trainer's state."""
        own_state("dense", states, self._group.rank, ())
