"""Forms process groups over gloo in which a lost worker does not hold up the others.

gloo waits for a peer's address for its whole time-out, and five times that long for a peer that has left an address and
is gone. Nothing interrupts it, so it connects in a second thread, which is left behind when a worker is lost.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import BarrierOptions, PrefixStore, ProcessGroupGloo, Store

from megahour.sync.group.base import WorkerLostError

CONNECT_S = 10.0  # gloo's limit for each peer; of lost workers the coordinator tells sooner
_POLL_S = 0.05
_BACKEND = "megahour_formed"


def form(
    name: str,
    stores: tuple[Store, Store],
    rank: int,
    size: int,
    lost: Callable[[], bool],
    timeout_s: float,
    shard: int = 1,
) -> None:
    """Make the default process group, of gloo, in which all workers are connected. A collective call.

    With `shard` above 1, the first `dist.new_group` is to be that of the `shard` consecutive ranks around this one:
    they are connected here, too.

    Parameters
    ----------
    name: prefix of the group's keys, which no other group has used.
    stores: two clients of the same store. A client serves one call at a time: the first connects, the second is the
        group's.
    lost: whether a worker of this group is lost.
    timeout_s: how long workers that have connected wait for those that still connect.

    Raises
    ------
    WorkerLostError: a worker was lost. DistError, RuntimeError: as gloo.
    """
    ended: queue.SimpleQueue[list[ProcessGroupGloo] | Exception] = queue.SimpleQueue()
    connecting = (PrefixStore(f"{name}/connect", stores[0]), rank, size, shard, timeout_s, ended)
    threading.Thread(target=_connect, args=connecting, name="forming", daemon=True).start()
    formed: list[ProcessGroupGloo] | Exception | None = None
    while formed is None:
        with contextlib.suppress(queue.Empty):
            formed = ended.get(timeout=_POLL_S)
        if not isinstance(formed, list) and lost():
            raise WorkerLostError("a worker was lost while the group formed", where=f"rank {rank} of {size}")
    if isinstance(formed, Exception):
        raise formed
    # emptied, the default group first: what torch keeps of a backend would keep the connections
    dist.Backend.register_backend(_BACKEND, lambda *_: formed.pop(), devices="cpu")
    dist.init_process_group(_BACKEND, store=PrefixStore(name, stores[1]), rank=rank, world_size=size)


def _connect(
    store: Store,
    rank: int,
    size: int,
    shard: int,
    timeout_s: float,
    ended: queue.SimpleQueue[list[ProcessGroupGloo] | Exception],
) -> None:
    """Connect to all, and wait until all have: otherwise one could be in the group, and wait for one that left it."""
    options = BarrierOptions()
    options.timeout = timedelta(seconds=timeout_s)
    connect = timedelta(seconds=CONNECT_S)
    try:
        formed = []
        if shard > 1:
            first = rank - rank % shard
            replica = ProcessGroupGloo(PrefixStore(f"from {first}", store), rank - first, shard, timeout=connect)
            replica._set_default_timeout(options.timeout)
            formed.append(replica)
        formed.append(ProcessGroupGloo(store, rank, size, timeout=connect))
        formed[-1].barrier(options).wait()  # type: ignore[attr-defined]
    except Exception as error:
        ended.put(error)
    else:
        ended.put(formed)
