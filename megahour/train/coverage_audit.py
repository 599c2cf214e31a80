"""What a run has trained on, as two numbers that do not depend on who did it and when: none skipped, none repeated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megahour.sync.group.base import Group

MODULUS = 2**61 - 1


@dataclass
class Audit:
    """Pieces of utterances, and the sum of their keys; a chunk counts once, an utterance in a later epoch again."""

    pieces: int = 0
    keys: int = 0

    def add(self, keys: Sequence[int]) -> None:
        self.pieces += len(keys)
        self.keys = (self.keys + sum(keys)) % MODULUS

    def take(self, other: Audit) -> None:
        """Adds what another has counted."""
        self.pieces, self.keys = self.pieces + other.pieces, (self.keys + other.keys) % MODULUS

    def tensor(self) -> Tensor:
        return torch.tensor([self.pieces, self.keys])

    @staticmethod
    def sum(parts: Iterable[Tensor]) -> Audit:
        """What several workers have trained on together."""
        found = Audit()
        for pieces, keys in (part.tolist() for part in parts):
            found.take(Audit(pieces, keys))
        return found

    def of_all(self, group: Group) -> dict[str, int]:
        """The numbers of all workers together, for the last row of the curves. A collective call."""
        return Audit.sum(group.all_gather(self.tensor()).wait()).numbers()

    def numbers(self) -> dict[str, int]:
        return {"pieces": self.pieces, "keys": self.keys}
