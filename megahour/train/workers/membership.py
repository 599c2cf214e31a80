"""Which workers train together now: a worker's side of the meetings that `coordinator` holds.

A worker that has lost another, has no group yet, or is called because one waits, leaves its process group and says how
far it is. It is told its rank in the next group, in which who is furthest comes first, and makes a process group with
the others in the coordinator's store, which no lost worker takes with it.

    here/<id>               a worker waits: {"meeting": its how manyeth, "at": how far it is}
    asked                   how often one has begun to wait, so that the coordinator need not ask for each
    place/<id>/<meeting>    the answer: `Place`
    call/<epoch>            a worker waits to join the group of that number
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

STORE, MEMBER = "MEGAHOUR_STORE", "MEGAHOUR_MEMBER"  # of a worker's environment: HOST:PORT, its number
FORM_S = 10.0  # a process group forms in less, unless a worker is lost just then
GRACE_S = 0.05  # the coordinator knows who is lost: no one need be asked


class Place(NamedTuple):
    """A worker's place in group number `epoch`.

    `fresh`: no worker has begun, all go on from a checkpoint. `behind`: some, new or a step behind, take all from rank
    0. `lost`: workers that the run has lost so far.
    """

    epoch: int
    rank: int
    size: int
    fresh: bool
    behind: bool
    lost: int


class GroupMember:
    """This worker. `timeout_s`: how long its calls wait for another."""

    def __init__(self, timeout_s: float) -> None:
        host, port = os.environ[STORE].rsplit(":", 1)
        self._store = TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=max(timeout_s, 60.0)))
        self._id, self._timeout_s, self._meetings, self._epoch = os.environ[MEMBER], timeout_s, 0, -1

    def meet(self, at: tuple[int, int]) -> Place:
        """Waits for a place in the next group.

        at: batches done and rows of the curves; (-1, -1): not begun.
        """
        gc.collect()  # what refers to the old group keeps its connections, and who waits for us waiting
        self._meetings += 1
        self._store.set(f"here/{self._id}", json.dumps({"meeting": self._meetings, "at": at}))
        self._store.add("asked", 1)
        key = f"place/{self._id}/{self._meetings}"
        self._store.wait([key], timedelta(days=7))  # the process ends with the coordinator's
        place = Place(**json.loads(self._store.get(key)))
        self._epoch = place.epoch
        return place

    def group(self, place: Place) -> TorchGroup:
        """The workers of that meeting. A collective call. Raises DistError, WorkerLostError."""
        dist.init_process_group(
            "gloo",
            store=self.store(),
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=FORM_S),
        )
        return TorchGroup(timeout_s=self._timeout_s, grace_s=GRACE_S, helped=False)

    def leave(self) -> None:
        """This worker is alone; what others still wait for from it fails when nothing refers to the group any more."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def store(self) -> PrefixStore:
        """What the workers of the present group write into."""
        return PrefixStore(f"group/{self._epoch}", self._store)

    def called(self) -> bool:
        """Whether a worker waits to join."""
        return self._store.check([f"call/{self._epoch}"])
