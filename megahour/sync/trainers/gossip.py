"""ADPSGD and H-ADPSGD: workers step on their own and average weights with neighbours on a ring, asynchronously.

Lian et al., "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018; on a ring and for speech
Zhang et al., arXiv 1904.04956; with synchronous nodes as super-learners Zhang et al., arXiv 1907.05701. `gossip_ring`
explains the mixing, why it conserves the average and why it cannot deadlock.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from megahour.core.errors import ConfigError
from megahour.sync.group.base import Group, WorkerLostError
from megahour.sync.params import GossipOptions
from megahour.sync.trainers import base, replicas
from megahour.sync.trainers.base import Agreement
from megahour.sync.trainers.flat import Flat, broadcast_model
from megahour.sync.trainers.gossip_end import Ending
from megahour.sync.trainers.gossip_ring import Forking, Ring

LOG = logging.getLogger(__name__)


class Gossip:
    """Workers on a ring; none waits for another's gradient. The optimiser steps locally.

    A lost worker is named in a warning and skipped; the others continue on a smaller ring. With processes, the group
    needs a CPU backend ("cpu:gloo,cuda:nccl", torch's default), through which weights are exchanged.

    Within a node a lost worker has the same effect as in synchronous training: all the node's workers raise
    `WorkerLostError`, and the ring skips the node.
    """

    def __init__(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, group: Group, options: GossipOptions
    ) -> None:
        node_size = options.node_size
        if group.size % node_size:
            raise ConfigError(f"{group.size} workers in nodes of {node_size}", remedy="all nodes have the same size")
        self.model, self.optimiser, self.group, self.options = model, optimiser, group, options
        self.metrics: dict[str, float | Tensor] = {}
        broadcast_model(model, group)
        self.flat = Flat(model)
        self.weights = self.flat.weights()
        self._exact = all(p.dtype == torch.float32 for p in self.flat.parameters)
        leaders = range(0, group.size, node_size)
        nodes = [range(first, first + node_size) for first in leaders]
        self.node = group.split(nodes) if node_size > 1 else None
        self._mixes = len(nodes) > 1
        self._gradient, self._sent = (self.flat.empty() if self.node else torch.empty(0) for _ in range(2))
        between = group.split([leaders]) if node_size > 1 else group
        self.ring: Ring | None = None
        self._ending: Ending | None = None
        if between is not None and between.size > 1:
            names = [f"rank {first}" for first in leaders]
            forking = cast(Forking, between)
            ledger = forking.ledger()
            self._ending = Ending(forking, ledger, names)
            self.ring = Ring(forking, self.weights, options.max_staleness, names, ledger)
        self._steps = self._begun = 0
        self._mixed = 0  # number of mixings that the model's weights include

    def step(self, *, weight: float = 1.0, scaler: GradScaler | None = None) -> None:
        """One optimiser step of this worker or node, and a mixing before or after it, depending on the option `order`.

        With `weight` 0 it mixes without an optimiser step. Within a node, weights have the meaning that `Synchroniser`
        gives them; all nodes count equally. With a scaler, the node skips a step with an infinity or NaN. Weights that
        are not finite are not mixed.

        Raises
        ------
        WorkerLostError: a worker of this node is lost. A lost neighbour on the ring only causes a warning.
        """
        base.check_weight(weight)
        self._steps += 1
        if self.ring is None and self.node is None:
            self._step_alone(weight, scaler)
            return
        agreed = self._agree(weight, scaler)
        if self.ring is None:
            self._update(agreed, scaler)
        else:
            self._step_and_mix(self.ring, agreed, scaler)
        self._spread()

    def finish(self) -> None:
        """Set `model` to the mean of all nodes' weights and buffers. A collective call.

        If workers are lost, the survivors all get the mean over survivors.

        Raises
        ------
        WorkerLostError: this worker cannot verify that it has the same model as the others, or came too late (see
            `gossip_end`); or a worker of its node is lost.
        """
        buffers = replicas.buffers_of(self.model)
        if self.node is not None:
            buffers = self.node.all_reduce(buffers.div_(self.node.size)).wait()
        if self.ring is not None and self._ending is not None:
            self.ring.close()
            with self.ring.lock:  # orders what follows after the last mixing, also on a GPU
                pass
            weights, buffers = self._ending.mean([self.weights, buffers], self.ring.counts.lost)
            self.weights.copy_(weights)
            self._mixed = -1
        self._spread()
        if self.node is not None and self._mixes:
            self.node.broadcast(buffers, 0)
        replicas.set_buffers(self.model, buffers)

    def state(self) -> dict[str, Tensor]:
        """This worker's weights (D,) in fp32, and its number of steps. A collective call.

        All workers synchronise first, so that no mixing is half done and the states add up to the sum of all weights.
        If workers are lost, the state is taken without synchronising.
        """
        if self.ring is None and self.node is None:
            self.flat.weights(self.weights)
        if self.ring is not None:
            self.ring.wait()
        self._meet()
        if self.ring is not None:
            self.ring.settle()
        self._spread()
        state = {"weights": self.weights.clone(), "steps": torch.tensor([self._steps])}
        self._meet()
        return state

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Restore this worker's weights or, if the number of workers has changed, the mean of `states`.

        A collective call, before the first step, so that no worker mixes with weights that are not restored yet.
        """
        own = base.own_state("gossip", states, self.group.rank, ("weights", "steps"))
        self.flat.views(own["weights"])  # raises if they are of another model
        self._steps = self._begun = int(own["steps"])
        if len(states) == self.group.size:
            self.weights.copy_(own["weights"])
        else:
            total = torch.zeros_like(self.weights, dtype=torch.float64)
            for state in states:  # one at a time: all of them may not fit in memory
                total += state["weights"].to(total)
            self.weights.copy_(total / len(states))
        self.flat.set_weights(self.weights)
        self._meet()

    def _step_and_mix(self, ring: Ring, agreed: Agreement, scaler: GradScaler | None) -> None:
        ring.check()
        if not ring.asking() or self._steps - self._begun >= self.options.max_lag:
            ring.wait()
        with ring.lock:
            self.metrics["staleness"] = float(ring.staleness)
            self._update(agreed, scaler)
        if self._steps % self.options.every == 0 and not ring.asking():
            ring.ask()
            self._begun = self._steps
        if self.options.order == "atc":
            ring.wait()
        counts = ring.counts
        self.metrics |= {
            "neighbour_distance": counts.distance,
            "mixings": float(counts.mixed),
            "refused_mixings": float(counts.refused),
            "lost_neighbours": float(len(counts.lost)),
        }

    def _agree(self, weight: float, scaler: GradScaler | None) -> Agreement:
        """Clip the gradient and replace it by the node's mean. Without nodes there is nothing to agree on."""
        if self.node is None:
            return Agreement(1.0, weight, True)
        base.check_shared(self.flat.parameters, self.optimiser)
        base.unscale(self.optimiser, scaler)
        gradient = self.flat.gradient(self._gradient) if weight else self._gradient.zero_()
        norm = self.metrics["gradient_norm"] = base.clip_gradient(gradient, self.options.clip_norm)
        agreed = base.agree(self.node, weight, norm < float("inf"))
        if agreed.total:
            self.node.all_reduce(gradient.mul_(agreed.share)).wait()
            self.flat.set_gradient(gradient)
        return agreed

    def _update(self, agreed: Agreement, scaler: GradScaler | None) -> None:
        """The optimiser's step, starting from the mixed weights. With a ring, the caller holds its lock."""
        if not agreed.total:
            return
        self._read()
        before = None if self._exact else self.flat.weights()
        if self.node is None:
            self._step_alone(agreed.total, scaler)
        else:
            base.update(self.optimiser, scaler, agreed.finite)
        if before is None:
            self.flat.weights(self.weights)
        else:  # 16-bit weights would lose small mixings, so only add the optimiser's change
            self.weights.add_(self.flat.weights().sub_(before))

    def _step_alone(self, weight: float, scaler: GradScaler | None) -> None:
        if weight:
            base.step_alone(self.flat.parameters, self.optimiser, self.options.clip_norm, scaler, self.metrics)

    def _read(self) -> None:
        """Copy the weights into the model if they have been mixed since the last copy."""
        mixed = 0 if self.ring is None else self.ring.counts.mixed
        if mixed != self._mixed or not self._exact:
            self.flat.set_weights(self.weights)
            self._mixed = mixed

    def _spread(self) -> None:
        """Copy the mixed weights into the model on all workers of the node, for the next gradient."""
        if self.ring is not None:
            with self.ring.lock:
                self.ring.staleness = 0
                self._read()
                if self.node is not None:
                    self._sent.copy_(self.weights)
        if self.node is not None and self._mixes:
            self.node.broadcast(self._sent, 0)
            if self.ring is None:
                self.weights.copy_(self._sent)
                self.flat.set_weights(self._sent)

    def _meet(self) -> None:
        try:
            self.group.all_gather(torch.zeros(1)).wait()
        except WorkerLostError as error:
            LOG.warning("the state is taken without a meeting of all workers: %s", error.message)
