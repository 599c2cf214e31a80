"""What every synchroniser offers to a training loop, and the parts of a step that all of them share.

A step has the same order everywhere: unscale (mixed precision), clip the local gradient, agree, update. `unscale`,
`clip_gradient`, `agree` and `update` are these four for those who write a synchroniser.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from megahour.core.errors import ConfigError
from megahour.sync.group.base import Group

_ENDS = -1.0  # said in place of a weight


class Synchroniser(Protocol):
    """N workers' steps on one model: stands where `optimiser.step()` stands in a plain training loop."""

    metrics: dict[str, float | Tensor]
    """Of the last step: norms of the gradient, density, consensus distance, staleness, …, by name.

    Numbers; of a model on an accelerator some are scalars there, which a loop reads when it likes: `float` waits.
    """

    def step(self, *, weight: float = 1.0, scaler: GradScaler | None = None) -> None:
        """Agrees with the other workers and updates the weights from the gradients in `parameter.grad`.

        Parameters
        ----------
        weight: of this worker's gradient in the mean over workers, Σ w_i g_i / Σ w_i: its number of frames, say, where
            the loss is a mean over frames; 0 when it has no batch, so that no one waits at the end of an epoch.
        scaler: of mixed precision with fp16. The step then also does `scaler.step(optimiser)` and `scaler.update()`:
            gradients are unscaled before they are clipped, and a step with an infinity or NaN on any worker is left
            out by all that the step would have bound together.

        Raises `WorkerLostError` when another worker does not answer within the group's time limit; the weights are
        then those before the step or, when the loss struck in between, undefined: go back to a checkpoint.
        """

    def finish(self) -> None:
        """Ends training: afterwards all workers hold the same, final, model. A collective call."""

    def state(self) -> dict[str, Tensor]:
        """What this worker needs beside the model and the optimiser to go on later with the same bits; copies."""

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Goes on from the states of all workers of a checkpoint, in rank order; their number may have been another."""


@dataclass(frozen=True)
class Agreement:
    """What all workers say of a step before their gradients meet."""

    share: float
    """This worker's w_i / Σ w: 0 where it has no batch, and on all workers where no one has one."""
    total: float
    """Σ w, the same bits on all workers; 0: there is nothing to be done in this step."""
    finite: bool
    """Whether no worker has seen an infinity or NaN."""


def default_group(group: Group | None) -> Group:
    """`group`, or where it is None that of torch.distributed's default process group, or else of one worker alone."""
    if group is not None:
        return group
    from megahour.sync.group.torch_group import TorchGroup

    return TorchGroup()


def agree(group: Group, weight: float, finite: bool = True) -> Agreement:
    """All workers' weights and whether all gradients are finite: one all-gather of 16 bytes. A collective call.

    Raises ConfigError on all workers when another one is in `end_together`.
    """
    check_weight(weight)
    weights, all_finite = _meet(group, weight, finite).unbind(1)
    total = sum(weights.tolist())
    return Agreement(weight / total if total else 0.0, total, bool(all_finite.all()))


def end_together(group: Group) -> None:
    """What `finish` begins with. A collective call. Raises ConfigError on all workers when another is in `agree`."""
    if group.size > 1:
        _meet(group, _ENDS, True)


def _meet(group: Group, weight: float, finite: bool) -> Tensor:
    """(N, 2) weights and 0 or 1 of all workers."""
    said = torch.tensor([weight, float(finite)], dtype=torch.float64)
    answers = group.all_gather(said).wait()
    ended = [rank for rank, (weight, _) in enumerate(answers.tolist()) if weight == _ENDS]
    if ended and len(ended) < group.size:
        raise ConfigError(
            f"worker {', '.join(map(str, ended))} called finish() while others took a step",
            where=f"rank {group.rank}",
            remedy="take equally many steps on all workers, with weight=0 where there is no batch left",
        )
    return answers


def check_weight(weight: float) -> None:
    """Raises ConfigError unless `weight` is finite and ≥ 0."""
    if not 0 <= weight < float("inf"):
        raise ConfigError(f"weight {weight} of a worker's gradient is not finite and ≥ 0", remedy="give its frames")


def clip_gradient(gradient: Tensor, clip_norm: float | None) -> float:
    """Norm of a flat gradient (D,), which is scaled in place to `clip_norm` where it is longer; None: left as it is.

    As `torch.nn.utils.clip_grad_norm_`: g ← g · min(1, c / (‖g‖₂ + 1e-6)). An infinite or NaN norm is returned, and the
    gradient left alone.
    """
    norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float32))
    if clip_norm is not None and clip_norm < norm < float("inf"):
        gradient.mul_(clip_norm / (norm + 1e-6))
    return norm


def unscale(optimiser: torch.optim.Optimizer, scaler: GradScaler | None) -> None:
    """Divides the gradients in `parameter.grad` by the scale of mixed precision, if any; call it once a step."""
    if scaler is not None and scaler.is_enabled() and _has_gradient(optimiser):
        _prime(scaler, optimiser)
        scaler.unscale_(optimiser)


def update(optimiser: torch.optim.Optimizer, scaler: GradScaler | None, finite: bool | Tensor = True) -> None:
    """Ends a step whose gradients `unscale` has seen: `optimiser.step()` where `finite`, and `scaler.update()`.

    `finite` is what was agreed, so that all workers leave out the same steps and keep equal scales: a worker whose own
    gradients were finite hears of another's infinity here. Without a scaler the optimiser steps in any case.

    A scalar tensor on an accelerator stays there where the optimiser is a fused one (`fused=True`), which leaves the
    step out by itself; for any other the host waits for it.
    """
    if scaler is None or not scaler.is_enabled():
        optimiser.step()
        return
    if isinstance(finite, Tensor) and getattr(optimiser, "_step_supports_amp_scaling", False):
        _step_unless(optimiser, ~finite)
    elif finite:
        optimiser.step()
    _tell(scaler, optimiser, finite)
    scaler.update()


