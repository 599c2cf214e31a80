"""Builds a trainer from its name and options, and gives each trainer a function of its name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from megahour.core.config import descriptions, parse
from megahour.core.errors import ConfigError, nearest
from megahour.sync.params import TRAINERS
from megahour.sync.trainer_options import TrainerOptions

if TYPE_CHECKING:
    import torch

    from megahour.sync.group.base import Group
    from megahour.sync.trainers.base import Synchroniser


OTHER_NAMES = {
    **dict.fromkeys(("adpsgd", "hadpsgd"), "gossip, which is ADPSGD, and H-ADPSGD with node_size above 1"),
    **dict.fromkeys(("sgd", "ssgd", "syncsgd", "synchronous", "allreduce", "horovod"), "dense"),
    **dict.fromkeys(("gradientthresholdcompression", "thresholdcompression", "strom"), "gtc"),
    **dict.fromkeys(("blockmomentum", "blockwisemodelupdatefiltering", "bmufnbm", "bmufcbm"), "bmuf"),
    **dict.fromkeys(("modelaveraging", "parameteraveraging", "mavg", "fedavg"), "local_sgd"),
    "powersgd": "ddp_powersgd",
}
"""Names that papers and other programs have for trainers, as `_plain` gives them."""


def _plain(name: str) -> str:
    """A name's lower-case letters and digits alone.

    >>> _plain("H-ADPSGD")
    'hadpsgd'
    """
    return "".join(filter(str.isalnum, name.lower()))


def options_of(trainer: str, options: Mapping[str, Any]) -> TrainerOptions:
    """The options model of the trainer with this name; does not import torch.

    >>> options_of("gtc", {"density": 0.001}).node_workers
    1

    Raises
    ------
    ConfigError: an unknown trainer or option (with the nearest known name), or an invalid value.
    """
    if trainer not in TRAINERS:
        plain = _plain(trainer)
        own = next((name for name in TRAINERS if _plain(name) == plain), OTHER_NAMES.get(plain))
        hint = f" – did you mean {own}?" if own else nearest(trainer, TRAINERS)
        raise ConfigError(f'unknown trainer "{trainer}"{hint}', remedy=f"choose one of {', '.join(TRAINERS)}")
    kind = TRAINERS[trainer]
    return parse(kind, options, where=f"trainer {trainer}", remedy=f"its options are {', '.join(kind.model_fields)}")


def from_config(config: Mapping[str, Any]) -> TrainerOptions:
    """Options from a section of a configuration: the key `trainer` and that trainer's options.

    >>> from_config({"trainer": "gtc", "threshold": 0.3, "clip_norm": 5}).clip_norm
    5.0

    Raises ConfigError like `options_of`.
    """
    options = dict(config)
    return options_of(str(options.pop("trainer", "dense")), options)


def build(
    trainer: str,
    model: torch.nn.Module,
    optimiser: torch.optim.Optimizer,
    *,
    group: Group | None = None,
    **options: Any,
) -> Synchroniser:
    """Build the synchroniser of the trainer with this name for `model` and `optimiser`; a collective call.

    All workers get the weights of rank 0. group: see `TrainerOptions.make`. options: fields of `sync.params`.

    Raises ConfigError like `options_of` and `TrainerOptions.make`.
    """
    return options_of(trainer, options).make(model, optimiser, group=group)


class TrainerFunction(Protocol):
    """`build` of one trainer."""

    def __call__(
        self,
        model: torch.nn.Module,
        optimiser: torch.optim.Optimizer,
        *,
        group: Group | None = None,
        **options: Any,
    ) -> Synchroniser: ...


def trainer_function(trainer: str) -> TrainerFunction:
    """A function that builds synchronisers of one trainer; its `help` lists the trainer's options."""

    def make(
        model: torch.nn.Module,
        optimiser: torch.optim.Optimizer,
        *,
        group: Group | None = None,
        **options: Any,
    ) -> Synchroniser:
        return build(trainer, model, optimiser, group=group, **options)

    kind = TRAINERS[trainer]
    make.__name__ = make.__qualname__ = trainer
    lines = [f"{name}: {text}" for name, text in descriptions(kind).items()]
    make.__doc__ = "\n".join([inspect.cleandoc(kind.__doc__ or ""), "", "Parameters", "----------", *lines])
    plain = list(inspect.signature(make).parameters.values())[:3]
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.annotation)
        for name, field in kind.model_fields.items()
    ]
    vars(make)["__signature__"] = inspect.Signature([*plain, *named])
    return make
