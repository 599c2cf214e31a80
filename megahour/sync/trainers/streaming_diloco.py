"""Streaming DiLoCo: workers average the model fragment by fragment while they continue training.

Douillard et al., "Streaming DiLoCo with overlapping communication: towards a distributed free lunch", 2025
(arXiv:2501.18512), algorithm 2. With P fragments, H steps between two exchanges of the same fragment, and an exchange
that takes τ steps, all workers send fragment p at steps t with (t - p H / P) mod H = 0, and use the received mean τ
steps later:

    W̄_p = mean over the workers of θ_p(t)
    B_p, from W̄_p by the block momentum of `block_momentum.Nesterov`
    θ_p(t + τ) ← α θ_p(t + τ) + (1 - α) B_p

So a slow network carries D / P values at a time and has τ steps to do so, whereas DiLoCo sends D values and waits.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from megahour.core.errors import ConfigError, MegahourError
from megahour.sync.group.base import Group, Work
from megahour.sync.params import StreamingDilocoOptions
from megahour.sync.trainers import base, replicas
from megahour.sync.trainers.block_momentum import Nesterov
from megahour.sync.trainers.flat import Flat, broadcast_model

LOG = logging.getLogger(__name__)


@dataclass
class FragmentOnWay:
    """A fragment being exchanged: `vector` receives the sum over the workers, for use at the end of step `due`."""

    fragment: int
    due: int
    vector: Tensor
    work: Work | None  # None once it has arrived

    def mean(self) -> Tensor:
        if self.work is not None:
            self.work.wait()
            self.work = None
        return self.vector


class StreamingDiloco:
    """Local steps; every `block_steps / fragments` steps, one fragment is replaced by the workers' filtered mean.

    With one fragment, no overlap and `mix` 0 it equals `diloco`, bit for bit. `finish` leaves the global model. A
    worker whose weights are not finite is named in a warning and restarts from the global model; its progress is
    discarded. A lost worker causes `WorkerLostError` when the next fragment is due.

    `metrics`: `gradient_norm` before clipping, if it was needed; `block_update_norm` of the last fragment received.
    """

    def __init__(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, group: Group, options: StreamingDilocoOptions
    ) -> None:
        self._model, self._optimiser, self.group, self._options = model, optimiser, group, options
        self.metrics: dict[str, float | Tensor] = {}
        broadcast_model(model, group)
        self._flat = Flat(model)
        parts, total = options.fragments, self._flat.numel
        if total < parts:
            raise ConfigError(f"{parts} fragments for a model of {total} weights", remedy="lower `fragments`")
        self._bounds = [slice(p * total // parts, (p + 1) * total // parts) for p in range(parts)]
        weights = self._flat.weights()
        self._filters = [Nesterov(weights[part]) for part in self._bounds]
        self._weights = [0.0] * parts  # for each fragment, sum of step weights since it was last sent
        self._steps = 0
        self._exchange: FragmentOnWay | None = None

    def step(self, *, weight: float = 1.0, scaler: GradScaler | None = None) -> None:
        """Take a local step, unless `weight` is 0; send a fragment when one is due, and use one that has arrived.

        With a scaler, only this worker skips a step with an infinity or NaN.
        """
        base.check_weight(weight)
        if weight:
            base.step_alone(self._flat.parameters, self._optimiser, self._options.clip_norm, scaler, self.metrics)
        self._steps += 1
        self._weights = [seen + weight for seen in self._weights]
        turn, rest = divmod(self._steps, self._options.block_steps // self._options.fragments)
        if rest == 0:
            self._send((turn - 1) % self._options.fragments)
        if self._exchange is not None and self._exchange.due == self._steps:
            self._use(self._options.mix)

    def finish(self) -> None:
        """Complete the pending exchange, share all fragments once more, and set `model` to the global model W, not B.

        Buffers become the workers' mean. A collective call. Raises MegahourError on all workers if one
        of them has another model.
        """
        base.end_together(self.group)
        if self._exchange is not None:
            self._use(self._options.mix)
        for fragment in range(len(self._bounds)):
            self._send(fragment)
            if self._exchange is not None:
                self._use(0.0)
        self._flat.set_weights(torch.cat([each.model for each in self._filters]))
        replicas.end_with_one_model(self._model, self.group)

    def state(self) -> dict[str, Tensor]:
        """Global model, its momentum and this worker's weights (D,), the pending fragment, and the position.

        Waits for the pending fragment to arrive.
        """
        exchange = self._exchange
        position = [self._steps, -1, 0] if exchange is None else [self._steps, exchange.fragment, exchange.due]
        return {
            "start": torch.cat([each.start for each in self._filters]),
            "memory": torch.cat([each.memory for each in self._filters]),
            "weights": self._flat.weights(),
            "under_way": torch.empty(0) if exchange is None else exchange.mean().clone(),
            "position": torch.tensor(position),
            "counted": torch.tensor(self._weights, dtype=torch.float64),
        }

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Resume from `states`, with the same bits as a run that was not interrupted.

        If the number of workers has changed, all resume from the mean of the old workers' models. The pending fragment
        is kept.
        """
        names = ("start", "memory", "weights", "under_way", "position", "counted")
        own = base.own_state("streaming_diloco", states, self.group.rank, names)
        self._flat.views(own["weights"])  # raises before anything is changed if they are of another model
        if own["counted"].numel() != len(self._bounds):
            raise ConfigError(
                f"a state of {own['counted'].numel()} fragments for {len(self._bounds)}",
                remedy="resume with the options that wrote the checkpoint",
            )
        device = self._flat.device
        for each, part in zip(self._filters, self._bounds, strict=True):
            each.start, each.memory = own["start"][part].to(device).clone(), own["memory"][part].to(device).clone()
        self._steps, fragment, due = own["position"].tolist()
        self._exchange = (
            None if fragment < 0 else FragmentOnWay(fragment, due, own["under_way"].to(device).clone(), None)
        )
        same = len(states) == self.group.size
        self._weights = (own["counted"] if same else _mean(states, "counted")).tolist()
        self._flat.set_weights((own["weights"] if same else _mean(states, "weights")).to(device))

    @torch.no_grad()
    def _send(self, fragment: int) -> None:
        """Begin to exchange a fragment, unless no worker has trained since it was last sent."""
        weights = self._flat.weights()
        finite = bool(weights.isfinite().all())
        if not finite:
            self._start_again()
        vector = weights[self._bounds[fragment]].clone()
        agreed = base.agree(self.group, self._weights[fragment] if finite else 0.0, finite)
        self._weights[fragment] = 0.0
        if agreed.total:
            vector = vector.mul_(agreed.share) if agreed.share else vector.zero_()
            due = self._steps + self._options.overlap_steps
            self._exchange = FragmentOnWay(fragment, due, vector, self.group.all_reduce(vector))
        elif not agreed.finite:
            raise MegahourError(
                f"no worker has finite weights after step {self._steps}",
                where="streaming_diloco",
                remedy="go back to a checkpoint with a lower learning rate, clip_norm or outer momentum",
            )

    def _start_again(self) -> None:
        """Replace weights that are not finite by the whole global model; one fragment of it would not be enough."""
        LOG.warning("rank %d: weights are not finite after step %d; left out", self.group.rank, self._steps)
        self._flat.set_weights(torch.cat([each.start for each in self._filters]))
        self._weights = [0.0] * len(self._weights)
        self._optimiser.state.clear()

    @torch.no_grad()
    def _use(self, mix: float) -> None:
        """Update a fragment of the global model and of this worker's weights with the received mean."""
        assert self._exchange is not None
        exchange, self._exchange = self._exchange, None
        filtered, part = self._filters[exchange.fragment], self._bounds[exchange.fragment]
        before = filtered.model.clone()
        filtered.advance(exchange.mean(), self._options.eta, self._options.eta, self._options.zeta)
        self.metrics["block_update_norm"] = float(torch.linalg.vector_norm(before.sub_(filtered.model)))
        weights = self._flat.weights()
        own = weights[part]
        own.copy_(filtered.start + mix * (own - filtered.start) if mix and own.isfinite().all() else filtered.start)
        self._flat.set_weights(weights)


def _mean(states: Sequence[Mapping[str, Tensor]], name: str) -> Tensor:
    return torch.stack([state[name] for state in states]).mean(0)
