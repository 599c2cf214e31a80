"""Collective calls between processes by torch.distributed's own collectives, for NCCL.

NCCL sums in its own order, which is the same on all workers and in every run on the same machines. Its messages
have no tags: two workers must make their exchanges with each other in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor


class NativeCall:
    """Pending works of one call. Waiting blocks this thread, hence the time limit."""

    def __init__(self, works: Sequence[dist.Work | None], timeout_s: float) -> None:
        self._works = [work for work in works if work is not None]
        self._timeout_s = timeout_s

    def end(self) -> None:
        """Wait for all; raises RuntimeError after `timeout_s`."""
        for work in self._works:
            work.wait(timedelta(seconds=self._timeout_s))


def all_reduce(process_group: dist.ProcessGroup | None, vector: Tensor, timeout_s: float) -> NativeCall:
    """vector ← Σ over workers."""
    return NativeCall([dist.all_reduce(vector, group=process_group, async_op=True)], timeout_s)


def all_gather(process_group: dist.ProcessGroup | None, vector: Tensor, rows: Tensor, timeout_s: float) -> NativeCall:
    """rows (size, numel) ← every worker's vector."""
    return NativeCall([dist.all_gather(list(rows), vector, group=process_group, async_op=True)], timeout_s)


def broadcast(process_group: dist.ProcessGroup | None, vector: Tensor, source: int, timeout_s: float) -> NativeCall:
    """vector ← that of `source`."""
    work = dist.broadcast(vector, group_src=source, group=process_group, async_op=True)
    return NativeCall([work], timeout_s)


def exchange(
    process_group: dist.ProcessGroup | None, vector: Tensor, received: Tensor, peer: int, tag: int, timeout_s: float
) -> NativeCall:
    """received ← the vector of `peer`, which gets ours."""
    sides = [(dist.isend, vector), (dist.irecv, received)]
    messages = [dist.P2POp(call, side, group=process_group, tag=tag, group_peer=peer) for call, side in sides]
    return NativeCall(dist.batch_isend_irecv(messages), timeout_s)
