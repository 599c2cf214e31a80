"""Local SGD: workers train alone, and every few steps average their weights.

S. U. Stich, "Local SGD converges fast and communicates little", ICLR 2019; with averaging
after every step at first, post-local SGD: T. Lin et al., "Don't use large mini-batches, use local SGD", ICLR 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from megahour.core.errors import MegahourError
from megahour.sync.group.base import Group
from megahour.sync.params import LocalSgdOptions
from megahour.sync.trainers import replicas
from megahour.sync.trainers.base import (
    agree,
    check_weight,
    end_together,
    own_state,
    step_alone,
)
from megahour.sync.trainers.flat import Flat, broadcast_model


class LocalSgd:
    """Local steps; after each period W ← Σ v_i W_i / Σ v_i, where v_i is the sum of worker i's weights in the period.

    A single worker takes the plain loop's steps, bit for bit. The optimiser steps locally and keeps its own state. A
    lost worker causes `WorkerLostError` when the next mean is due; the weights are then this worker's own.

    `metrics`: `gradient_norm` before clipping, if it was needed; `consensus_distance`, the L2 distance of this
    worker's weights from the last mean, just before it was taken.
    """

    def __init__(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, group: Group, options: LocalSgdOptions
    ) -> None:
        broadcast_model(model, group)
        self.metrics: dict[str, float | Tensor] = {}
        self._model, self._optimiser, self.group, self._options = model, optimiser, group, options
        self._flat = Flat(model)
        self._steps = self._local_steps = 0
        self._weight = 0.0
        self.deferred = False

    def step(self, *, weight: float = 1.0, scaler: GradScaler | None = None) -> None:
        """Take a local step, unless `weight` is 0, and the mean of all workers' weights when it is due.

        With a scaler, only this worker skips a step with an infinity or NaN.
        """
        check_weight(weight)
        if weight:
            step_alone(self._flat.parameters, self._optimiser, self._options.clip_norm, scaler, self.metrics)
        self._steps += 1
        self._local_steps += 1
        self._weight += weight
        if self.due and not self.deferred:
            self.meet()

    @property
    def due(self) -> bool:
        """Whether the period's steps are done but the mean has not been taken."""
        local = self._local_steps
        return local >= self._options.period_steps or bool(local and self._steps <= self._options.warmup_steps)

    def meet(self) -> None:
        """Take the mean of the workers' weights if they have trained since the last one. A collective call."""
        if self._local_steps and self.group.size > 1:
            self._average()
        self._weight, self._local_steps = 0.0, 0

    @torch.no_grad()
    def _average(self) -> None:
        own = self._flat.weights()
        agreed = agree(self.group, self._weight, bool(own.isfinite().all()))
        if not agreed.finite:
            raise MegahourError(
                f"a worker's weights are not finite after step {self._steps}",
                where=f"rank {self.group.rank}",
                remedy="go back to a checkpoint with a lower learning rate, or clip gradients",
            )
        if agreed.total:
            mean = self.group.all_reduce(own * agreed.share).wait()
            self.metrics["consensus_distance"] = float(torch.linalg.vector_norm(own.sub_(mean)))
            self._flat.set_weights(mean)

    def finish(self) -> None:
        """Take the mean of the weights trained since the last one, and of buffers. A collective call.

        Raises MegahourError on all workers if one of them has another model.
        """
        self.meet()
        end_together(self.group)
        replicas.end_with_one_model(self._model, self.group)

    def state(self) -> dict[str, Tensor]:
        """This worker's weights (D,) in fp32, their weight in the next mean, and its position in the period."""
        return {
            "weights": self._flat.weights(),
            "weight": torch.tensor([self._weight], dtype=torch.float64),
            "position": torch.tensor([self._steps, self._local_steps]),
        }

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Resume from this worker's own state, or, if the number of workers has changed, from the old workers' mean."""
        own = own_state("local_sgd", states, self.group.rank, ("weights", "weight", "position"))
        self._steps, self._local_steps = own["position"].tolist()
        if len(states) == self.group.size:
            self._weight = float(own["weight"])
            self._flat.set_weights(own["weights"].to(self._flat.device))
            return
        weights = [float(state["weight"]) for state in states]
        self._weight = sum(weights) / self.group.size
        shares = [weight / sum(weights) for weight in weights] if sum(weights) else [1 / len(states)] * len(states)
        mean = self._flat.zeros()
        for state, share in zip(states, shares, strict=True):
            mean.add_(state["weights"].to(mean), alpha=share)
        self._flat.set_weights(mean)

    def rejoin(self, own: Mapping[str, Tensor], peer: Mapping[str, Tensor] | None) -> None:
        """Take the shared state; a worker that takes a peer's has no part in the open period.

        See `regrouping`.
        """
        state = own if peer is None else {**peer, "weight": torch.zeros(1, dtype=torch.float64)}
        self.restore([state] * self.group.size)
