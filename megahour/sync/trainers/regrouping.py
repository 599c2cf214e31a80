"""Extends `Synchroniser` for trainings that survive the loss and return of workers.

When the group changes, a new synchroniser is built for it, and `rejoin` gives it the old one's state. Workers with
equal progress use their own; a worker that is behind or new takes the shared part from one that is further. Of a lost
worker:

    dense        workers have no state of their own
    gtc          its unsent residual is lost. A new worker begins with zeros
    bmuf,        its steps of the open block are lost. The global model and its momentum are shared; with the number of
    local_sgd    workers only η of equation 6 changes
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from megahour.sync.trainers.base import Synchroniser


class Regrouping(Synchroniser, Protocol):
    """A synchroniser whose group may change between two meetings."""

    def rejoin(self, own: Mapping[str, Tensor], peer: Mapping[str, Tensor] | None) -> None:
        """Continue in a new group.

        Parameters
        ----------
        own: this worker's `state()` before it left the old group, or that of a new synchroniser.
        peer: state of a worker that is further, from which the shared part is taken; None: no worker is further.
        """


class InBlocks(Regrouping, Protocol):
    """A synchroniser whose workers step alone for a block, and then meet."""

    deferred: bool
    """Whether `step` leaves the meeting to the training loop, which calls `meet` where `due`."""

    @property
    def due(self) -> bool:
        """Whether the block's steps are done but the workers have not met."""

    def meet(self) -> None:
        """End the open block, if there is one. A collective call.

        If a worker is lost meanwhile, the block stays open, and the remaining workers may call this again in a new
        group. But if the block has ended on one of them, all others take that worker's state.
        """
