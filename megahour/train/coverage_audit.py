"""Audits that training skips and repeats no data, with two sums that do not depend on order or workers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
