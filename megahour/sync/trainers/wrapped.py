"""Rejects models that average their gradients themselves, since a trainer here would average them twice."""

from __future__ import annotations

import sys

from torch import nn

from megahour.core.errors import ConfigError

_WRAPPERS = (
    ("torch.nn.parallel", "DistributedDataParallel", "pass its .module, or use sync.ddp on the model without it"),
    ("torch.nn.parallel", "DataParallel", "pass its .module, and start one worker for each GPU"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", "pass the model that it wraps, or use sync.fsdp on that"),
    ("torch.distributed.fsdp", "FSDPModule", "pass the model without fully_shard, or use sync.fsdp on that"),
)
"""torch's module, class name, and remedy."""


def check_model(model: nn.Module) -> None:
    """Reject models that are or contain one of torch's wrappers; compiled models (torch.compile) pass.

    Raises
    ------
    ConfigError: the model or a part of it is a DistributedDataParallel, DataParallel or FSDP, or a parameter is a
        DTensor, of which each worker holds only a part.
    """
    # A class whose module was never imported has no instances; importing FSDP takes a second.
    kinds = [
        (getattr(sys.modules[module], name), name, remedy)
        for module, name, remedy in _WRAPPERS
        if module in sys.modules and hasattr(sys.modules[module], name)
    ]
    for path, part in model.named_modules():
        for kind, name, remedy in kinds:
            if isinstance(part, kind):
                shown = "fully_shard" if name == "FSDPModule" else name
                raise ConfigError(f"{_named(path)} is wrapped in torch's {shown}, which averages too", remedy=remedy)
    tensors = sys.modules.get("torch.distributed.tensor")
    for path, parameter in model.named_parameters():
        if tensors is not None and isinstance(parameter, tensors.DTensor):
            raise ConfigError(
                f'parameter "{path}" is a DTensor, of which each worker holds a part',
                remedy="pass the model before it is parallelised, or use sync.fsdp on that",
            )


def _named(path: str) -> str:
    return f'the model\'s part "{path}"' if path else "the model"
