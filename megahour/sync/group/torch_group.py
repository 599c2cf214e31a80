"""`TorchGroup`: workers as processes of torch.distributed, with gloo on CPUs and NCCL on GPUs."""

from __future__ import annotations

import copy
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from megahour.core.errors import ConfigError, MegahourError
from megahour.sync.group import mesh as messages
from megahour.sync.group import native, wire
from megahour.sync.group.base import Traffic, WorkerFailedError, WorkerLostError
from megahour.sync.group.ledger import StoreLedger
from megahour.sync.group.mesh import CHANNELS, Mesh, PeerError, of_transport
from megahour.sync.group.survivors import Failures, lost_ranks
from megahour.sync.group.torch_work import (
    Helper,
    Ready,
    Stopwatch,
    TorchCall,
    TorchFork,
    TorchWork,
    at_exit,
    end_forks_at_exit,
)

T = TypeVar("T")
_HELPED_BYTES = 1 << 18  # from this size on, a second thread that sums is worth waking
_POLL_S = 0.0005


class TorchGroup:
    """`Group` over a process group; a single worker if torch.distributed is not initialised.

    On CPUs all calls are messages between workers (`mesh`): sums are in the order of ranks, with the bits of a virtual
    group. On GPUs with NCCL they are its collectives (`native`). Tensors elsewhere are copied there and back. Tensors
    handed over stay as they are until `wait`. Making a group is a collective call; parts of it share its `traffic`.

    Parameters
    ----------
    process_group: of torch.distributed; the default one if None.
    timeout_s: seconds that a call waits for another worker before it raises `WorkerLostError`. Workers wait for the
        slowest one's step, evaluation and checkpoint: use several times their duration.
    grace_s: seconds that it then waits for reports from the others on which of them is lost, at most a fifth of
        `timeout_s`: an answer that waits for them must still come in time.
    helped: whether a second thread finishes large sums; without it the group closes as soon as nothing refers to it.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        timeout_s: float = 300.0,
        grace_s: float = 2.0,
        helped: bool = True,
    ) -> None:
        if not timeout_s > 0 or not grace_s > 0:
            raise ConfigError(f"timeout_s {timeout_s}, grace_s {grace_s}", remedy="give seconds > 0")
        self.timeout_s, self.grace_s = timeout_s, min(grace_s, timeout_s / 5)
        self.rank, self.size, self.traffic = 0, 1, Traffic()
        self._clock, self._helper, self._helped = Stopwatch(self.traffic), Helper(), helped
        self._group: dist.ProcessGroup | None = None
        self._mesh: Mesh | None = None
        self._native, self._whole = False, True
        self._failures, self._ledgers = Failures(None, 0), 0
        if dist.is_available() and dist.is_initialized():
            self._open(process_group)

    def _open(self, process_group: dist.ProcessGroup | None) -> None:
        self.rank, self.size = dist.get_rank(process_group), dist.get_world_size(process_group)
        if self.rank < 0:
            raise ConfigError("this process is not in the process group")
        backends = dict(part.split(":") for part in dist.get_backend_config(process_group).split(","))
        self._group = dist.group.WORLD if process_group is None else process_group
        self._native = backends.get("cuda") == "nccl"
        if "cpu" in backends:
            ranks = range(self.size)
            self._mesh = Mesh(self._group, ranks, self.rank, 0, self.timeout_s)
            self._mesh = Mesh(self._group, ranks, self.rank, self._agree_channel(), self.timeout_s)
        self._failures = Failures(self._store(), self.rank)
        self._failures.tell_at_exit()

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """torch.distributed's process group, for direct use; None for a single worker and for a part of a group."""
        return self._group if self._whole else None

    def all_reduce(self, tensor: Tensor) -> TorchWork | Ready:
        """Sum over the workers, in place, in the order of ranks (NCCL: its own order), with the same bits on all."""
        if self.size == 1:
            return Ready(tensor)
        vector = self._travelling(tensor)
        size_bytes = wire.reduce_bytes(vector, self.rank, self.size)

        def begin() -> TorchCall:
            if self._mesh is None or vector.is_cuda:
                return native.all_reduce(self._group, vector, self.timeout_s)
            kind = messages.WholeReduction if wire.travels_whole(vector, self.size) else messages.Reduction
            return kind(self._mesh, vector)

        work = self._begin("all_reduce", begin, lambda: _put_back(vector, tensor), size_bytes, size_bytes)
        if self._helped and vector.nbytes >= _HELPED_BYTES:
            self._helper.take(work)
        return work

    def all_gather(self, tensor: Tensor) -> TorchWork | Ready:
        """(size, *tensor.shape): every worker's tensor, in the order of ranks."""
        if self.size == 1:
            return Ready(tensor.detach().clone().unsqueeze(0))
        vector = self._travelling(tensor)
        rows = torch.empty(self.size, vector.numel(), dtype=vector.dtype, device=vector.device)
        size_bytes = wire.gather_bytes(vector, self.size)

        def begin() -> TorchCall:
            if self._mesh is None or vector.is_cuda:
                return native.all_gather(self._group, vector, rows, self.timeout_s)
            return messages.GatheredRows(self._mesh, vector, rows)

        def result() -> Tensor:
            return rows.to(tensor.device).view(self.size, *tensor.shape)

        return self._begin("all_gather", begin, result, size_bytes, size_bytes)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        """Overwrite `tensor` with that of rank `source`."""
        if self.size == 1:
            return
        vector = self._travelling(tensor)
        sent, received = wire.broadcast_bytes(vector, self.rank, source, self.size)

        def begin() -> TorchCall:
            if self._mesh is None or vector.is_cuda:
                return native.broadcast(self._group, vector, source, self.timeout_s)
            return messages.Broadcast(self._mesh, vector, source)

        self._begin(f"broadcast from {source}", begin, lambda: _put_back(vector, tensor), sent, received).wait()

    def exchange(self, tensor: Tensor, peer: int, tag: int = 0, out: Tensor | None = None) -> TorchWork:
        """The tensor that rank `peer` passes in its call with our rank and the same tag, in `out` if given."""
        if peer == self.rank or not 0 <= peer < self.size:
            raise ConfigError(f"rank {self.rank} cannot exchange with rank {peer} of {self.size}")
        vector = self._travelling(tensor)
        received = torch.empty_like(vector) if out is None else self._travelling(out)

        def begin() -> TorchCall:
            if self._mesh is None or vector.is_cuda:
                return native.exchange(self._group, vector, received, peer, tag, self.timeout_s)
            return messages.Exchange(self._mesh, vector, received, peer, tag)

        def result() -> Tensor:
            if out is not None:
                return _put_back(received, out)
            return received.to(tensor.device).view(tensor.shape)

        return self._begin(f"exchange with rank {peer}", begin, result, vector.nbytes, vector.nbytes)

    def split(self, groups: Sequence[Sequence[int]]) -> TorchGroup | None:
        """The group in `groups` that contains this rank; None if none does. A collective call."""
        wire.check_parts(groups, self.size)
        channel = self._agree_channel() if self._mesh is not None else 0
        chosen = next((tuple(group) for group in groups if self.rank in group), None)
        if chosen is None:
            return None
        part = copy.copy(self)
        part.rank, part.size, part._whole = chosen.index(self.rank), len(chosen), False
        if self._mesh is not None:
            ranks = [self._mesh.ranks[rank] for rank in chosen]
            part._mesh = Mesh(self._mesh.process_group, ranks, part.rank, channel, self.timeout_s)
        if self._native:
            everyone = dist.get_process_group_ranks(self._group)
            part._group = dist.new_group([everyone[rank] for rank in chosen], use_local_synchronization=True)
        return part

    def fork(self, call: Callable[[], T]) -> TorchFork[T]:
        """Run `call` in a second thread, for communication during training, which does not count as waiting."""
        if self._mesh is not None:
            end_forks_at_exit(self._mesh)
        return TorchFork(call)

    def ledger(self) -> StoreLedger:
        """A ledger for this group, in the process group's store; all workers create it at the same point."""
        self._ledgers += 1
        channel = self._mesh.channel if self._mesh is not None else 0
        prefix = f"megahour/ledger/{channel}/{self._ledgers}"
        return StoreLedger(self._store(), prefix, self.timeout_s, 5 * self.grace_s)

    def wait_until(self, condition: Callable[[], bool], what: str, *, poll_s: float = _POLL_S) -> None:
        """Wait until `condition()`, on state shared by this worker's threads, is true; `what` names it in messages."""
        began_s = time.monotonic()
        while not condition():
            if time.monotonic() - began_s > self.timeout_s:
                raise WorkerLostError(f"{what} did not happen in {self.timeout_s:g} s", where=f"rank {self.rank}")
            time.sleep(poll_s)
        self._clock.add(began_s, began_s, began_s)

    def _travelling(self, tensor: Tensor) -> Tensor:
        """`tensor` as a contiguous vector on a device that can send it; without a copy if possible."""
        tensor = tensor.detach()
        if self._mesh is None:
            tensor = tensor.to(torch.device("cuda", torch.cuda.current_device()))
        elif not self._native:
            tensor = tensor.cpu()
        return tensor.contiguous().view(-1)

    def _begin(
        self,
        name: str,
        begin: Callable[[], TorchCall],
        result: Callable[[], Tensor],
        sent_bytes: int,
        received_bytes: int,
    ) -> TorchWork:
        self._clock.count(sent_bytes, received_bytes)
        try:
            call = begin()
        except Exception as error:
            if not of_transport(error):
                raise
            raise self._blame(name, error) from error
        return TorchWork(name, call, result, self._clock, self._blame)

    def tell_failure(self, error: BaseException) -> None:
        """Report to the other workers that `error` ends this one; their calls then raise `WorkerFailedError`.

        Uncaught exceptions are reported automatically. Call this where they do not end the process as usual, such as in
        a process started by multiprocessing.
        """
        self._failures.tell(error)

    def _store(self) -> Store | None:
        store: Store | None = getattr(self._group, "get_group_store", lambda: None)()
        return store

    def _blame(self, name: str, error: Exception) -> MegahourError:
        """The error of call `name`, which names the failed worker, or the ranks that do not respond."""
        if at_exit():
            raise SystemExit
        store, where = self._store(), f"rank {self.rank} of {self.size}"
        if failed := self._failures.first():
            return WorkerFailedError(f"{name} failed: {failed}", where=where, remedy="see that worker's traceback")
        suspect = error.peer if isinstance(error, PeerError) else None
        number = self._mesh.channel if self._mesh is not None else 0
        times_s = (self.grace_s, self.timeout_s)
        lost = lost_ranks(store, f"megahour/lost/{number}", self.rank, self.size, suspect, *times_s)
        who = f"rank {', '.join(map(str, lost))} does not answer" if lost else "no worker is known to be lost"
        worker_lost = WorkerLostError(
            f"{name} failed: {who} ({str(error).splitlines()[0]})",
            where=where,
            remedy="start all workers again from the last checkpoint; if none has died, raise timeout_s above "
            f"{self.timeout_s:g}, and check that all make the same calls",
        )
        worker_lost.ranks = tuple(lost)
        return worker_lost

    def _agree_channel(self) -> int:
        """A channel number for the tags of a new group, unused by any pair of its workers."""
        assert self._mesh is not None
        assert self._group is not None
        rows = torch.empty(self.size, 1, dtype=torch.int64)
        gather = partial(messages.GatheredRows, self._mesh, torch.tensor([_channels.get(self._group, 0)]), rows)
        self._begin("making a group", gather, lambda: rows, 0, 0).wait()
        _channels[self._group] = channel = int(rows.max()) + 1
        if channel * 2 >= CHANNELS:
            raise ConfigError(f"{channel} groups were made", remedy="make groups once, not in every step")
        return channel


_channels: weakref.WeakKeyDictionary[dist.ProcessGroup, int] = weakref.WeakKeyDictionary()
"""The highest channel number in use in this process, by process group, to which tags belong."""


def _put_back(vector: Tensor, tensor: Tensor) -> Tensor:
    if vector.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(vector.view(tensor.shape))
    return tensor
