"""N workers, one model: trainers for any PyTorch module and optimiser, around an ordinary training loop.

    worker = sync.gtc(model, optimiser, threshold=0.3, clip_norm=5.0)
    for batch in loader:
        loss(model(batch)).backward()        # as often as one likes: accumulation
        worker.step()                        # in place of optimiser.step()
        optimiser.zero_grad()
    worker.finish()

`sync.build(name, model, optimiser, …)` makes any of `sync.TRAINERS` by its name, and `sync.SyncParams` from a
configuration. See docs/distributed-training.md.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from megahour.sync.config import TRAINERS, SyncParams, build

if TYPE_CHECKING:
    from megahour.sync import virtual as virtual
    from megahour.sync.base import Synchroniser as Synchroniser
    from megahour.sync.bmuf import bmuf as bmuf
    from megahour.sync.ddp import ddp as ddp
    from megahour.sync.ddp import ddp_bf16 as ddp_bf16
    from megahour.sync.ddp import ddp_powersgd as ddp_powersgd
    from megahour.sync.dense import dense as dense
    from megahour.sync.fsdp import fsdp as fsdp
    from megahour.sync.gossip import gossip as gossip
    from megahour.sync.group import Group as Group
    from megahour.sync.group import WorkerLostError as WorkerLostError
    from megahour.sync.gtc import gtc as gtc
    from megahour.sync.local_sgd import local_sgd as local_sgd
    from megahour.sync.torch_group import TorchGroup as TorchGroup
    from megahour.sync.zero import zero as zero

__all__ = ["TRAINERS", "SyncParams", "build"]

_OTHERS = {
    "Group": "group",
    "Synchroniser": "base",
    "TorchGroup": "torch_group",
    "WorkerLostError": "group",
}


class _Package(ModuleType):
    """Trainers have the names of their modules: `sync.gtc` is the function, also after its module was imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, ModuleType) and name in TRAINERS):
            super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    """Trainers and classes are imported when they are used: they need torch, which takes a second."""
    if name == "virtual":
        return importlib.import_module("megahour.sync.virtual")
    module = TRAINERS.get(name) or _OTHERS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"megahour.sync.{module}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *TRAINERS, *_OTHERS, "virtual"])


sys.modules[__name__].__class__ = _Package
