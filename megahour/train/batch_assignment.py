"""Who trains on which batch of the schedule, and between which two batches a checkpoint lies.

The batches of the whole schedule are numbered. Workers in step take them in turn: worker r of W the batches r, r + W,
and so on (`InTurn`). Workers that do not wait for each other take the next one that no one has (`FirstCome`), so that a
slow worker takes fewer and no one waits for it at the end; the workers of a node, in step, take theirs together.

A checkpoint lies at a batch number M: it holds all batches before M and none from M on. Every worker saves when its
next batch is the first from M on, so that none has to agree with another when to save. Which M is next says the worker
that first passes the last one, by its clock. Both numbers are in a store that all workers see.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

import torch

from megahour.sync.group.base import Group


class SharedStore(Protocol):
    """What of `torch.distributed.Store` is needed."""

    def add(self, key: str, amount: int) -> int: ...

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...


class Claim(NamedTuple):
    """A step's batches, from `first` on, of the workers that make it together; `own` are this worker's, or none.

    After it the batches before `last` are done; `again`: the first so many of those still owed, and no new ones.
    """

    first: int
    last: int
    own: Sequence[int]
    again: int = 0


class Claims(Protocol):
    """Gives a worker its batches until the schedule of `total` is through."""

    def take(self) -> Claim | None: ...


class InTurn:
    """W batches a step, one for each worker of `group`, from number `at` on; or `each` times as many.

    `owed` come first: batches before `at` of which a lost worker has taken what it had done along.
    """

    def __init__(self, group: Group, at: int, total: int, each: int = 1, owed: Sequence[int] = ()) -> None:
        self.rank, self.size, self.next, self.total, self.each = group.rank, group.size, at, total, each
        self._owed = list(owed)

    def __iter__(self) -> Iterator[int]:
        """All of this worker's batches that are still to come, in order."""
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
    """The next `node_size` · `each` batches that no node has taken, from number `at` on.

    `node` are the workers in step.
    """

    def __init__(self, store: SharedStore, node: Group | None, at: int, total: int, each: int = 1) -> None:
        self.store, self.node, self.at, self.total, self.each = store, node, at, total, each
        self.size = 1 if node is None else node.size

    def take(self) -> Claim | None:
        """Asks the store; inside a node its first worker asks for all."""
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
    """The claim of the step that begins at batch `first`, for worker `rank` of the `size` that make it together."""
    last = min(first + size * each, total)
    return Claim(first, last, range(first + rank, last, size))


class Marks:
    """Where the next checkpoint lies. Marks are multiples of `unit`, the batches of a step made together.

    Parameters
    ----------
    store: None where there is one worker.
    at: batch number that this run begins at.
    interval_s: seconds between checkpoints.
    """

    def __init__(self, store: SharedStore | None, at: int, interval_s: float, unit: int = 1) -> None:
        self.store, self.interval_s, self.unit = store, interval_s, unit
        self.next = at + unit  # soon, so that the first interval is measured
        self._passed, self._passed_s = at, time.monotonic()

    def due(self, claim: Claim | None) -> int | None:
        """The mark that this worker's next claim (None: the end) is the first one beyond; None where there is none.

        A worker may pass several marks at once when others took the batches between; it is told of them one by one.
        """
        if claim is not None and claim.first < self.next:
            return None
        mark = self.next
        self.next = self._following(mark)
        self._passed, self._passed_s = mark, time.monotonic()
        return mark

    def _following(self, mark: int) -> int:
        """The mark after this one: said by whoever asks first."""
        if self.store is None:
            return self._guess(mark)
        if self.store.add(f"passed/{mark}", 1) == 1:
            self.store.set(f"after/{mark}", str(self._guess(mark)))
        return int(self.store.get(f"after/{mark}"))

    def _guess(self, mark: int) -> int:
        """As many batches on as fit into the interval at the pace since the last mark."""
        seconds = max(time.monotonic() - self._passed_s, 1e-6)
        batches = (mark - self._passed) * self.interval_s / seconds
        # Twice as far at most: the pace changes, with whole utterances after chunks for one.
        batches = min(batches, 2.0 * max(mark - self._passed, self.unit))
        return mark + self.unit * max(1, round(batches / self.unit))
