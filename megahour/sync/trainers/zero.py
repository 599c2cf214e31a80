"""PyTorch's ZeRO-1 behind the `Synchroniser` interface, as a baseline: DDP's gradients and a sharded optimiser."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.optim import ZeroRedundancyOptimizer

from megahour.core.errors import ConfigError
from megahour.sync.group.base import Group
from megahour.sync.params import ZeroOptions
from megahour.sync.trainers.base import step_alone
from megahour.sync.trainers.ddp import Ddp, check_plain_mean, process_group_of
from megahour.sync.trainers.flat import trainable


def zero(model: nn.Module, optimiser: torch.optim.Optimizer, group: Group, options: ZeroOptions) -> Ddp | Zero:
    """ZeRO stage 1: each worker updates a part of the parameters and sends it to all. Gradients are those of `Ddp`.

    `optimiser` provides the class and the settings, also later ones (learning rate schedules), but its own state stays
    empty; each worker's part is in `state()`. A single worker takes the plain loop's steps.

    Raises ConfigError if the optimiser already has a state (as Adagrad has from the start), or has settings that are
    missing in its `defaults`, from which the parts are made.
    """
    alone = process_group_of(group, "zero") is None
    mean = Ddp(model, optimiser, group, options)
    return mean if alone else Zero(model, optimiser, group, options.clip_norm, mean)


def _settings_of(optimiser: torch.optim.Optimizer) -> list[str]:
    """Settings that the optimiser's constructor takes. Raises ConfigError if `defaults` lacks one of them."""
    _, _, *rest = inspect.signature(type(optimiser).__init__).parameters.values()
    names = [p.name for p in rest if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if unknown := [name for name in names if name not in optimiser.defaults]:
        raise ConfigError(
            f"{type(optimiser).__name__} has settings that are not in its `defaults`: {', '.join(unknown)}",
            remedy="keep all settings in `defaults` under the constructor's names: zero builds one optimiser per part",
        )
    return names


class Zero:
    """The `Synchroniser` that `zero` returns for several workers."""

    def __init__(
        self, model: nn.Module, optimiser: torch.optim.Optimizer, group: Group, clip_norm: float | None, mean: Ddp
    ) -> None:
        if optimiser.state:
            raise ConfigError(
                "the optimiser already has a state", remedy="create the trainer first, then restore its state()"
            )
        self.metrics = mean.metrics
        self._optimiser, self._clip_norm, self._mean, self.group = optimiser, clip_norm, mean, group
        self._parameters = trainable(model)
        known = _settings_of(optimiser)
        self._parts = ZeroRedundancyOptimizer(
            [dict(settings) for settings in optimiser.param_groups],
            type(optimiser),
            process_group=process_group_of(group, "zero"),
            **{name: value for name, value in optimiser.defaults.items() if name in known},
        )

    def step(self, *, weight: float = 1.0, scaler: GradScaler | None = None) -> None:
        """Each worker updates its part with the mean gradient and sends it. Raises like `Ddp.step`."""
        check_plain_mean("zero", weight)
        self._mean.check_calls()
        for ours, theirs in zip(self._optimiser.param_groups, self._parts.param_groups, strict=True):
            theirs.update({name: value for name, value in ours.items() if name != "params"})
        step_alone(self._parameters, self._parts, self._clip_norm, scaler, self.metrics)
        vars(self._optimiser)["_opt_called"] = True  # else torch's schedules warn that no step was taken
        self._mean.count()
        sent = sum(p.numel() * p.element_size() for g in self._parts.optim.param_groups for p in g["params"])
        total = sum(p.numel() * p.element_size() for p in self._parameters)
        self.group.traffic.sent_bytes += sent * (self.group.size - 1)
        self.group.traffic.received_bytes += total - sent

    def finish(self) -> None:
        """Like `Ddp.finish`; the weights are equal on all workers after each step."""
        self._mean.finish()

    def state(self) -> dict[str, Tensor]:
        """This worker's part of the optimiser's state, by `{number of the parameter}.{name}`."""
        numbers = {parameter: number for number, parameter in enumerate(self._parameters)}
        return {
            f"{numbers[parameter]}.{name}": torch.as_tensor(value).detach().clone()
            for parameter, values in self._parts.optim.state.items()
            for name, value in values.items()
            if value is not None
        }

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Restore this worker's part from the states of all workers, whichever of them held it.

        Raises ConfigError if there is no state, or it is of another trainer or model.
        """
        self._check(states)
        own = {parameter for settings in self._parts.optim.param_groups for parameter in settings["params"]}
        for state in states:
            for key, value in state.items():
                number, _, name = key.partition(".")
                parameter = self._parameters[int(number)]
                if parameter in own:
                    device = parameter.device if value.dim() else value.device
                    self._parts.optim.state[parameter][name] = value.to(device).clone()

    def _check(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        if not states:
            raise ConfigError("no state to restore from", remedy="give the states of all workers of the checkpoint")
        for key, value in ((key, value) for state in states for key, value in state.items()):
            number = key.partition(".")[0]
            if not number.isdecimal():
                raise ConfigError(
                    f'a state with "{key}" is not one of zero',
                    remedy="resume with the trainer that wrote the checkpoint, or restore only the model",
                )
            shapes = [tuple(parameter.shape) for parameter in self._parameters[int(number) : int(number) + 1]]
            if not shapes or (value.dim() == len(shapes[0]) and tuple(value.shape) != shapes[0]):
                raise ConfigError(
                    f'"{key}" of shape {tuple(value.shape)} belongs to another model, whose parameter has '
                    f"{shapes[0] if shapes else 'no such number'}",
                    remedy="resume with the model that wrote the checkpoint",
                )
