"""Assigns the batches of the schedule to workers, and places checkpoints between batches.

The batches of the whole schedule are numbered. Synchronous workers take them in turn: worker r of W takes the batches
r, r + W, and so on (`InTurn`). Asynchronous workers take the next unassigned batch (`FirstCome`), so a slow one takes
fewer and no one waits for it at the end; the workers of a node are synchronous and take theirs together.

A checkpoint at a batch number M holds all batches before M and none from M on. Every worker saves when its next batch
is the first from M on, so workers need not agree on when to save. The first worker to pass a mark decides, by its own
clock, whether all save there, and picks the next mark. Its choice is in a store shared by all workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

import torch

from megahour.sync.group.base import Group

LOOK_S = 10.0  # longest time between two marks, so the longest delay of a requested checkpoint


class SharedStore(Protocol):
    """The methods of `torch.distributed.Store` that are used here."""

    def add(self, key: str, amount: int) -> int: ...

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...


class Claim(NamedTuple):
    """The batches from `first` on that all workers of a step take together; `own` are this worker's, possibly none.

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
    """Takes W · `each` batches per step, `each` for every worker of `group`, from number `at` on.

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
    """Takes the next unassigned batches, `each` for every worker of `node`, from number `at` on.

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


class Mark(NamedTuple):
    """A batch number between two steps, and whether all workers save a checkpoint there."""

    batch: int
    save: bool


class Marks:
    """The marks where checkpoints may be saved: multiples of `unit`, the batches of a common step.

    Parameters
    ----------
    store: None for a single worker.
    at: batch number that this run begins at.
    interval_s: seconds between checkpoints; marks are this far apart, but at most `LOOK_S`.
    requested: whether a checkpoint is to be saved now, whatever the interval. One worker asks at each mark.
    """

    def __init__(
        self,
        store: SharedStore | None,
        at: int,
        interval_s: float,
        unit: int = 1,
        requested: Callable[[], bool] = lambda: False,
    ) -> None:
        self.store, self.interval_s, self.unit, self._requested = store, interval_s, unit, requested
        self.next = at + unit  # soon, so that the first interval is measured
        self._passed, self._passed_s = at, time.monotonic()
        self._saved_s = float("-inf")

    def due(self, claim: Claim | None) -> Mark | None:
        """The mark that this worker passes with its next `claim` (None: end of schedule); None if it passes none.

        A worker may pass several marks at once if others took the batches between; it gets them one by one.
        """
        if claim is not None and claim.first < self.next:
            return None
        batch = self.next
        save, self.next = self._decided(batch)
        self._passed, self._passed_s = batch, time.monotonic()
        if save:
            self._saved_s = self._passed_s
        return Mark(batch, save)

    def _decided(self, mark: int) -> tuple[bool, int]:
        """Whether to save at this mark, and the next mark; decided by the first worker that passes it."""
        if self.store is None:
            return self._save(), self._following(mark)
        if self.store.add(f"passed/{mark}", 1) == 1:
            self.store.set(f"after/{mark}", f"{int(self._save())} {self._following(mark)}")
        save, following = map(int, self.store.get(f"after/{mark}").split())
        return bool(save), following

    def _save(self) -> bool:
        """Whether the interval is over, to within half the distance of two marks, or a checkpoint was requested."""
        waited_s = time.monotonic() - self._saved_s
        return self.interval_s <= LOOK_S or waited_s + LOOK_S / 2 >= self.interval_s or self._requested()

    def _following(self, mark: int) -> int:
        """The next mark, placed by the pace since the last one."""
        seconds = max(time.monotonic() - self._passed_s, 1e-6)
        batches = (mark - self._passed) * min(self.interval_s, LOOK_S) / seconds
        # At most twice as far, since the pace changes, for example from chunks to whole utterances.
        batches = min(batches, 2.0 * max(mark - self._passed, self.unit))
        return mark + self.unit * max(1, round(batches / self.unit))
