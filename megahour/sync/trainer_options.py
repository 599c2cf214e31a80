"""The base of all trainers' options, which also builds the trainer."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field

from megahour.core.config import Options

if TYPE_CHECKING:
    import torch

    from megahour.sync.group.base import Group
    from megahour.sync.trainers.base import Synchroniser


class TrainerOptions(Options):
    """Options that all trainers have."""

    implementation: ClassVar[str]
    """Module and name, below `sync.trainers`, of the factory called with (model, optimiser, group, options)."""
    in_step: ClassVar[bool] = True
    """Whether all workers take every step together."""
    wraps_model: ClassVar[bool] = False
    """Whether the model must be called as `model(batch)` once the trainer exists, as for torch's own trainers."""
    in_blocks: ClassVar[bool] = False
    """Whether workers step alone for a block and meet at its end: `regrouping.InBlocks`."""

    clip_norm: float | None = Field(None, gt=0)
    """Largest L2 norm of a gradient. Lower it when the loss jumps. None: no clipping."""

    @property
    def node_workers(self) -> int:
        """How many consecutive ranks form a node and count as one."""
        return 1

    @property
    def own_optimiser(self) -> bool:
        """Whether each worker's optimiser has its own state."""
        return self.in_blocks

    @property
    def needs_all(self) -> str:
        """Why a run cannot continue without a lost worker; empty if it can (`regrouping.Regrouping`)."""
        return ""

    def for_run(self, total_steps: int) -> Self:
        """These options for a run whose workers take `total_steps` steps."""
        return self

    def make(
        self, model: torch.nn.Module, optimiser: torch.optim.Optimizer, *, group: Group | None = None
    ) -> Synchroniser:
        """Build the synchroniser of `model` and `optimiser`; a collective call.

        group: the workers; None: torch.distributed's default group, or one worker if it is not initialised.

        Raises ConfigError for a model or an optimiser that the trainer does not support, and on all workers if they
        differ in options, or in more of the model than values.
        """
        base = importlib.import_module("megahour.sync.trainers.base")
        wrapped = importlib.import_module("megahour.sync.trainers.wrapped")
        start = importlib.import_module("megahour.sync.trainers.same_start")
        module, _, name = self.implementation.partition(".")
        wrapped.check_model(model)
        base.check_optimiser(optimiser)
        call = getattr(importlib.import_module(f"megahour.sync.trainers.{module}"), name)
        group = base.default_group(group)
        start.check_same_start(model, f"{type(self).__name__} {self.model_dump_json(exclude_defaults=True)}", group)
        synchroniser: Synchroniser = call(model, optimiser, group, self)
        return synchroniser
