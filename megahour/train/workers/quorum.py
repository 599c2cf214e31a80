"""Decides which of the waiting workers form the next group, in which order, and whose state counts.

A replica needs a worker for each part of the model (`parallel.shard`), and whole replicas form the group. Workers that
are left over wait for others; from then on their state is void, since the group goes on without it.

All workers of a group end a step together (`replicas`): before any of them changes its weights, all of them can. So if
one has ended a step, all others that were in its group have it prepared, and end it as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from megahour.train.workers.membership import ENDED, KEPT, TAKEN

NEW = [-1, -1]


class Asking(NamedTuple):
    """A worker that waits for its place: the number of its meeting, its position, and whether it is prepared."""

    meeting: int
    at: list[int]
    prepared: bool = False

    def void(self) -> Asking:
        """The same worker without its state."""
        return Asking(self.meeting, NEW)


class Quorum(NamedTuple):
    """The next group: numbers of its workers in the order of ranks; the rank of the furthest; what becomes of each
    worker's part. fresh: no worker has some part, so that all resume from a checkpoint. behind: positions differ.
    """

    order: list[int]
    source: int
    parts: list[str]
    fresh: bool
    behind: bool


def quorum_of(asking: Mapping[int, Asking], part_of: Mapping[int, int], shard: int) -> Quorum | None:
    """The next group of the workers that wait, by number; None: there is no whole replica.

    part_of: the part of the model that each worker is for, 0 … shard - 1.
    """
    top = max((each.at for each in asking.values()), default=NEW)

    def holds(number: int) -> bool:
        each = asking[number]
        return top != NEW and (each.at[0] == top[0] or (each.prepared and each.at[0] == top[0] - 1))

    def rank_of(number: int) -> tuple[bool, list[int], int]:
        return (not holds(number), [-n for n in asking[number].at], number)

    columns = [sorted((n for n in asking if part_of[n] == part), key=rank_of) for part in range(shard)]
    replicas = list(zip(*columns, strict=False))
    if not replicas:
        return None
    order = [number for replica in replicas for number in replica]
    source = next(rank for rank, number in enumerate(order) if asking[number].at == top)
    states = [TAKEN if not holds(n) else KEPT if asking[n].at[0] == top[0] else ENDED for n in order]
    fresh = not all(map(holds, replicas[0]))
    return Quorum(order, source, states, fresh, any(asking[n].at != top for n in order))
