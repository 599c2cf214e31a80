"""PyTorch's FSDP2 behind the `Synchroniser` interface, as a baseline: shards weights, gradients and optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from megahour.core.errors import ConfigError
from megahour.sync.group.base import Group
from megahour.sync.params import FsdpOptions
from megahour.sync.trainers import replicas
from megahour.sync.trainers.base import check_shared, own_state, unscale, update
from megahour.sync.trainers.ddp import check_plain_mean, process_group_of
from megahour.sync.trainers.flat import broadcast_model, trainable


class Fsdp:
    """torch's `fully_shard`: each worker holds a part of every parameter; forward and backward gather them.

    The optimiser's parameters are replaced by the parts (DTensors), in place. Call the model as `model(batch)` on all
    workers: forward is a collective call, also in evaluation. All workers need a batch in every step. FSDP rejects
    scalar and non-contiguous parameters, and DTensors do not work with fused optimisers. `metrics`: `gradient_norm` of
    the mean.

    Raises ConfigError if the optimiser already has a state (as Adagrad has from the start) or trains parameters that
    are not the model's, and for an unknown name in `modules`. If a worker is lost, torch's own error is raised after
    the process group's time limit.
    """

    def __init__(self, model: nn.Module, optimiser: torch.optim.Optimizer, group: Group, options: FsdpOptions) -> None:
        self.metrics: dict[str, float | Tensor] = {}
        self._model, self._optimiser, self.group, self._clip_norm = model, optimiser, group, options.clip_norm
        process_group = process_group_of(group, "fsdp")
        self._size_bytes = sum(p.numel() * p.element_size() for p in trainable(model))
        if process_group is not None:
            if optimiser.state:
                raise ConfigError(
                    "the optimiser already has a state of whole parameters", remedy="create the trainer first"
                )
            check_shared(trainable(model), optimiser)
            wrapped = {name: _submodule(model, name) for name in options.modules} | {"": model}
            _check_dtypes(wrapped)
            broadcast_model(model, group)
            whole = dict(model.named_parameters())
            mesh = DeviceMesh.from_group(process_group, next(model.parameters()).device.type)
            for name, module in wrapped.items():
                try:
                    fully_shard(module, mesh=mesh)
                except (ValueError, NotImplementedError) as error:
                    what = f"FSDP cannot share out {f'module {name}' if name else 'the model'}: {error}"
                    raise ConfigError(what, remedy="change these parameters, or take `dense` or `zero`") from error
            parts = dict(model.named_parameters())
            new = {parameter: parts[name] for name, parameter in whole.items()}
            for settings in optimiser.param_groups:
                settings["params"] = [new.get(parameter, parameter) for parameter in settings["params"]]

    def step(self, *, weight: float = 1.0, scaler: GradScaler | None = None) -> None:
        """Each worker updates its parts with the mean gradient. Raises ConfigError for a weight other than 1."""
        check_plain_mean("fsdp", weight)
        unscale(self._optimiser, scaler)
        finite = True
        if self._clip_norm is not None or scaler is not None:
            parameters = [p for settings in self._optimiser.param_groups for p in settings["params"]]
            norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            self.metrics["gradient_norm"] = float(norm)
            finite = scaler is None or bool(norm.isfinite())
            if self._clip_norm is not None and finite:
                nn.utils.clip_grads_with_norm_(parameters, self._clip_norm, norm)
        update(self._optimiser, scaler, finite)
        size_bytes = round(3 * self._size_bytes * (1 - 1 / self.group.size))
        self.group.traffic.sent_bytes += size_bytes
        self.group.traffic.received_bytes += size_bytes

    def finish(self) -> None:
        """Gather the weights and average buffers: all workers hold one model. A collective call.

        `model.parameters()` are then whole tensors. The model remains wrapped in FSDP: a later `state_dict()` has
        DTensors, whose `full_tensor()` is a collective call.
        """
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.unshard()
        replicas.average_buffers(self._model, self.group)

    def state(self) -> dict[str, Tensor]:
        """Empty: the whole state is in the DTensors of weights and optimiser."""
        return {}

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Does nothing. Raises ConfigError for another trainer's state."""
        own_state("fsdp", states, self.group.rank, ())


def _check_dtypes(wrapped: Mapping[str, nn.Module]) -> None:
    """Raises ConfigError if trained parameters that FSDP gathers together differ in dtype.

    Each of the modules, in this order, gathers what those before it have left.
    """
    seen: set[nn.Parameter] = set()
    for name, module in wrapped.items():
        own = {key: p for key, p in module.named_parameters() if p.requires_grad and p not in seen}
        seen.update(own.values())
        if len({p.dtype for p in own.values()}) > 1:
            first = {str(p.dtype).removeprefix("torch."): key for key, p in reversed(own.items())}
            raise ConfigError(
                f"FSDP gathers {' and '.join(f'{dtype} ({key})' for dtype, key in first.items())} together",
                where=f"module {name}" if name else "fsdp",
                remedy="name the modules of one dtype in `modules`, or give all trained parameters the same dtype",
            )


def _submodule(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError as error:
        raise ConfigError(f'the model has no module "{name}"', remedy="give names of named_modules()") from error
