"""The `Synchroniser` interface for training loops, and the parts of a step that all synchronisers share.

Every step has the same order: unscale (mixed precision), clip the local gradient, agree, update. `unscale`,
`clip_gradient`, `agree` and `update` are these four, for authors of synchronisers.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from megahour.core.errors import ConfigError
from megahour.sync.group.base import Group
from megahour.sync.trainers.flat import gradient_norm

_ENDS = -1.0  # sent instead of a weight by `end_together`


class Synchroniser(Protocol):
    """N workers' steps on one model; it replaces `optimiser.step()` of a plain training loop."""

    group: Group
    """The workers."""

    metrics: dict[str, float | Tensor]
    """Measures of the last step by name: norms of the gradient, density, consensus distance, staleness, …

    They are numbers; for a model on an accelerator some are scalar tensors there, and converting them to float waits.
    """

    def step(self, *, weight: float = 1.0, scaler: GradScaler | None = None) -> None:
        """Agree with the other workers and update the weights from the gradients in `parameter.grad`.

        Parameters
        ----------
        weight: of this worker's gradient in the mean over workers, Σ w_i g_i / Σ w_i, such as its number of frames if
            the loss is a mean over frames; 0 if it has no batch, so that no one waits at the end of an epoch.
        scaler: of mixed precision with fp16. The step then includes `scaler.step(optimiser)` and `scaler.update()`:
            gradients are unscaled before they are clipped, and a step with an infinity or NaN on any worker is skipped
            by all workers that take part in it.

        Raises `WorkerLostError` if another worker does not respond within the group's time limit. The weights are then
        those before the step or, if the loss came in between, undefined: go back to a checkpoint.
        """

    def finish(self) -> None:
        """End training: afterwards all workers hold the same final model. A collective call."""

    def state(self) -> dict[str, Tensor]:
        """Copies of the state, besides model and optimiser, that this worker needs to resume with the same bits."""

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Resume from the states of all workers of a checkpoint, in rank order; their number may differ."""


@dataclass(frozen=True)
class Agreement:
    """What all workers agree on before a step's gradients are exchanged."""

    share: float
    """This worker's w_i / Σ w; 0 if it, or every worker, has no batch."""
    total: float
    """Σ w, the same bits on all workers; 0: the step does nothing."""
    finite: bool
    """Whether no worker has an infinity or NaN."""


def default_group(group: Group | None) -> Group:
    """`group`; if None, torch.distributed's default process group, or a single worker if there is none.

    Raises ConfigError if there is none, but torchrun has started several workers: each would train alone.
    """
    if group is not None:
        return group
    from megahour.sync.group.torch_group import TorchGroup

    started = os.environ.get("WORLD_SIZE", "1")
    if started != "1" and not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            f"WORLD_SIZE is {started}, but torch.distributed has no process group: each worker would train alone",
            remedy='call torch.distributed.init_process_group("gloo") first; to train alone, pass group=TorchGroup()',
        )
    return TorchGroup()


def agree(group: Group, weight: float, finite: bool = True) -> Agreement:
    """Exchange weights and whether gradients are finite: one all-gather of 16 bytes. A collective call.

    Raises ConfigError on all workers if another one is in `end_together`.
    """
    check_weight(weight)
    weights, all_finite = _meet(group, weight, finite).unbind(1)
    total = sum(weights.tolist())
    return Agreement(weight / total if total else 0.0, total, bool(all_finite.all()))


def end_together(group: Group) -> None:
    """The start of `finish`. A collective call. Raises ConfigError on all workers if another is in `agree`."""
    if group.size > 1:
        _meet(group, _ENDS, True)


def _meet(group: Group, weight: float, finite: bool) -> Tensor:
    """(N, 2) weights and 0 or 1 of all workers."""
    own = torch.tensor([weight, float(finite)], dtype=torch.float64)
    answers = group.all_gather(own).wait()
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
    """The norm of a flat gradient (D,), which is scaled in place to at most `clip_norm`; None: not scaled.

    Like `torch.nn.utils.clip_grad_norm_`: g ← g · min(1, c / (‖g‖₂ + 1e-6)). If the norm is infinite or NaN, the
    gradient is not changed.
    """
    norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float32))
    if clip_norm is not None and clip_norm < norm < float("inf"):
        gradient.mul_(clip_norm / (norm + 1e-6))
    return norm


def unscale(optimiser: torch.optim.Optimizer, scaler: GradScaler | None) -> None:
    """Divide the gradients in `parameter.grad` by the scale of mixed precision, if any; once per step."""
    if scaler is not None and scaler.is_enabled() and _has_gradient(optimiser):
        _prime(scaler, optimiser)
        scaler.unscale_(optimiser)


