"""Assigns the batches of the schedule to workers, and places checkpoints between batches.

The batches of the whole schedule are numbered. Synchronous workers take them in turn: worker r of W takes the batches
r, r + W, and so on (`InTurn`). Asynchronous workers take the next unassigned batch (`FirstCome`), so a slow one takes
fewer and no one waits for it at the end; the workers of a node are synchronous and take theirs together.

A checkpoint at a batch number M holds all batches before M and none from M on. Every worker saves when its next batch
is the first from M on, so workers need not agree on when to save. The first worker to pass a mark picks the next one,
by its own clock. Both numbers are in a store shared by all workers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

import torch

from megahour.sync.group.base import Group


class SharedStore(Protocol):
    """The methods of `torch.distributed.Store` that are used here."""

    def add(self, key: str, amount: int) -> int: ...

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...


class Claim(NamedTuple):
    """A step's batches, from `first` on, of all workers that take the step; `own` are this worker's, possibly none.

    After the step all batches before `last` are done. `again`: this many owed batches are repeated, and no new ones.
    """

    first: int
    last: int
    own: Sequence[int]
    again: int = 0


class Claims(Protocol):
    """Gives a worker its batches, up to the schedule's `total`."""

    def take(self) -> Claim | None: ...


class InTurn:
    """W batches per step, one for each worker of `group` (or `each` of them), from number `at` on.

    `owed` come first: batches before `at` whose training was lost with a worker.
    """

    def __init__(self, group: Group, at: int, total: int, each: int = 1, owed: Sequence[int] = ()) -> None:
        self.rank, self.size, self.next, self.total, self.each = group.rank, group.size, at, total, each
        self._owed = list(owed)

    def __iter__(self) -> Iterator[int]:
        """All remaining batches of this worker, in order."""
        return chain(self._owed[self.rank :: self.size], range(self.next + self.rank, self.total, self.size))

    def take(self) -> Claim | None:
        """The next step's batches; no communication."""
        if self._owed:
            step, self._owed = self._owed[: self.size * self.each], self._owed[self.size * self.each :]
            return Claim(step[0], self.next, step[self.rank :: self.size], again=len(step))
        if self.next >= self.total:
            return None
        claim = claim_of(self.next, self.size, self.rank, self.total, self.each)
        self.next = claim.last
        return claim


class FirstCome:
    """The next `node_size` · `each` unassigned batches, from number `at` on.

    node: the synchronous workers.
    """

    def __init__(self, store: SharedStore, node: Group | None, at: int, total: int, each: int = 1) -> None:
        self.store, self.node, self.at, self.total, self.each = store, node, at, total, each
        self.size = 1 if node is None else node.size

    def take(self) -> Claim | None:
        """Claim batches through the store; the first worker of a node claims for all."""
        first = torch.zeros(1, dtype=torch.int64)
        if self.node is None or self.node.rank == 0:
            batches = self.size * self.each
            first += self.at + self.store.add("batches", batches) - batches
        if self.node is not None:
            self.node.broadcast(first)
        number = int(first)
        rank = 0 if self.node is None else self.node.rank
        return claim_of(number, self.size, rank, self.total, self.each) if number < self.total else None


def claim_of(first: int, size: int, rank: int, total: int, each: int = 1) -> Claim:
    """The claim of the step that begins at batch `first`, for worker `rank` of `size`."""
    last = min(first + size * each, total)
    return Claim(first, last, range(first + rank, last, size))


class Marks:
    """The batch numbers of checkpoints. Marks are multiples of `unit`, the batches of a common step.

    Parameters
    ----------
    store: None for a single worker.
    at: batch number that this run begins at.
    interval_s: seconds between checkpoints.
    """

    def __init__(self, store: SharedStore | None, at: int, interval_s: float, unit: int = 1) -> None:
        self.store, self.interval_s, self.unit = store, interval_s, unit
        self.next = at + unit  # soon, so that the first interval is measured
        self._passed, self._passed_s = at, time.monotonic()

    def due(self, claim: Claim | None) -> int | None:
        """The mark that this worker passes with its next claim (None: the end of the schedule); None if it passes none.

        A worker may pass several marks at once if others took the batches between; it gets them one by one.
        """
        if claim is not None and claim.first < self.next:
            return None
        mark = self.next
        self.next = self._following(mark)
        self._passed, self._passed_s = mark, time.monotonic()
        return mark

    def _following(self, mark: int) -> int:
        """The mark after this one, picked by the first worker that asks."""
        if self.store is None:
            return self._guess(mark)
        if self.store.add(f"passed/{mark}", 1) == 1:
            self.store.set(f"after/{mark}", str(self._guess(mark)))
        return int(self.store.get(f"after/{mark}"))

    def _guess(self, mark: int) -> int:
        """The next mark: as many batches on as fit into the interval at the pace since the last mark."""
        seconds = max(time.monotonic() - self._passed_s, 1e-6)
        batches = (mark - self._passed) * self.interval_s / seconds
        # At most twice as far, since the pace changes, for example from chunks to whole utterances.
        batches = min(batches, 2.0 * max(mark - self._passed, self.unit))
        return mark + self.unit * max(1, round(batches / self.unit))
