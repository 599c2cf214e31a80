"""BMUF: workers train alone for a block of steps; then their mean updates a global model with block momentum.

Chen and Huo, "Scalable training of deep learning machines by incremental block training with intra-block parallel
optimization and blockwise model-update filtering", ICASSP 2016. The arithmetic is in `block_momentum`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from megahour.core.errors import MegahourError
from megahour.sync.group.base import Group
from megahour.sync.params import BmufOptions
from megahour.sync.trainers import base, block_momentum, replicas
from megahour.sync.trainers.flat import Flat, broadcast_model

LOG = logging.getLogger(__name__)


def momentum(options: BmufOptions, workers: int, *, tell: bool) -> float:
    """η for `workers` workers: as given or from equation 6, capped. `tell`: log if the run is too short for it."""
    asked = options.eta
    if asked is None:
        asked = block_momentum.block_momentum(workers, options.zeta, options.constant)
    eta = min(asked, options.eta_cap) if isinstance(options.eta_cap, float) else asked
    if options.total_steps is None or workers == 1:
        return eta
    blocks = (options.total_steps - options.warmup_steps) / options.block_steps
    if options.eta_cap == "auto" and options.eta is None:
        eta = block_momentum.cap(blocks, asked)
        if eta < asked and tell:
            LOG.info("block momentum %.4f lowered to %.4f: the run has %.0f blocks", asked, eta, blocks)
    if tell:
        warn(eta, blocks)
    return eta


def warn(eta: float, blocks: float) -> None:
    """Log a warning if the momentum is too long for a run of `blocks` blocks."""
    ratio = block_momentum.memories(blocks, eta)
    if eta and ratio < block_momentum.MEMORIES * (1 - 1e-9):
        LOG.warning(
            "block momentum %.4f remembers %.0f blocks, and the run has %.0f: R = %.1f is below %.0f, where BMUF "
            "loses accuracy (a run of 128 workers lost 2.5 %% in the paper); lower it to %.4f or shorten blocks",
            *(eta, 1 / (1 - eta), blocks, ratio, block_momentum.MEMORIES, block_momentum.cap(blocks, eta)),
        )


class Bmuf:
    """Workers step alone and synchronise once per block.

    With one worker, ζ = C = 1 and the default form it equals the plain loop, bit for bit, for any optimiser; float64
    weights are rounded to fp32 at the end of a block. The optimiser steps locally with the learning rate of a single
    worker: η compensates for the number of workers. A lost worker causes `WorkerLostError` at the end of the block.
    """

    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer, group: Group, options: BmufOptions) -> None:
        self.model, self.optimiser, self.group, self.options = model, optimiser, group, options
        self.metrics: dict[str, float | Tensor] = {}
        broadcast_model(model, group)
        self.flat = Flat(model)
        self.filter: block_momentum.UpdateFilter = block_momentum.FORMS[options.form](self.flat.weights())
        self.eta = momentum(options, group.size, tell=group.rank == 0)
        self._steps = self._block_steps = self._blocks = 0
        self._weight = 0.0
        self.deferred = False

    def step(self, *, weight: float = 1.0, scaler: GradScaler | None = None) -> None:
        """Take a local step, and at the end of a block the filtered mean of all workers' models.

        `weight` 0 skips this worker's step; in the mean, workers are weighted by the sum of their weights in the block.
        With a scaler, only this worker skips a step with an infinity or NaN. A worker whose weights are not finite at
        the end of a block is left out of the mean, takes the others' model and is named in a warning.

        Raises
        ------
        WorkerLostError: another worker does not reach the end of the block. The global model in `state()` is then that
            of the block's beginning, and the weights are this worker's own.
        """
        base.check_weight(weight)
        if weight:
            base.step_alone(self.flat.parameters, self.optimiser, self.options.clip_norm, scaler, self.metrics)
        self._steps += 1
        self._block_steps += 1
        self._weight += weight
        if self.due and not self.deferred:
            self.meet()

    @property
    def due(self) -> bool:
        """Whether the block's steps are done but it has not been ended."""
        return self._block_steps >= self.options.block_steps or bool(self._block_steps and self._warming)

    def meet(self) -> None:
        """End the open block, if there is one, as `step` does. A collective call; raises like `step`."""
        if self._block_steps:
            self._end_block(self._warming)

    @property
    def _warming(self) -> bool:
        return self._steps <= self.options.warmup_steps

    def finish(self) -> None:
        """End the open block, and put the global model W(t), not the look-ahead B(t), into `model`.

        Buffers become the workers' mean. A collective call. Raises MegahourError on all workers
        if one of them has another model.
        """
        self.meet()
        base.end_together(self.group)
        self.flat.set_weights(self.filter.model)
        replicas.end_with_one_model(self.model, self.group)
        if self.options.total_steps is None and self._blocks and self.group.rank == 0:
            warn(self.eta, self._blocks)

    def state(self) -> dict[str, Tensor]:
        """The global model and its momentum, this worker's weights (D,) in fp32, and its position in the block."""
        return {
            "start": self.filter.start.clone(),
            "memory": self.filter.memory.clone(),
            "weights": self.flat.weights(),
            "position": torch.tensor([self._steps, self._block_steps, self._blocks]),
            "weight": torch.tensor([self._weight], dtype=torch.float64),
        }

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Resume from `states`; η is that of the new number of workers.

        With the same number of workers, each restores its own state, and the result has the same bits as without an
        interruption. Otherwise all resume from the mean of the old workers' models in the open block, weighted by their
        weights; each gets an equal share of the total weight. The momentum is shared and kept.
        """
        names = ("start", "memory", "weights", "position", "weight")
        own = base.own_state("bmuf", states, self.group.rank, names)
        self.flat.views(own["weights"])  # raises before anything is changed if they are of another model
        device = self.flat.device
        self.filter.start = own["start"].to(device).clone()
        self.filter.memory = own["memory"].to(device).clone()
        self._steps, self._block_steps, self._blocks = own["position"].tolist()
        if len(states) == self.group.size:
            self._weight = float(own["weight"])
            self.flat.set_weights(own["weights"].to(device))
            return
        weights = [float(state["weight"]) for state in states]
        self._weight = sum(weights) / self.group.size
        mean = self.filter.start.clone()
        if self._weight:
            mean.zero_()
            for state, weight in zip(states, weights, strict=True):
                mean.add_(state["weights"].to(device), alpha=weight / sum(weights))
        self.flat.set_weights(mean)

    def rejoin(self, own: Mapping[str, Tensor], peer: Mapping[str, Tensor] | None) -> None:
        """Take the shared state; a worker that takes a peer's has no part in the open block.

        See `regrouping`.
        """
        state = own if peer is None else {**peer, "weight": torch.zeros(1, dtype=torch.float64)}
        self.restore([state] * self.group.size)

    @torch.no_grad()
    def _end_block(self, warming: bool) -> None:
        mean = self.flat.weights()
        finite = bool(mean.isfinite().all())
        if not finite:
            LOG.warning("rank %d: weights are not finite after step %d; left out", self.group.rank, self._steps)
            self.optimiser.state.clear()  # its moments would corrupt the weights that it gets
        agreed = base.agree(self.group, self._weight if finite else 0.0, finite)
        if agreed.total:
            self._move(mean, agreed.share, warming)
        elif not agreed.finite:
            raise MegahourError(
                f"no worker has finite weights after step {self._steps}",
                where="bmuf",
                remedy="go back to a checkpoint with a lower learning rate, clip_norm or block momentum",
            )
        self._blocks += not warming
        self._block_steps, self._weight = 0, 0.0

    def _move(self, mean: Tensor, share: float, warming: bool) -> None:
        """Replace every worker's model by the filtered mean of all."""
        local = mean.clone() if share else None
        mean = mean.mul_(share) if share else mean.zero_()
        self.group.all_reduce(mean).wait()
        if local is not None:
            self.metrics["consensus_distance"] = float(torch.linalg.vector_norm(local.sub_(mean)))
        before = self.filter.model.clone()
        if warming:
            self.filter = block_momentum.FORMS[self.options.form](mean)
        else:
            self.filter.advance(mean, self.eta, self.eta, self.options.zeta)
        self.flat.set_weights(self.filter.start)
        moved = torch.linalg.vector_norm(before.sub_(self.filter.model))
        self.metrics |= {"block_momentum": 0.0 if warming else self.eta, "block_update_norm": float(moved)}
        if self.options.inner == "reset":
            self.optimiser.state.clear()
        elif self.options.inner == "mean":
            replicas.average_memories(self.optimiser, self.group, share)
