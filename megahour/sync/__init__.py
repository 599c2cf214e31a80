"""Trainers that train one PyTorch model with N workers, called from an ordinary training loop.

    worker = sync.gtc(model, optimiser, threshold=0.3, clip_norm=5.0)
    for batch in loader:
        loss(model(batch)).backward()        # several times to accumulate
        worker.step()                        # in place of optimiser.step()
        optimiser.zero_grad()
    worker.finish()

`sync.build(name, model, optimiser, …)` takes the trainer's name, and `sync.from_config(section)` both name and options
from a configuration. `sync.as_optimiser(worker, optimiser)` is for frameworks that call `optimizer.step()` themselves.
See docs/distributed-training.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from megahour.sync.build import build, from_config, trainer_function
from megahour.sync.params import TRAINERS
from megahour.sync.trainer_options import TrainerOptions

if TYPE_CHECKING:
    from megahour.sync.group import virtual as virtual
    from megahour.sync.group.base import Group as Group
    from megahour.sync.group.base import WorkerFailedError as WorkerFailedError
    from megahour.sync.group.base import WorkerLostError as WorkerLostError
    from megahour.sync.group.torch_group import TorchGroup as TorchGroup
    from megahour.sync.trainers.base import Synchroniser as Synchroniser
    from megahour.sync.worker_optimiser import as_optimiser as as_optimiser

__all__ = ["TRAINERS", "TrainerOptions", "build", "from_config", *TRAINERS]

dense = trainer_function("dense")
gtc = trainer_function("gtc")
bmuf = trainer_function("bmuf")
diloco = trainer_function("diloco")
streaming_diloco = trainer_function("streaming_diloco")
gossip = trainer_function("gossip")
local_sgd = trainer_function("local_sgd")
ddp = trainer_function("ddp")
ddp_powersgd = trainer_function("ddp_powersgd")
ddp_bf16 = trainer_function("ddp_bf16")
zero = trainer_function("zero")
fsdp = trainer_function("fsdp")

_LAZY = {
    "Group": "group.base",
    "Synchroniser": "trainers.base",
    "TorchGroup": "group.torch_group",
    "WorkerFailedError": "group.base",
    "WorkerLostError": "group.base",
    "as_optimiser": "worker_optimiser",
}


def __getattr__(name: str) -> Any:
    """Import names that need torch only when they are used, since torch takes a second."""
    if name == "virtual":
        return importlib.import_module("megahour.sync.group.virtual")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"megahour.sync.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_LAZY, "virtual"])
