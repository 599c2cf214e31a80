"""Gradient threshold compression: synchronous SGD that sends a thousandth of the gradient.

    N. Ström, "Scalable distributed DNN training using commodity GPU cloud computing", Interspeech 2015;
    S. H. K. Parthasarathi et al., "Realizing petabyte scale acoustic modeling", 2019, section VI.A (synchronous).

With worker i's clipped gradient g_i, its share s_i = w_i / Σ w of the mean, its residual r_i and threshold τ, a step is

    r_i ← r_i + s_i·g_i
    q_i = ±v where |r_i| > v = τ/N, else 0        (element by element; v of eight significant bits)
    r_i ← r_i - q_i
    G   = Σ_i q_i                                 one all-gather of words of index and sign
    W   ← optimiser(W, G)

**Mean, not sum.** Ström adds all ±τ to the weights, times the learning rate. Here a step sees the mean over workers, as
with dense averaging, so that a learning rate means the same with any trainer and number of workers; τ is still in units
of one worker's gradient. Ström's update is that with N times the learning rate.

**Clipping** is of the local gradient, before it meets the residual: what waits was clipped once, and what arrives is
never cut. **Momentum**, weight decay and whatever else the optimiser does see G, as if it were the gradient, on all
workers with the same bits.

Σ over steps of G plus Σ_i r_i is the sum of all mean gradients: see `codec` for how exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from megahour.sync.compress.codec import BadGradientError, new_residual
from megahour.sync.compress.threshold import estimate_threshold, schedule
from megahour.sync.compress.threshold_sum import Sent, ThresholdSum
from megahour.sync.group.base import Group
from megahour.sync.params import GtcOptions
from megahour.sync.trainers.base import (
    agree,
    check_shared,
    check_weight,
    end_together,
    own_state,
    step_alone,
    unscale,
    update,
)
from megahour.sync.trainers.flat import Flat, broadcast_model
from megahour.sync.trainers.replicas import end_with_one_model

_NORM_EVERY_STEPS = 100  # a sweep over the residual costs half of a step's encoding


class Gtc:
    """Gradient threshold compression of any model and optimiser; see the module.

    A worker alone takes the plain loop's steps, bit for bit. A lost worker raises `WorkerLostError` on all others; go
    on from a checkpoint with any number of workers.

    `metrics` of the last step: `gradient_norm` before clipping, `threshold` τ, `density` and `beyond` (shares of a
    sender's elements that were sent, and that were beyond τ; they differ where messages were full), `room` (words on
    the wire, a share of the elements) and, of every hundredth step, `residual_norm`.
    """

    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer, group: Group, options: GtcOptions) -> None:
        broadcast_model(model, group)
        self._model, self._optimiser, self._group = model, optimiser, group
        self._clip_norm, self._threshold = options.clip_norm, schedule(options)
        self._flat = Flat(model)
        self._gradient = new_residual(self._flat.numel, self._flat.device)
        self._sum = ThresholdSum(self._flat.numel, group, options, device=self._flat.device)
        self._steps = 0
        self.metrics: dict[str, float | Tensor] = {}

    @torch.no_grad()
    def step(self, *, weight: float = 1.0, scaler: GradScaler | None = None) -> None:
        """One step of all workers; see `Synchroniser.step` and the module's equations.

        A worker with `weight` 0 still sends what waits in its residual. Where no worker has weight nothing happens.
        An infinity or NaN in any worker's gradient leaves the step out on all with a scaler, and raises
        `BadGradientError` on all without, before it could get into a residual.
        """
        if self._group.size == 1 and not self._sum.owes:
            self._step_alone(weight, scaler)
            return
        check_shared(self._flat.parameters, self._optimiser)
        unscale(self._optimiser, scaler)
        gradient = self._flat.gradient(self._gradient)
        norm = float(torch.linalg.vector_norm(gradient))
        agreed = agree(self._group, weight, math.isfinite(norm) or weight == 0)
        if not agreed.finite:
            self._leave_out(scaler)
        elif agreed.total:
            scale = agreed.share * self._clip(norm)
            if not agreed.share:
                gradient.zero_()  # it may be of anything: 0·∞ is no 0
                scale = 0.0
            threshold = self._threshold.now(partial(self._estimate, gradient, scale))
            sent = self._sum.sum_(gradient, threshold / self._sum.senders, scale)
            self._threshold.step(sent.beyond if self._sum.senders > 1 else None)
            self._flat.set_gradient(gradient)
            update(self._optimiser, scaler)
            self.metrics["gradient_norm"] = norm
            self._measure(threshold, sent)

    def _step_alone(self, weight: float, scaler: GradScaler | None) -> None:
        check_weight(weight)
        if weight:
            step_alone(self._flat.parameters, self._optimiser, self._clip_norm, scaler, self.metrics)
            self._threshold.step(None)
            self._measure(0.0, Sent(1.0, 1.0, 1.0))

    def _leave_out(self, scaler: GradScaler | None) -> None:
        if scaler is None or not scaler.is_enabled():
            raise BadGradientError(
                "infinity or NaN in a worker's gradient", remedy="go back to a checkpoint; lower the learning rate"
            )
        update(self._optimiser, scaler, finite=False)

    def _measure(self, threshold: float, sent: Sent) -> None:
        self.metrics |= {"threshold": threshold, "density": sent.density, "beyond": sent.beyond, "room": sent.room}
        if self._steps % _NORM_EVERY_STEPS == 0:
            self.metrics["residual_norm"] = self._sum.residual_norm()
        self._steps += 1

    def _clip(self, norm: float) -> float:
        """The factor of `torch.nn.utils.clip_grad_norm_`."""
        return 1.0 if self._clip_norm is None else min(1.0, self._clip_norm / (norm + 1e-6))

    def _estimate(self, gradient: Tensor, scale: float, density: float) -> float:
        """The mean over workers of what their gradients call for. A collective call."""
        own = torch.tensor(scale * estimate_threshold(gradient, density), dtype=torch.float64)
        return float(self._group.all_gather(own).wait().sum())

    def finish(self) -> None:
        """Averages the models' buffers; weights are the same on all workers after each step. A collective call.

        What waits in residuals, some τ an element at most, is left out of the model.
        Raises MegahourError on all workers where one has another model.
        """
        end_together(self._group)
        end_with_one_model(self._model, self._group)

    def state(self) -> dict[str, Tensor]:
        """Copies: `threshold` (2,) with the steps and τ, and the residual with its lane and messages' rooms."""
        return {"threshold": self._threshold.state(), "steps": torch.tensor(self._steps), **self._sum.state()}

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Goes on from all workers' states, with the same bits where workers are as many as before.

        Otherwise residuals are handed over, their sum unrounded: node a's go to node a mod the number of nodes now, new
        nodes begin with zeros, and the first step adds what a worker got in float32. As v = τ/N is what changes, not τ,
        no other value needs scaling.
        """
        own = own_state("gtc", states, self._group.rank, ("threshold", "steps", "rows", "lane", "starts", "rooms"))
        self._threshold.restore(own["threshold"])
        self._steps = int(own["steps"])
        self._sum.restore(states)
