"""Collective calls between processes, built from tagged messages between pairs (`wire`), over gloo or similar backends.

gloo's own collectives do not tell which worker is lost, sum in their own order, and must be called in one order.
Messages have tags, so calls end independently of each other, and each wait knows which worker it waits for.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from megahour.sync.group import wire

_NUMBERS = 1 << 20  # tags of one channel; they are reused long after their messages have arrived
CHANNELS = 1 << 11


class PeerError(Exception):
    """A wait for messages of `peer`, a rank of this mesh, failed or timed out."""

    def __init__(self, peer: int, why: str) -> None:
        super().__init__(why)
        self.peer, self.why = peer, why


def of_transport(error: Exception) -> bool:
    """Whether torch's error is about a connection or a timeout; other errors are bugs of the program.

    gloo's errors have no type of their own, but begin with a location in its source, or mention another wait's timeout.
    """
    return isinstance(error, PeerError | dist.DistError) or bool(_TRANSPORT.search(str(error)))


_TRANSPORT = re.compile(r"gloo/|pair closure|timed? ?out|connection|socket|broken pipe|NCCL", re.IGNORECASE)


def _of_peer(peer: int, error: RuntimeError) -> Exception:
    return PeerError(peer, str(error).splitlines()[0]) if of_transport(error) else error


class Messages:
    """Pending sends and receives of one call, by peer.

    `wait` reports a lost peer only at the end, so that all others get their messages first: a worker that waited for us
    in vain would time out, and gloo then breaks all of its connections.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._receives: list[tuple[int, dist.Work | PeerError]] = []
        self._sends: list[tuple[int, dist.Work | PeerError]] = []

    def send(self, tensor: Tensor, peer: int, tag: int) -> None:
        """Begin to send a contiguous tensor, which must not change before `wait`."""
        if tensor.numel():
            self._sends.append((peer, self._begun(dist.isend, tensor, peer, tag)))

    def receive(self, tensor: Tensor, peer: int, tag: int) -> None:
        """Begin to receive into a contiguous tensor."""
        if tensor.numel():
            self._receives.append((peer, self._begun(dist.irecv, tensor, peer, tag)))

    def wait(self, deadline_s: float, *, sends: bool = True) -> None:
        """Wait for the pending receives and, by default, sends. Raises PeerError."""
        waiting, self._receives = self._receives, []
        try:
            self._wait(waiting, deadline_s)
            if sends:
                self._wait(self._sends, deadline_s)
                self._sends = []
        except Exception:
            self._mesh.left.append([*waiting, *self._sends])
            raise

    def _begun(
        self, call: Callable[..., dist.Work | None], tensor: Tensor, peer: int, tag: int
    ) -> dist.Work | PeerError:
        try:
            return self._mesh.begin(call, tensor, peer, tag)
        except PeerError as error:
            return error

    def _wait(self, waiting: Sequence[tuple[int, dist.Work | PeerError]], deadline_s: float) -> None:
        for _, work in waiting:
            if isinstance(work, PeerError):
                raise work
        for peer, work in waiting:
            assert not isinstance(work, PeerError)
            left_s = max(0.001, deadline_s - time.monotonic())
            try:
                work.wait(timedelta(seconds=left_s))
            except RuntimeError as error:
                raise _of_peer(peer, error) from error


