"""PyTorch's DDP behind the `Synchroniser` interface, as a baseline; optionally with PowerSGD or bf16 gradients."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

from megahour.core.errors import ConfigError
from megahour.sync.group.base import Group
from megahour.sync.params import DdpOptions, DdpPowersgdOptions
from megahour.sync.trainers import replicas
from megahour.sync.trainers.base import own_state, step_alone
from megahour.sync.trainers.ddp_hooks import bf16_mean, powersgd_mean
from megahour.sync.trainers.flat import trainable


class Ddp:
    """DistributedDataParallel; by option, gradients are sent in bf16 or compressed with PowerSGD.

    Call the model as `model(batch)`, which now runs DDP's forward. All workers need a batch in every step: if one has
    none, the others wait in backward until the process group's time limit. The group must be a whole process group, not
    a part of one or virtual workers. The mean gradient is clipped, since DDP does not expose local ones. With PowerSGD
    the gradient is one bucket, sent after backward. `metrics`: `gradient_norm` of the mean.

    If a worker is lost, `backward` raises torch's own error after the process group's time limit.
    """

    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer, group: Group, options: DdpOptions) -> None:
        self.metrics: dict[str, float | Tensor] = {}
        self._model, self._optimiser, self.group, self._clip_norm = model, optimiser, group, options.clip_norm
        self._backwards, self._hook, self._powersgd = options.backwards, options.hook, _powersgd_state(options)
        self._parameters = trainable(model)
        self._calls = self._compressed = 0
        self._ddp: DistributedDataParallel | None = None
        process_group = process_group_of(group, "ddp")
        if self._powersgd is not None and any(p.dim() == 0 for p in self._parameters):
            raise ConfigError("torch's PowerSGD refuses scalar parameters", remedy="give them the shape (1,)")
        if process_group is not None:
            inner = _Inner(model)
            settings: dict[str, Any] = {_SYNC_BUFFERS: False}  # else evaluating on one worker would hang
            if self._powersgd is not None:  # its sums do not overlap with backward, and one bucket needs fewer
                settings["bucket_cap_mb"] = 1 + sum(p.numel() * p.element_size() for p in self._parameters) / 2**20
            self._ddp = DistributedDataParallel(
                inner,
                process_group=process_group,
                find_unused_parameters=options.find_unused_parameters,
                **settings,
            )
            self._register(process_group)
            self._own_forward = vars(model).get("forward")
            model.forward = _Forward(self._forward, model.forward)

    def _register(self, process_group: dist.ProcessGroup) -> None:
        assert self._ddp is not None
        if self._hook == "bf16":
            self._ddp.register_comm_hook(process_group, bf16_mean)
        elif self._powersgd is not None:
            self._powersgd.process_group = process_group
            self._ddp.register_comm_hook(self._powersgd, powersgd_mean)

    def _forward(self, *arguments: Any, **named: Any) -> Any:
        assert self._ddp is not None
        if torch.is_grad_enabled():
            self._calls += 1
            self._ddp.require_backward_grad_sync = self._calls % self._backwards == 0
        return self._ddp(*arguments, **named)

    def step(self, *, weight: float = 1.0, scaler: GradScaler | None = None) -> None:
        """The optimiser's step with the plain mean of gradients, which backward has left in `parameter.grad`.

        Raises ConfigError for a weight other than 1, or unless `model(batch)` was called exactly `backwards` times:
        otherwise the gradients would not be the mean.
        """
        check_plain_mean("ddp", weight)
        self.check_calls()
        step_alone(self._parameters, self._optimiser, self._clip_norm, scaler, self.metrics)
        self.count()

    def check_calls(self) -> None:
        """Raises ConfigError after `finish`, or unless DDP has seen all forward calls of this step."""
        if self._ddp is None and self.group.size > 1:
            raise ConfigError("a step after finish()", remedy="create a new trainer to continue")
        if self._ddp is not None and (self._calls == 0 or self._calls % self._backwards):
            raise ConfigError(
                f"{self._calls} calls of model(batch) since the last step, with backwards={self._backwards}",
                remedy="compute the loss from model(batch); for accumulation set backwards to the calls of a step",
            )

    def count(self) -> None:
        """End the step, counting its traffic: each ring all-reduce sends 2 (N - 1) / N times the gradient's bytes."""
        sums, self._calls = self._calls // self._backwards, 0
        elements = float(sums * sum(parameter.numel() for parameter in self._parameters))
        if self._powersgd is not None and self._powersgd.total_numel_after_compression > self._compressed:
            elements = self._powersgd.total_numel_after_compression - self._compressed
            self._compressed = self._powersgd.total_numel_after_compression
        size_bytes = round(elements * (2 if self._hook == "bf16" else 4) * 2 * (1 - 1 / self.group.size))
        self.group.traffic.sent_bytes += size_bytes
        self.group.traffic.received_bytes += size_bytes

    def finish(self) -> None:
        """Restore the model's own forward and average floating-point buffers. A collective call."""
        if self._ddp is not None:
            del self._model.forward
            if self._own_forward is not None:  # as in modules of torch.compile
                self._model.forward = self._own_forward
            self._ddp = None
        replicas.average_buffers(self._model, self.group)

    def state(self) -> dict[str, Tensor]:
        """Empty. PowerSGD's error memory restarts from zeros: torch stores it by bucket, and may rebuild buckets."""
        return {}

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Does nothing. Raises ConfigError for another trainer's state."""
        own_state("ddp", states, self.group.rank, ())


def _powersgd_state(options: DdpOptions) -> powersgd.PowerSGDState | None:
    if not isinstance(options, DdpPowersgdOptions):
        return None
    return powersgd.PowerSGDState(
        None,
        matrix_approximation_rank=options.rank,
        start_powerSGD_iter=options.start_step,
        min_compression_rate=options.min_compression_rate,
    )


# The name since torch 2.13, or the older one.
_SYNC_BUFFERS = "forward_sync_buffers"
if _SYNC_BUFFERS not in inspect.signature(DistributedDataParallel.__init__).parameters:
    _SYNC_BUFFERS = "broadcast_buffers"


class _Forward:
    """Replaces a model's forward by DDP's. Copies of the model (EMA, pickled files) get the original forward back."""

    def __init__(self, call: Callable[..., Any], original: Callable[..., Any]) -> None:
        self._call, self._original = call, original

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._call(*arguments, **named)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        return copy.deepcopy(self._original, memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return _the_same, (self._original,)


def _the_same(forward: Callable[..., Any]) -> Callable[..., Any]:
    return forward


class _Inner(nn.Module):
    """The module that DDP wraps: its forward is `model`'s original one, so that users can keep calling `model`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._original = model.forward

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self._original(*arguments, **named)


def process_group_of(group: Group, trainer: str) -> dist.ProcessGroup | None:
    """The process group for torch's own trainers; None for a single worker.

    Raises ConfigError for virtual workers and parts of groups, which torch's trainers do not support.
    """
    process_group: dist.ProcessGroup | None = getattr(group, "process_group", None)
    if process_group is None and group.size > 1:
        raise ConfigError(f"{trainer} works on processes of torch.distributed only", remedy="use dense on this group")
    return process_group


def check_plain_mean(trainer: str, weight: float) -> None:
    """Raises ConfigError unless `weight` is 1."""
    if weight != 1.0:
        raise ConfigError(f"weight {weight}: {trainer} takes the plain mean over workers", remedy="use dense")