def _step_unless(optimiser: torch.optim.Optimizer, overflow: Tensor) -> None:
    """A fused optimiser's step, which its kernel leaves out where `overflow`: the attributes that GradScaler sets."""
    optimiser.grad_scale = None  # type: ignore[attr-defined]
    optimiser.found_inf = overflow.to(torch.float32)  # type: ignore[attr-defined]
    try:
        optimiser.step()
    finally:
        del optimiser.grad_scale, optimiser.found_inf  # type: ignore[attr-defined]


def reading(value: Tensor) -> float | Tensor:
    """A scalar for `metrics`: a number where reading it is free, the tensor where the host would wait for a device."""
    return float(value) if value.device.type == "cpu" else value.detach()


def step_alone(
    parameters: Sequence[nn.Parameter],
    optimiser: torch.optim.Optimizer,
    clip_norm: float | None,
    scaler: GradScaler | None,
    metrics: dict[str, float | Tensor],
) -> None:
    """The plain loop's step with what is in `parameter.grad`: unscaled, clipped, left out where it is not finite.

    The norm, which is computed only where it is needed, becomes `metrics["gradient_norm"]`. Raises as `check_shared`.
    """
    check_shared(parameters, optimiser)
    unscale(optimiser, scaler)
    finite: bool | Tensor = True
    if clip_norm is not None or scaler is not None:
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        metrics["gradient_norm"] = reading(norm)
        finite = is_finite(norm) if scaler is not None else True
        if clip_norm is not None and (isinstance(finite, Tensor) or finite):
            nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm)
    update(optimiser, scaler, finite)


def check_optimiser(optimiser: torch.optim.Optimizer) -> None:
    """Raises ConfigError for an optimiser whose step computes the loss itself, as LBFGS: no gradient can be agreed."""
    closure = inspect.signature(type(optimiser).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        name = type(optimiser).__name__
        raise ConfigError(f"{name} needs a closure in each step", remedy="take an optimiser that steps by the gradient")


def check_shared(parameters: Sequence[nn.Parameter], optimiser: torch.optim.Optimizer) -> None:
    """Raises ConfigError where the optimiser trains what is not among `parameters`, on which the workers agree.

    That would become another tensor on each worker: one that was unfrozen since, or is not the model's (a loss's).
    """
    shared = set(map(id, parameters))
    trained = [p for settings in optimiser.param_groups for p in settings["params"] if p.requires_grad]
    alone = [tuple(p.shape) for p in trained if id(p) not in shared]
    if alone:
        raise ConfigError(
            f"the optimiser trains {len(alone)} parameters that the workers do not share, of shapes {alone[:3]}",
            remedy="make the trainer of one module that holds all that is trained, nn.ModuleList([model, loss]); after "
            "unfreezing call finish() and make it again",
        )


def own_state(
    trainer: str, states: Sequence[Mapping[str, Tensor]], rank: int, names: Collection[str]
) -> Mapping[str, Tensor]:
    """The state that worker `rank` goes on from, of all those of a checkpoint, whose number may have been another.

    Raises ConfigError: there is none, or it has not the tensors `names` that `trainer` keeps. The others are not read.
    """
    if not states:
        raise ConfigError("no state to restore from", remedy="give the states of all workers of the checkpoint")
    own = states[rank % len(states)]
    if own.keys() != set(names):
        raise ConfigError(
            f"a state of {', '.join(sorted(own)) or 'nothing'} is not one of {trainer}, "
            f"which has {', '.join(names) or 'nothing'}",
            remedy="go on with the trainer that wrote the checkpoint, or restore model and optimiser alone",
        )
    return own


def is_finite(norm: Tensor) -> bool | Tensor:
    """Whether a scalar is finite: known at once on the CPU, a tensor on an accelerator."""
    finite = norm.isfinite()
    return bool(finite) if norm.device.type == "cpu" else finite


def _tell(scaler: GradScaler, optimiser: torch.optim.Optimizer, finite: bool | Tensor) -> None:
    """Lets `scaler` know what was agreed, through an optimiser of one weight whose gradient is 0 or infinite.

    `GradScaler.update` asks for the infinities of all optimisers it has unscaled since the last update; a worker
    without a batch has none, and one with finite gradients only does not know of the others'.
    """
    device = _device(optimiser)
    witness = nn.Parameter(torch.zeros(1, device=device))
    if isinstance(finite, Tensor):
        witness.grad = torch.zeros_like(witness).masked_fill_(~finite, float("inf"))
    else:
        witness.grad = torch.full_like(witness, 0.0 if finite else float("inf"))
    _prime(scaler, optimiser)
    scaler.unscale_(torch.optim.SGD([witness], lr=0.0))


def _prime(scaler: GradScaler, optimiser: torch.optim.Optimizer) -> None:
    """Lets the scaler make its scale, which it does at the first loss: a worker without a batch has had none."""
    scaler.scale(torch.zeros((), device=_device(optimiser)))


def _device(optimiser: torch.optim.Optimizer) -> torch.device:
    device: torch.device = next(p.device for settings in optimiser.param_groups for p in settings["params"])
    return device


def _has_gradient(optimiser: torch.optim.Optimizer) -> bool:
    return any(p.grad is not None for group in optimiser.param_groups for p in group["params"])
