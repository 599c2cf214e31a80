"""What the batches of a step, or of a block of steps, were, of all workers together.

It is known to each before the step, or the block's end, so that none takes it along: a run that goes on without a lost
worker still has to count what that one has trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from megahour.batches.loader import Batch
from megahour.sync.group.base import Group
from megahour.train.coverage_audit import Audit
from megahour.train.step import Gradients


class TrainedTotals(NamedTuple):
    """Pieces trained on; their summed loss, weight and correct frames; whether a worker waits to join."""

    audit: Audit
    sums: tuple[float, int, int] = (0.0, 0, 0)
    joining: bool = False

    @staticmethod
    def of(batches: Sequence[Batch], gradients: Gradients | None) -> TrainedTotals:
        """Those of one worker."""
        audit = Audit()
        for batch in batches:
            audit.add(batch.keys)
        if gradients is None:
            return TrainedTotals(audit)
        return TrainedTotals(audit, (float(gradients.loss), gradients.weight, int(gradients.correct)))

    def plus(self, other: TrainedTotals) -> TrainedTotals:
        """Those of both."""
        audit = Audit.sum([self.audit.tensor(), other.audit.tensor()])
        (loss, weight, correct), (more, heavier, right) = self.sums, other.sums
        return TrainedTotals(audit, (loss + more, weight + heavier, correct + right))


class StepTotals:
    """One message of 48 bytes a step, or a block.

    Parameters
    ----------
    called: whether a worker waits to join; worker 0 asks.
    """

    def __init__(self, group: Group, called: Callable[[], bool]) -> None:
        self._group, self._called = group, called

    def of_all(self, own: TrainedTotals) -> TrainedTotals:
        """Those of all workers, added in the order of ranks. A collective call. Raises WorkerLostError."""
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
