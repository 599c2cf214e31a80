"""One key chooses the trainer: `trainer: gtc`, and its options beside it."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from megahour.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    import torch

    from megahour.sync.base import Synchroniser
    from megahour.sync.group import Group

TRAINERS = {
    "dense": "dense",
    "gtc": "gtc",
    "bmuf": "bmuf",
    "gossip": "gossip",
    "local_sgd": "local_sgd",
    "ddp": "ddp",
    "ddp_powersgd": "ddp",
    "ddp_bf16": "ddp",
    "zero": "zero",
    "fsdp": "fsdp",
}
"""Names of trainers, and the modules of this package that have the functions of those names."""


class SyncParams(BaseModel):
    """How workers train one model: a trainer, and beside it the options of its function.

    `SyncParams(trainer="gtc", clip_norm=5.0, threshold=0.3)`; an option that the trainer does not have is an error.
    """

    model_config = ConfigDict(extra="allow", frozen=True, validate_default=True)

    trainer: str = Field("dense", description=f"one of {', '.join(TRAINERS)}")
    clip_norm: float | None = Field(None, gt=0, description="largest norm of a worker's gradient; none: not clipped")
    timeout_s: float = Field(300.0, gt=0, description="seconds that a call waits before a worker is called lost")

    @model_validator(mode="after")
    def _check(self) -> SyncParams:
        check(self.trainer, self.options)
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The trainer's own options."""
        return dict(self.__pydantic_extra__ or {})

    def build(
        self, model: torch.nn.Module, optimiser: torch.optim.Optimizer, *, group: Group | None = None
    ) -> Synchroniser:
        """The synchroniser; `group` None: that of torch.distributed's default process group."""
        if group is None:
            from megahour.sync.torch_group import TorchGroup

            group = TorchGroup(timeout_s=self.timeout_s)
        return build(self.trainer, model, optimiser, group=group, clip_norm=self.clip_norm, **self.options)


def build(
    trainer: str,
    model: torch.nn.Module,
    optimiser: torch.optim.Optimizer,
    *,
    group: Group | None = None,
    **options: Any,
) -> Synchroniser:
    """The synchroniser of the trainer of that name, made of `model` and `optimiser`; a collective call.

    `group` None: torch.distributed's default group; `options` are those of the trainer's function, which says what
    happens when a worker is lost.

    Raises ConfigError for a trainer or option that there is not, with the nearest one that there is, and for a value
    that is not of the option's type; "1e-3" of a YAML file is a number.
    """
    check(trainer, options)
    function = getattr(importlib.import_module(f"megahour.sync.{TRAINERS[trainer]}"), trainer)
    kinds = get_type_hints(function)
    typed = {name: _typed(trainer, name, value, kinds[name]) for name, value in options.items()}
    made: Synchroniser = function(model, optimiser, group=group, **typed)
    return made


def _typed(trainer: str, name: str, value: object, kind: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        said = error.errors()[-1]["msg"]
        what = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
        raise ConfigError(f'trainer "{trainer}": {name} = {value!r}: {said}', remedy=f"give {what}") from None


def check(trainer: str, options: dict[str, Any]) -> None:
    """Raises ConfigError unless there is such a trainer and it has these options; does not import torch."""
    if trainer not in TRAINERS:
        raise ConfigError(
            f'trainer "{trainer}" is unknown{nearest(trainer, TRAINERS)}', remedy=f"choose one of {', '.join(TRAINERS)}"
        )
    known = options_of(trainer)
    for name in options:
        if name not in known:
            raise ConfigError(
                f'trainer "{trainer}" has no option "{name}"{nearest(name, known)}',
                remedy=f"its options are {', '.join(known)}",
            )


@functools.cache
def options_of(trainer: str) -> tuple[str, ...]:
    """Names of a trainer's options, read from its source: importing it would import torch."""
    spec = importlib.util.find_spec(f"megahour.sync.{TRAINERS[trainer]}")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text("utf-8"))
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == trainer)
    return tuple(argument.arg for argument in function.args.kwonlyargs if argument.arg != "group")
