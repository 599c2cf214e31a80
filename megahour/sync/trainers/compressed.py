"""Base class of both forms of threshold compression: the order of a step, metrics, and a warning for short runs."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from megahour.sync.compress.codec import BadGradientError, new_residual
from megahour.sync.compress.senders import Senders
from megahour.sync.compress.threshold_sum import Sent
from megahour.sync.group.base import Group
from megahour.sync.params import GtcOptions
from megahour.sync.trainers.base import agree, check_shared, check_weight, end_together, step_alone, unscale, update
from megahour.sync.trainers.flat import Flat, broadcast_model
from megahour.sync.trainers.replicas import end_with_one_model

LOG = logging.getLogger(__name__)
_SWEEP_EVERY_STEPS = 100  # a sweep over the residual costs half of a step's encoding
_LEAST_TURNS = 10  # times that an element should be sent in a run
_LONGEST_WAIT = 0.25  # of a run


class Compressed(ABC):
    """Workers with one model that send a part of their gradient or update, and keep the unsent part in a residual.

    A single worker takes the plain loop's steps, bit for bit. A lost worker raises `WorkerLostError` on all others;
    resume from a checkpoint with any number of workers.
    """

    _sum: Senders

    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer, group: Group, options: GtcOptions) -> None:
        broadcast_model(model, group)
        self._model, self._optimiser, self.group = model, optimiser, group
        self._clip_norm = options.clip_norm
        self._flat = Flat(model)
        self._vector = new_residual(self._flat.numel, self._flat.device)
        self._steps = 0
        self._total_steps, self._warned = options.total_steps, False
        self.metrics: dict[str, float | Tensor] = {}
        turns = (options.total_steps or math.inf) * (options.density or math.inf)
        if turns < _LEAST_TURNS and group.size > options.node_size and group.rank == 0:
            self._warn(f"{options.total_steps} steps at density {options.density:g} send an element {turns:.2g} times")

    @torch.no_grad()
    def step(self, *, weight: float = 1.0, scaler: GradScaler | None = None) -> None:
        """One step of all workers; see `Synchroniser.step` and the module's equations.

        A worker with `weight` 0 still sends from its residual. If all weights are 0, the step does nothing. An infinity
        or NaN in any worker's gradient never reaches a residual: with a scaler all workers skip the step, without one
        all raise `BadGradientError`.
        """
        if self.group.size == 1 and not self._sum.owes:
            self._step_alone(weight, scaler)
            return
        check_shared(self._flat.parameters, self._optimiser)
        unscale(self._optimiser, scaler)
        norm = self._norm()
        agreed = agree(self.group, weight, math.isfinite(norm) or weight == 0)
        if not agreed.finite:
            self._leave_out(scaler)
        elif agreed.total:
            sent = self._exchange(agreed.share, norm, scaler)
            self.metrics["gradient_norm"] = norm
            self._measure(sent)

    @abstractmethod
    def _norm(self) -> float:
        """The norm of this worker's gradient."""

    @abstractmethod
    def _exchange(self, share: float, norm: float, scaler: GradScaler | None) -> Sent:
        """Send, receive and update the weights, after all workers have agreed. share: w_i / Σ w."""

    @abstractmethod
    def _alone(self) -> None:
        """Record a step of the plain loop."""

    def _step_alone(self, weight: float, scaler: GradScaler | None) -> None:
        check_weight(weight)
        if weight:
            step_alone(self._flat.parameters, self._optimiser, self._clip_norm, scaler, self.metrics)
            self._alone()
            self._measure(Sent(1.0, 1.0, 1.0))

    def _leave_out(self, scaler: GradScaler | None) -> None:
        if scaler is None or not scaler.is_enabled():
            raise BadGradientError(
                "infinity or NaN in a worker's gradient", remedy="go back to a checkpoint; lower the learning rate"
            )
        update(self._optimiser, scaler, finite=False)

    def _measure(self, sent: Sent) -> None:
        self.metrics |= {"density": sent.density, "room": sent.room}
        if self._steps % _SWEEP_EVERY_STEPS == 0:
            backlog = self._sum.backlog()
            self.metrics |= {"residual_norm": self._sum.residual_norm(), "backlog": backlog}
            if not self._warned and self._total_steps and backlog > _LONGEST_WAIT * self._total_steps:
                self._warned = True
                self._warn(f"{backlog:.0f} of the run's {self._total_steps} steps are needed to send what waits")
        self._steps += 1

    def _warn(self, what: str) -> None:
        LOG.warning(
            "gtc: %s, so that much of it comes late or never: raise density (lower threshold), or take form=update, "
            "a longer run, or dense",
            what,
        )

    def _clip(self, norm: float) -> float:
        """The factor of `torch.nn.utils.clip_grad_norm_`."""
        return 1.0 if self._clip_norm is None else min(1.0, self._clip_norm / (norm + 1e-6))

    def finish(self) -> None:
        """Average the models' buffers; weights are equal on all workers after each step anyway. A collective call.

        Residuals are discarded. Raises MegahourError on all workers if one of them has another model.
        """
        end_together(self.group)
        end_with_one_model(self._model, self.group)
