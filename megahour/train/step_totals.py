"""What the batches of a step were, of all workers together: known to each before the step, so that none takes it along.

A run that goes on without a lost worker still has to count what that one has trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from megahour.batches.loader import Batch
from megahour.sync.group.base import Group
from megahour.train.coverage_audit import Audit
from megahour.train.step import Gradients


class Regroup(Exception):
    """A worker waits to join: all leave their group at this step's edge, and meet."""


class TrainedTotals(NamedTuple):
    """Pieces of a step; its summed loss, weight and correct frames; whether a worker waits to join."""

    audit: Audit
    sums: tuple[float, int, int]
    joining: bool = False

    @staticmethod
    def of(batches: Sequence[Batch], gradients: Gradients | None) -> TrainedTotals:
        """Those of one worker."""
        audit = Audit()
        for batch in batches:
            audit.add(batch.keys)
        if gradients is None:
            return TrainedTotals(audit, (0.0, 0, 0))
        return TrainedTotals(audit, (float(gradients.loss), gradients.weight, int(gradients.correct)))


class StepTotals:
    """One message of 48 bytes a step.

    Parameters
    ----------
    called: whether a worker waits to join; worker 0 asks.
    """

    def __init__(self, group: Group, called: Callable[[], bool]) -> None:
        self._group, self._called = group, called

    def of_all(self, batches: Sequence[Batch], gradients: Gradients | None) -> TrainedTotals:
        """TrainedTotals of all workers, added in the order of ranks. A collective call. Raises WorkerLostError."""
        own = TrainedTotals.of(batches, gradients)
        loss, weight, correct = own.sums
        joining = self._group.rank == 0 and self._called()
        numbers = torch.tensor([own.audit.pieces, own.audit.keys, weight, correct, int(joining), 0])
        numbers[5] = torch.tensor(loss, dtype=torch.float64).view(torch.int64)
        rows = self._group.all_gather(numbers).wait()
        audit = Audit.sum(row[:2] for row in rows)
        losses = rows[:, 5].contiguous().view(torch.float64)
        return TrainedTotals(
            audit, (sum(losses.tolist()), int(rows[:, 2].sum()), int(rows[:, 3].sum())), bool(rows[0, 4])
        )
