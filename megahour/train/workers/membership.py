"""A worker's membership in groups: its side of the meetings that `coordinator` holds.

A worker that has lost another, has no group yet, or is called because one waits, leaves its process group and reports
its position. It gets its rank in the next group, in which the furthest worker comes first, and forms a process group
with the others in the coordinator's store, which survives the loss of any worker.

    here/<id>               a worker waits: {"meeting": number of its meeting, "at": its position, "prepared": …}
    asked                   how often workers have begun to wait, so that the coordinator need not poll each key
    place/<id>/<meeting>    the answer: `Place`
    call/<epoch>            a worker waits to join the group of that number
    lost/<epoch>            a worker of that group is lost, which may still be forming (`forming`)
"""

from __future__ import annotations

import gc
import json
import os
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from megahour.sync.group.torch_group import TorchGroup
from megahour.train.workers.forming import form

STORE, MEMBER = "MEGAHOUR_STORE", "MEGAHOUR_MEMBER"  # of a worker's environment: HOST:PORT, its number
KEPT, ENDED, TAKEN = "kept", "ended", "taken"  # a prepared step is ended, or another worker's part taken
GRACE_S = 0.05  # short, since the coordinator knows which workers are lost


class Place(NamedTuple):
    """A worker's place in group number `epoch`.

    fresh: no worker has begun; all resume from a checkpoint. behind: some workers are new or behind, and take their
    state from rank 0. lost: workers that the run has lost so far. Of replicas (`replicas`): the furthest worker has
    rank `source`, and `part` says what becomes of this worker's part of the model.
    """

    epoch: int
    rank: int
    size: int
    fresh: bool
    behind: bool
    lost: int
    source: int = 0
    part: str = KEPT


class GroupMember:
    """This worker's membership. timeout_s: how long its calls wait for other workers. shard: workers of a replica."""

    def __init__(self, timeout_s: float, shard: int = 1) -> None:
        self._store, self._shard = _client(timeout_s), shard
        self._id, self._timeout_s, self._meetings, self._epoch = os.environ[MEMBER], timeout_s, 0, -1

    def meet(self, at: tuple[int, ...], *, prepared: bool = False) -> Place:
        """Wait for a place in the next group.

        at: finished rounds, rows of the curves, and whether the next round's steps are done; (-1, -1): not begun.
        prepared: this worker can end the next round without the others.
        """
        gc.collect()  # references to the old group would keep its connections open, and its peers waiting
        self._meetings += 1
        self._store.set(f"here/{self._id}", json.dumps({"meeting": self._meetings, "at": at, "prepared": prepared}))
        self._store.add("asked", 1)
        key = f"place/{self._id}/{self._meetings}"
        self._store.wait([key], timedelta(days=7))  # the process ends with the coordinator's
        place = Place(**json.loads(self._store.get(key)))
        self._epoch = place.epoch
        return place

    def group(self, place: Place) -> TorchGroup:
        """The process group of that meeting. A collective call. Raises DistError, WorkerLostError."""
        stores = (_client(self._timeout_s), self._store)
        form(self._name(), stores, place.rank, place.size, self._lost, self._timeout_s, self._shard)
        return TorchGroup(timeout_s=self._timeout_s, grace_s=GRACE_S, helped=False)

    def leave(self) -> None:
        """Leave the group; its peers' pending calls fail once nothing refers to it any more."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def store(self) -> PrefixStore:
        """The store of the current group."""
        return PrefixStore(self._name(), self._store)

    def called(self) -> bool:
        """Whether a worker waits to join."""
        return self._store.check([f"call/{self._epoch}"])

    def _lost(self) -> bool:
        return self._store.check([f"lost/{self._epoch}"])

    def _name(self) -> str:
        return f"group/{self._epoch}"


def _client(timeout_s: float) -> TCPStore:
    host, port = os.environ[STORE].rsplit(":", 1)
    return TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=max(timeout_s, 60.0)))
