"""Calls between processes as messages from each worker to each other (`wire`), over gloo or any backend with tags.

gloo's own collectives do not say which worker is lost, sum in an order of their own, and must be called in one order;
messages have tags, so calls end independently of each other and each wait knows whom it waits for.
"""

from __future__ import annotations

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

_NUMBERS = 1 << 20  # tags of one channel; they return when the messages that had them are long gone
CHANNELS = 1 << 11


class PeerError(Exception):
    """A wait for messages of `peer`, a rank of this mesh, failed or ran out of time."""

    def __init__(self, peer: int, why: str) -> None:
        super().__init__(why)
        self.peer, self.why = peer, why


def of_transport(error: Exception) -> bool:
    """Whether torch's error tells of a connection or of a time limit; others are errors of the program.

    gloo's have no type of their own, but begin with the place in its source, or tell of the timeout of another wait.
    """
    return isinstance(error, PeerError | dist.DistError) or bool(_TRANSPORT.search(str(error)))


_TRANSPORT = re.compile(r"gloo/|pair closure|timed? ?out|connection|socket|broken pipe|NCCL", re.IGNORECASE)


def _of_peer(peer: int, error: RuntimeError) -> Exception:
    return PeerError(peer, str(error).splitlines()[0]) if of_transport(error) else error


class Messages:
    """Sends and receives of one call that are under way, by peer.

    A peer that is known to be gone is found out by `wait`, so that all others get what they wait for: who waits for us
    in vain would run into its time limit, at which gloo breaks all of its connections.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._receives: list[tuple[int, dist.Work | PeerError]] = []
        self._sends: list[tuple[int, dist.Work | PeerError]] = []

    def send(self, tensor: Tensor, peer: int, tag: int) -> None:
        """Begins to send a contiguous tensor, which must stay as it is until `wait`."""
        if tensor.numel():
            self._sends.append((peer, self._begun(dist.isend, tensor, peer, tag)))

    def receive(self, tensor: Tensor, peer: int, tag: int) -> None:
        """Begins to receive into a contiguous tensor."""
        if tensor.numel():
            self._receives.append((peer, self._begun(dist.irecv, tensor, peer, tag)))

    def wait(self, deadline_s: float, *, sends: bool = True) -> None:
        """Waits for the receives begun so far, and for the sends too; raises PeerError."""
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
        """Messages of calls that failed: others may still wait for them, which end with the object."""

    def begin(self, call: Callable[..., dist.Work | None], tensor: Tensor, peer: int, tag: int) -> dist.Work:
        """One send or receive; raises PeerError where the connection is known to be gone."""
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

    def deadline_s(self) -> float:
        """When a wait that begins now must have ended, on the monotonic clock."""
        return time.monotonic() + self.timeout_s

    def borrow(self, numel: int, dtype: torch.dtype) -> Tensor:
        """A vector with any content; `give_back` it, as fresh memory costs as much as sending it does."""
        with self._lock:
            spare = self._spare.get((numel, dtype))
            if spare:
                return spare.pop()
        return torch.empty(numel, dtype=dtype)

    def give_back(self, vector: Tensor) -> None:
        """The vector may be borrowed again."""
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
        """Waits until all is there."""
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
        for peer in others:  # may arrive in a chunk that we have sent: whoever sends its sum has received it
            self._second.receive(self._chunks[peer], peer, self._tag)

    def end(self) -> None:
        """Waits until the sum is there."""
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
    """vector ← Σ over workers, of vectors that travel whole."""

    def __init__(self, mesh: Mesh, vector: Tensor) -> None:
        self._vector = vector
        self._rows = torch.empty(mesh.size, vector.numel(), dtype=vector.dtype)
        self._gather = GatheredRows(mesh, vector, self._rows)

    def end(self) -> None:
        """Waits until the sum is there."""
        self._gather.end()
        wire.sum_in_order(list(self._rows), self._vector, -1)


class Exchange:
    """Our vector for that of `peer`: `received`."""

    def __init__(self, mesh: Mesh, vector: Tensor, received: Tensor, peer: int, tag: int) -> None:
        self._mesh = mesh
        self._messages = Messages(mesh)
        self._messages.receive(received, peer, mesh.pair_tag(tag))
        self._messages.send(vector, peer, mesh.pair_tag(tag))

    def end(self) -> None:
        """Waits until it is there and ours has left."""
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
        """Waits until it is there and has been passed on."""
        mesh = self._mesh
        deadline_s = mesh.deadline_s()
        self._messages.wait(deadline_s)
        if mesh.rank != self._source:
            for rank in self._others:
                if rank != mesh.rank:
                    self._messages.receive(self._chunks[rank], rank, self._spread)
                    self._messages.send(self._chunks[mesh.rank], rank, self._spread)
            self._messages.wait(deadline_s)
