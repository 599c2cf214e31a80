"""BMUF: workers train alone for a block of steps, then their mean moves a global model that has momentum of its own.

Chen and Huo, "Scalable training of deep learning machines by incremental block training with intra-block parallel
optimization and blockwise model-update filtering", ICASSP 2016. The arithmetic is in `block_momentum`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from megahour.core.errors import ConfigError, MegahourError
from megahour.sync import base, block_momentum, replicas
from megahour.sync.flat import Flat, broadcast_model
from megahour.sync.group import Group

LOG = logging.getLogger(__name__)
Inner = Literal["keep", "reset", "mean"]


@dataclass(frozen=True)
class Blocks:
    """How long blocks are, and how their updates are filtered; as `bmuf` says."""

    steps: int
    warmup_steps: int
    total_steps: int | None
    eta: float | None
    eta_cap: float | Literal["auto"] | None
    zeta: float
    constant: float

    def __post_init__(self) -> None:
        if self.steps < 1 or self.warmup_steps < 0:
            raise ConfigError(f"blocks of {self.steps} steps after {self.warmup_steps} of warm-up", remedy="≥ 1, ≥ 0")
        if self.total_steps is not None and self.total_steps < 1:
            raise ConfigError(f"total_steps {self.total_steps}", remedy="give the steps of the whole run, or None")
        if isinstance(self.eta_cap, str) and self.eta_cap != "auto":
            raise ConfigError(f"eta_cap {self.eta_cap!r}", remedy='give a number in [0, 1), "auto" or None')
        for name, value in (("eta", self.eta), ("eta_cap", self.eta_cap)):
            if isinstance(value, float | int) and not 0 <= value < 1:
                raise ConfigError(f"{name} = {value} is not in [0, 1)")

    def momentum(self, workers: int, *, tell: bool) -> float:
        """η for `workers` workers: of equation 6 unless given, capped; `tell`s of a run that is too short for it."""
        asked = self.eta if self.eta is not None else block_momentum.block_momentum(workers, self.zeta, self.constant)
        eta = min(asked, self.eta_cap) if isinstance(self.eta_cap, float | int) else asked
        if self.total_steps is None or workers == 1:
            return eta
        blocks = (self.total_steps - self.warmup_steps) / self.steps
        if self.eta_cap == "auto" and self.eta is None:
            eta = block_momentum.cap(blocks, asked)
            if eta < asked and tell:
                LOG.info("block momentum %.4f lowered to %.4f: the run has %.0f blocks", asked, eta, blocks)
        if tell:
            self.warn(eta, blocks)
        return eta

    @staticmethod
    def warn(eta: float, blocks: float) -> None:
        """Says so where the momentum remembers too much of a run of `blocks`."""
        ratio = block_momentum.memories(blocks, eta)
        if eta and ratio < block_momentum.MEMORIES * (1 - 1e-9):
            LOG.warning(
                "block momentum %.4f remembers %.0f blocks, and the run has %.0f: R = %.1f is below %.0f, where BMUF "
                "loses accuracy (a run of 128 workers lost 2.5 %% in the paper); lower it to %.4f or shorten blocks",
                *(eta, 1 / (1 - eta), blocks, ratio, block_momentum.MEMORIES, block_momentum.cap(blocks, eta)),
            )


def bmuf(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    *,
    group: Group | None = None,
    clip_norm: float | None = None,
    block_steps: int = 100,
    warmup_steps: int = 0,
    total_steps: int | None = None,
    eta: float | None = None,
    eta_cap: float | Literal["auto"] | None = "auto",
    zeta: float = 1.0,
    constant: float = 1.0,
    form: block_momentum.Form = "nesterov",
    inner: Inner = "keep",
) -> Bmuf:
    """A synchroniser whose workers step alone and meet once a block: 2 D fp32 values sent every `block_steps` steps.

    With one worker, ζ = C = 1 and the default form it is the plain loop, bit for bit, whatever the optimiser;
    weights of float64 are rounded to fp32 at a block's edge.

    Parameters
    ----------
    model, optimiser: any; the weights of all workers become those of rank 0. The optimiser steps locally, with the
        learning rate of one worker: η makes up for the workers' number.
    group: the workers; None: torch.distributed's default group, or one worker where it is not initialised.
    clip_norm: norm to which each local gradient is clipped.
    block_steps: steps a block (the paper's block size in mini-batches, 100 there).
    warmup_steps: the first steps, in which the mean is taken after every step and without momentum.
    total_steps: steps of the whole run, if known, for the cap and the warning.
    eta: block momentum η in [0, 1); None: of equation 6, ζ / (N (1 - η)) = C.
    eta_cap: largest η. "auto": where η is that of equation 6 and `total_steps` is known, 1 - 20 / blocks, so that the
        memory of 1 / (1 - η) blocks fits 20 times into the run; None: none, as in the paper, which falls at 128.
    zeta: block learning rate ζ > 0.
    constant: C ≥ 1 of equation 6.
    form: "nesterov", Chen and Huo's; "classical", theirs without look-ahead; "literal", equation 5 of "Realizing
        Petabyte Scale Acoustic Modeling" as printed, which keeps the look-ahead in the global model and trains worse.
    inner: what becomes of the optimiser's own momentum at a block's edge: each worker keeps its own; "reset" clears the
        optimiser's state; "mean" averages it, which costs as many bytes as the state has.

    Raises ConfigError for options that make no sense, `WorkerLostError` as `Group.broadcast`.
    """
    base.check_clip_norm(clip_norm)
    base.check_optimiser(optimiser)
    blocks = Blocks(block_steps, warmup_steps, total_steps, eta, eta_cap, zeta, constant)
    if form not in block_momentum.FORMS:
        raise ConfigError(f"form {form!r} is none of {', '.join(block_momentum.FORMS)}")
    if inner not in ("keep", "reset", "mean"):
        raise ConfigError(f"inner {inner!r} is none of keep, reset, mean")
    return Bmuf(model, optimiser, base.default_group(group), clip_norm, blocks, form, inner)


class Bmuf:
    """`Synchroniser` made by `bmuf`. A lost worker is noticed at the block's edge: `WorkerLostError`."""

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        group: Group,
        clip_norm: float | None,
        blocks: Blocks,
        form: block_momentum.Form,
        inner: Inner,
    ) -> None:
        self.model, self.optimiser, self.group, self.clip_norm = model, optimiser, group, clip_norm
        self.blocks, self.form, self.inner = blocks, form, inner
        self.metrics: dict[str, float] = {}
        broadcast_model(model, group)
        self.flat = Flat(model)
        self.filter: block_momentum.Filter = block_momentum.FORMS[form](self.flat.weights())
        self.eta = blocks.momentum(group.size, tell=group.rank == 0)
        self._steps = self._block_steps = self._blocks = 0
        self._weight = 0.0

    def step(self, *, weight: float = 1.0, scaler: GradScaler | None = None) -> None:
        """One local step, and at a block's edge the filtered mean of all workers' models.

        `weight` 0 leaves this worker's step out; workers count in the mean by the sum of their weights in the block.
        With a scaler a step with an infinity or NaN is left out by this worker alone: nobody else hears of it. A worker
        whose weights are not finite at a block's edge is left out of the mean, gets the others' and is named.

        Raises
        ------
        WorkerLostError: another worker does not come to the edge of the block. The global model in `state()` is that of
            the block's beginning, the weights are this worker's own.
        """
        base.check_weight(weight)
        if weight:
            base.step_alone(self.flat.parameters, self.optimiser, self.clip_norm, scaler, self.metrics)
        self._steps += 1
        self._block_steps += 1
        self._weight += weight
        warming = self._steps <= self.blocks.warmup_steps
        if warming or self._block_steps >= self.blocks.steps:
            self._end_block(warming)

    def finish(self) -> None:
        """Ends the block that is under way and leaves the global model in `model`: W(t), not the look-ahead B(t).

        Floating-point buffers become the workers' mean. A collective call.
        """
        if self._block_steps:
            self._end_block(self._steps <= self.blocks.warmup_steps)
        base.end_together(self.group)
        self.flat.set_weights(self.filter.model)
        replicas.average_buffers(self.model, self.group)
        if self.blocks.total_steps is None and self._blocks and self.group.rank == 0:
            self.blocks.warn(self.eta, self._blocks)

    def state(self) -> dict[str, Tensor]:
        """The global model and its momentum, this worker's weights (D,) in fp32, and where it is in its block."""
        return {
            "start": self.filter.start.clone(),
            "memory": self.filter.memory.clone(),
            "weights": self.flat.weights(),
            "position": torch.tensor([self._steps, self._block_steps, self._blocks]),
            "weight": torch.tensor([self._weight], dtype=torch.float64),
        }

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Goes on where the workers of `states` were; η is that of the new number of workers.

        With as many workers as before each takes its own part, and the next bits are those of a run that was not
        interrupted. With another number all go on from the mean of the models that the old workers had in their open
        block, each with an equal share of what they counted; the momentum is common and kept.
        """
        names = ("start", "memory", "weights", "position", "weight")
        own = base.own_state("bmuf", states, self.group.rank, names)
        self.flat.views(own["weights"])  # raises where they are another model's, before anything is changed
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

    @torch.no_grad()
    def _end_block(self, warming: bool) -> None:
        mean = self.flat.weights()
        finite = bool(mean.isfinite().all())
        if not finite:
            LOG.warning("rank %d: weights are not finite after step %d; left out", self.group.rank, self._steps)
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
        """The filtered mean of all workers' models becomes that of every worker."""
        local = mean.clone() if share else None
        mean = mean.mul_(share) if share else mean.zero_()
        self.group.all_reduce(mean).wait()
        if local is not None:
            self.metrics["consensus_distance"] = float(torch.linalg.vector_norm(local.sub_(mean)))
        before = self.filter.model.clone()
        if warming:
            self.filter = block_momentum.FORMS[self.form](mean)
        else:
            self.filter.advance(mean, self.eta, self.eta, self.blocks.zeta)
        self.flat.set_weights(self.filter.start)
        moved = torch.linalg.vector_norm(before.sub_(self.filter.model))
        self.metrics |= {"block_momentum": 0.0 if warming else self.eta, "block_update_norm": float(moved)}
        if self.inner == "reset":
            self.optimiser.state.clear()
        elif self.inner == "mean":
            replicas.average_memories(self.optimiser, self.group, share)
