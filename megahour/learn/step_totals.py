"""Totals over all workers of the batches of a step, or of a block of steps.

Each worker gets them before the step or the block ends, so that they are not lost with a worker: a run that continues
without it must still count the batches that it has trained on. `Audit` shows that training skips and repeats no data,
by two sums that do not depend on order or workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from megahour.batches.loader import Batch
from megahour.learn.step import Gradients
from megahour.sync.group.base import Group

MODULUS = 2**61 - 1


@dataclass
class Audit:
    """Number of pieces of utterances and the sum of their keys; each chunk counts once per epoch."""

    pieces: int = 0
    keys: int = 0

    def add(self, keys: Sequence[int]) -> None:
        self.pieces += len(keys)
        self.keys = (self.keys + sum(keys)) % MODULUS

    def take(self, other: Audit) -> None:
        """Add another audit's sums."""
        self.pieces, self.keys = self.pieces + other.pieces, (self.keys + other.keys) % MODULUS

    def tensor(self) -> Tensor:
        return torch.tensor([self.pieces, self.keys])

    @staticmethod
    def sum(parts: Iterable[Tensor]) -> Audit:
        """The sum over several workers."""
        total = Audit()
        for pieces, keys in (part.tolist() for part in parts):
            total.take(Audit(pieces, keys))
        return total

    def of_all(self, group: Group) -> dict[str, int]:
        """The sums over all workers, for the last row of the curves. A collective call."""
        return Audit.sum(group.all_gather(self.tensor()).wait()).numbers()

    def numbers(self) -> dict[str, int]:
        return {"pieces": self.pieces, "keys": self.keys}


class TrainedTotals(NamedTuple):
    """Pieces trained on; the numbers of `meters.Sums` about them; whether a worker waits to join."""

    audit: Audit
    sums: tuple[float, int, int, int] = (0.0, 0, 0, 0)
    joining: bool = False

    @staticmethod
    def of(batches: Sequence[Batch], gradients: Gradients | None) -> TrainedTotals:
        """The totals of one worker."""
        audit = Audit()
        for batch in batches:
            audit.add(batch.keys)
        if gradients is None:
            return TrainedTotals(audit)
        lacking = 0 if gradients.without_path is None else int(gradients.without_path)
        return TrainedTotals(audit, (float(gradients.loss), gradients.weight, int(gradients.correct), lacking))

    def plus(self, other: TrainedTotals) -> TrainedTotals:
        """The sum of both."""
        audit = Audit.sum([self.audit.tensor(), other.audit.tensor()])
        (loss, *counts), (more, *others) = self.sums, other.sums
        weight, correct, lacking = (int(a + b) for a, b in zip(counts, others, strict=True))
        return TrainedTotals(audit, (loss + more, weight, correct, lacking))


class StepTotals:
    """Exchanges totals in one message of 56 bytes per step or block.

    Parameters
    ----------
    called: returns whether a worker waits to join; only worker 0 calls it.
    """

    def __init__(self, group: Group, called: Callable[[], bool]) -> None:
        self._group, self._called = group, called

    def of_all(self, own: TrainedTotals) -> TrainedTotals:
        """The totals of all workers, added in the order of ranks. A collective call. Raises WorkerLostError."""
        rows = self._group.all_gather(self._message(own)).wait()
        audit = Audit.sum(row[2:4] for row in rows)
        losses = rows[:, 0].contiguous().view(torch.float64)
        weight, correct, lacking = rows[:, 4:].sum(0).tolist()
        return TrainedTotals(audit, (sum(losses.tolist()), weight, correct, lacking), bool(rows[0, 1]))

    def _message(self, own: TrainedTotals) -> Tensor:
        loss, *counts = own.sums
        joining = self._group.rank == 0 and self._called()
        numbers = torch.tensor([0, int(joining), own.audit.pieces, own.audit.keys, *counts])
        numbers[0] = torch.tensor(loss, dtype=torch.float64).view(torch.int64)
        return numbers
