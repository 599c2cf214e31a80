"""What a synchroniser offers beside `Synchroniser` so that a training goes on when workers are lost and come back.

The group changes, and with it the synchroniser, which is made again for the new one; `rejoin` gives it what the old one
knew. Workers that are as far as each other have it of their own; who is behind, or new, takes what all have in common
from one who is further. A lost worker's own part is lost:

    dense        nothing is a worker's own
    gtc          its residual: what it owed the weights and had not sent yet. A new worker begins with zeros
    bmuf,        its steps of the open block. The global model and its momentum are common: with the workers' number
    local_sgd    only η of equation 6 changes
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from megahour.sync.trainers.base import Synchroniser


class Regrouping(Synchroniser, Protocol):
    """A synchroniser whose workers may change between two meetings of theirs."""

    def rejoin(self, own: Mapping[str, Tensor], peer: Mapping[str, Tensor] | None) -> None:
        """Goes on in a new group.

        Parameters
        ----------
        own: `state()` of this worker before it left the old group, or of a new synchroniser.
        peer: state of a worker that is further, from which what is common is taken; None: this one is as far as any.
        """


class InBlocks(Regrouping, Protocol):
    """One whose workers step alone for a block, and then meet."""

    deferred: bool
    """Whether `step` leaves the meeting to the training loop, which calls `meet` where `due`."""

    @property
    def due(self) -> bool:
        """Whether the block's steps are done, and its meeting is not."""

    def meet(self) -> None:
        """Ends the block that is open, if one is. A collective call.

        When a worker is lost meanwhile the block stays open, and those left may call it again in a new group, unless it
        has ended on another: then all others take its state.
        """