def update(optimiser: torch.optim.Optimizer, scaler: GradScaler | None, finite: bool | Tensor = True) -> None:
    """End a step after `unscale`: `optimiser.step()` if `finite`, and `scaler.update()`.

    `finite` comes from `agree`, so that all workers skip the same steps and keep equal scales, even those whose own
    gradients were finite. Without a scaler the optimiser always steps.

    If `finite` is a scalar tensor on an accelerator, a fused optimiser (`fused=True`) skips the step by itself; for
    any other the host waits for the value.
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
    """A fused optimiser's step, which its kernel skips on `overflow`, by the attributes that GradScaler sets."""
    optimiser.grad_scale = None  # type: ignore[attr-defined]
    optimiser.found_inf = overflow.to(torch.float32)  # type: ignore[attr-defined]
    try:
        optimiser.step()
    finally:
        del optimiser.grad_scale, optimiser.found_inf  # type: ignore[attr-defined]


def reading(value: Tensor) -> float | Tensor:
    """A scalar for `metrics`: a number if reading it is free, a tensor if the host would wait for a device."""
    return float(value) if value.device.type == "cpu" else value.detach()


def step_alone(
    parameters: Sequence[nn.Parameter],
    optimiser: torch.optim.Optimizer,
    clip_norm: float | None,
    scaler: GradScaler | None,
    metrics: dict[str, float | Tensor],
) -> None:
    """The step of a plain loop with `parameter.grad`: unscaled, clipped, and skipped if it is not finite.

    The norm, computed only if it is needed, becomes `metrics["gradient_norm"]`. Raises like `check_shared` and
    `gradient_norm`.
    """
    check_shared(parameters, optimiser)
    unscale(optimiser, scaler)
    finite: bool | Tensor = True
    if clip_norm is not None or scaler is not None:
        norm = gradient_norm(parameters)
        metrics["gradient_norm"] = reading(norm)
        finite = is_finite(norm) if scaler is not None else True
        if clip_norm is not None and (isinstance(finite, Tensor) or finite):
            nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm)
    update(optimiser, scaler, finite)


def check_optimiser(optimiser: torch.optim.Optimizer) -> None:
    """Raises ConfigError for an optimiser whose step computes the loss itself, such as LBFGS."""
    closure = inspect.signature(type(optimiser).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        name = type(optimiser).__name__
        raise ConfigError(f"{name} needs a closure in every step", remedy="use an optimiser that steps by the gradient")


def check_shared(parameters: Sequence[nn.Parameter], optimiser: torch.optim.Optimizer) -> None:
    """Raises ConfigError if the optimiser trains parameters other than `parameters`, on which the workers agree.

    These would diverge between workers: parameters unfrozen since, or not the model's (a loss's).
    """
    shared = set(map(id, parameters))
    trained = [p for settings in optimiser.param_groups for p in settings["params"] if p.requires_grad]
    alone = [tuple(p.shape) for p in trained if id(p) not in shared]
    if alone:
        raise ConfigError(
            f"the optimiser trains {len(alone)} parameters that the workers do not share, of shapes {alone[:3]}",
            remedy="pass the trainer one module with all trained parameters, nn.ModuleList([model, loss]); after "
            "unfreezing call finish() and create a new trainer",
        )


def own_state(
    trainer: str, states: Sequence[Mapping[str, Tensor]], rank: int, names: Collection[str]
) -> Mapping[str, Tensor]:
    """The state from which worker `rank` resumes, out of a checkpoint's states, whose number may differ.

    Raises ConfigError: there is none, or it lacks the tensors `names` of `trainer`. The other states are not read.
    """
    if not states:
        raise ConfigError("no state to restore from", remedy="give the states of all workers of the checkpoint")
    own = states[rank % len(states)]
    if own.keys() != set(names):
        raise ConfigError(
            f"a state with {', '.join(sorted(own)) or 'nothing'} is not one of {trainer}, "
            f"which has {', '.join(names) or 'nothing'}",
            remedy="resume with the trainer that wrote the checkpoint, or restore only model and optimiser",
        )
    return own


def is_finite(norm: Tensor) -> bool | Tensor:
    """Whether a scalar is finite: known at once on the CPU, a tensor on an accelerator."""
    finite = norm.isfinite()
    return bool(finite) if norm.device.type == "cpu" else finite


def _tell(scaler: GradScaler, optimiser: torch.optim.Optimizer, finite: bool | Tensor) -> None:
    """Pass the agreed result to `scaler`, through an optimiser of one weight whose gradient is 0 or infinite.

    `GradScaler.update` needs the infinities of all optimisers unscaled since the last update; a worker without a batch
    has none, and one with finite gradients does not know about the others'.
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
    """Make the scaler create its scale, which otherwise happens at the first loss; a worker may have had none."""
    scaler.scale(torch.zeros((), device=_device(optimiser)))


def _device(optimiser: torch.optim.Optimizer) -> torch.device:
    device: torch.device = next(p.device for settings in optimiser.param_groups for p in settings["params"])
    return device


def _has_gradient(optimiser: torch.optim.Optimizer) -> bool:
    return any(p.grad is not None for group in optimiser.param_groups for p in group["params"])