class Mesh:
    """The messages of one group. `ranks` are its workers' ranks in `process_group`; `rank` is ours among them."""

    def __init__(
        self, process_group: dist.ProcessGroup | None, ranks: Sequence[int], rank: int, channel: int, timeout_s: float
    ) -> None:
        self.process_group, self.ranks, self.rank, self.channel = process_group, tuple(ranks), rank, channel
        self.size, self.timeout_s = len(self.ranks), timeout_s
        self._number = 0
        self._spare: dict[tuple[int, torch.dtype], list[Tensor]] = {}
        self._lock = threading.Lock()
        self.left: list[object] = []
        """Messages of failed calls, kept because dropping them would end them while peers may still wait."""

    def begin(self, call: Callable[..., dist.Work | None], tensor: Tensor, peer: int, tag: int) -> dist.Work:
        """Begin one send or receive. Raises PeerError if the connection is known to be broken."""
        side = "group_dst" if call is dist.isend else "group_src"
        try:
            work = call(tensor, group=self.process_group, tag=tag, **{side: self.ranks[peer]})
        except RuntimeError as error:
            raise _of_peer(peer, error) from error
        assert work is not None  # None is for processes outside of the process group
        return work

    def tags(self, count: int) -> list[int]:
        """The next tags of calls that all workers make in the same order."""
        with self._lock:
            first, self._number = self._number, self._number + count
        return [(2 * self.channel) * _NUMBERS + number % _NUMBERS for number in range(first, first + count)]

    def pair_tag(self, tag: int) -> int:
        """The tag of messages of a pair of workers."""
        return (2 * self.channel + 1) * _NUMBERS + tag % _NUMBERS

    def break_off(self) -> None:
        """End all waits of this process for messages of the mesh: a wait that times out breaks gloo's connection."""
        for peer in range(self.size):
            if peer != self.rank:
                messages = Messages(self)
                messages.receive(torch.empty(1), peer, self.pair_tag(_NUMBERS - 1))
                with contextlib.suppress(Exception):  # as intended
                    messages.wait(time.monotonic())

    def deadline_s(self) -> float:
        """The deadline of a wait that begins now, on the monotonic clock."""
        return time.monotonic() + self.timeout_s

    def borrow(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Borrow an uninitialised vector until `give_back`, since allocating memory costs as much as sending it."""
        with self._lock:
            spare = self._spare.get((numel, dtype))
            if spare:
                return spare.pop()
        return torch.empty(numel, dtype=dtype)

    def give_back(self, vector: Tensor) -> None:
        """Return a vector, which may then be borrowed again."""
        with self._lock:
            self._spare.setdefault((vector.numel(), vector.dtype), []).append(vector)


class GatheredRows:
    """All workers' tensors, each sent to all: `rows` (size, numel)."""

    def __init__(self, mesh: Mesh, vector: Tensor, rows: Tensor) -> None:
        self._mesh, self._rows = mesh, rows
        self._messages = Messages(mesh)
        (tag,) = mesh.tags(1)
        for peer in range(mesh.size):
            if peer == mesh.rank:
                rows[peer].copy_(vector)
            else:
                self._messages.receive(rows[peer], peer, tag)
        for peer in range(mesh.size):
            if peer != mesh.rank:
                self._messages.send(vector, peer, tag)

    def end(self) -> None:
        """Wait until all rows have arrived."""
        self._messages.wait(self._mesh.deadline_s())


class Reduction:
    """vector ← Σ over workers, in two phases (`wire`); chunk r is summed by rank r."""

    def __init__(self, mesh: Mesh, vector: Tensor) -> None:
        self._mesh = mesh
        bounds = wire.chunk_bounds(vector.numel(), mesh.size)
        self._chunks = [vector[low:high] for low, high in pairwise(bounds)]
        self._own = own = self._chunks[mesh.rank]
        self._parts = [own if r == mesh.rank else mesh.borrow(own.numel(), own.dtype) for r in range(mesh.size)]
        self._first, self._second = Messages(mesh), Messages(mesh)
        first, self._tag = mesh.tags(2)
        others = [peer for peer in range(mesh.size) if peer != mesh.rank]
        for peer in others:
            self._first.receive(self._parts[peer], peer, first)
        for peer in others:
            self._first.send(self._chunks[peer], peer, first)
        for peer in others:  # into chunks that we have sent: a peer that sends its sum has received ours
            self._second.receive(self._chunks[peer], peer, self._tag)

    def end(self) -> None:
        """Wait for the sum."""
        mesh = self._mesh
        deadline_s = mesh.deadline_s()
        self._first.wait(deadline_s, sends=False)
        wire.sum_in_order(self._parts, self._own, mesh.rank)
        for peer in range(mesh.size):
            if peer != mesh.rank:
                self._second.send(self._own, peer, self._tag)
        self._second.wait(deadline_s)
        self._first.wait(deadline_s)
        for peer, part in enumerate(self._parts):
            if peer != mesh.rank:
                mesh.give_back(part)


class WholeReduction:
    """vector ← Σ over workers, each of which sends its whole vector to all."""

    def __init__(self, mesh: Mesh, vector: Tensor) -> None:
        self._vector = vector
        self._rows = torch.empty(mesh.size, vector.numel(), dtype=vector.dtype)
        self._gather = GatheredRows(mesh, vector, self._rows)

    def end(self) -> None:
        """Wait for the sum."""
        self._gather.end()
        wire.sum_in_order(list(self._rows), self._vector, -1)


class Exchange:
    """Swaps our vector for that of `peer`, which arrives in `received`."""

    def __init__(self, mesh: Mesh, vector: Tensor, received: Tensor, peer: int, tag: int) -> None:
        self._mesh = mesh
        self._messages = Messages(mesh)
        self._messages.receive(received, peer, mesh.pair_tag(tag))
        self._messages.send(vector, peer, mesh.pair_tag(tag))

    def end(self) -> None:
        """Wait until it has arrived and ours has been sent."""
        self._messages.wait(self._mesh.deadline_s())


class Broadcast:
    """vector ← that of `source`, which sends one chunk to each other worker, and these pass them on to each other."""

    def __init__(self, mesh: Mesh, vector: Tensor, source: int) -> None:
        self._mesh, self._source = mesh, source
        self._others = [rank for rank in range(mesh.size) if rank != source]
        bounds = wire.chunk_bounds(vector.numel(), len(self._others))
        self._chunks = {rank: vector[bounds[i] : bounds[i + 1]] for i, rank in enumerate(self._others)}
        self._messages = Messages(mesh)
        scatter, self._spread = mesh.tags(2)
        if mesh.rank == source:
            for rank in self._others:
                self._messages.send(self._chunks[rank], rank, scatter)
        else:
            self._messages.receive(self._chunks[mesh.rank], source, scatter)

    def end(self) -> None:
        """Wait until it has arrived and has been passed on."""
        mesh = self._mesh
        deadline_s = mesh.deadline_s()
        self._messages.wait(deadline_s)
        if mesh.rank != self._source:
            for rank in self._others:
                if rank != mesh.rank:
                    self._messages.receive(self._chunks[rank], rank, self._spread)
                    self._messages.send(self._chunks[mesh.rank], rank, self._spread)
            self._messages.wait(deadline_s)
