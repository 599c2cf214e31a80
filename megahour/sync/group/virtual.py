"""Virtual workers: N in one process, deterministic, for tests and experiments with the same synchronisers.

    results = virtual.run(train, workers=64)          # each worker runs train(group)

Workers are threads that take turns (`turns`). Collective calls are computed once all have arrived, sums in the order of
ranks as in `TorchGroup`. Time is virtual: it advances when a worker calls `group.compute(seconds)`, and in calls of the
group by their `cost`, so stragglers and staleness are simulated deterministically.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from megahour.core.errors import ConfigError
from megahour.sync.group import wire
from megahour.sync.group.base import Traffic
from megahour.sync.group.collective_call import Channel, Cost, VirtualFork, VirtualWork, kind_of
from megahour.sync.group.ledger import SharedLedger
from megahour.sync.group.turns import Moment, TurnScheduler

T = TypeVar("T")


def run(function: Callable[[VirtualGroup], T], workers: int, *, seed: int = 0, cost: Cost | None = None) -> list[T]:
    """The results of `function(group)` on each of `workers` virtual workers, in the order of ranks.

    Every worker starts with torch's random generator seeded with `seed` and has its own state; the caller's is not
    changed. `cost(call, bytes, workers)` gives the virtual seconds of a call ("all_reduce", "exchange", …) after its
    last arrival; 0 by default. An exception in one worker ends all and is raised, with a note that names the rank. A
    call that cannot end because another worker has returned raises `WorkerLostError` in the waiting workers.
    """
    if workers < 1:
        raise ConfigError(f"{workers} workers", remedy="give at least one")
    results: list[Any] = [None] * workers
    with torch.random.fork_rng(devices=[]):
        turns = TurnScheduler(workers, seed)
        channel = Channel(turns, tuple(range(workers)), cost or (lambda call, size_bytes, size: 0.0))

        def work(group: VirtualGroup) -> None:
            results[group.rank] = function(group)

        for rank in range(workers):
            turns.add(rank, Moment(), partial(work, VirtualGroup(channel, rank, Traffic())))
        turns.play()
    return results


class VirtualGroup:
    """`Group` of virtual workers, made by `run` and `split`; groups of one worker share its `traffic`.

    `all_gather` returns the same tensor to all workers: do not write to it.
    """

    def __init__(self, channel: Channel, rank: int, traffic: Traffic) -> None:
        self._channel, self._turns = channel, channel.turns
        self.rank, self.size, self.traffic = rank, len(channel.ranks), traffic

    def all_reduce(self, tensor: Tensor) -> VirtualWork[Tensor]:
        """Sum over the workers, in place, in the order of ranks: the bits of `TorchGroup`."""
        self._count(wire.reduce_bytes(tensor, self.rank, self.size))
        return self._meet("all_reduce", kind_of(tensor), tensor, _sum_all, tensor.nbytes)

    def all_gather(self, tensor: Tensor) -> VirtualWork[Tensor]:
        """(size, *tensor.shape): every worker's tensor, in the order of ranks; shared, not to be written to."""
        self._count(wire.gather_bytes(tensor, self.size))
        return self._meet("all_gather", kind_of(tensor), tensor.detach().clone(), _stack_all, tensor.nbytes)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        """Overwrite `tensor` with that of rank `source`."""
        sent, received = wire.broadcast_bytes(tensor, self.rank, source, self.size)
        self.traffic.sent_bytes += sent
        self.traffic.received_bytes += received

        def copy(tensors: list[Tensor]) -> list[Tensor]:
            for rank, other in enumerate(tensors):
                if rank != source:
                    other.copy_(tensors[source])
            return tensors

        self._meet(f"broadcast from {source}", kind_of(tensor), tensor.detach(), copy, tensor.nbytes).wait()

    def exchange(self, tensor: Tensor, peer: int, tag: int = 0, out: Tensor | None = None) -> VirtualWork[Tensor]:
        """The tensor of `peer`, as it was when it called `exchange` with our rank and that tag; in `out` if given."""
        if peer == self.rank or not 0 <= peer < self.size:
            raise ConfigError(f"rank {self.rank} cannot exchange with rank {peer} of {self.size}")
        self._count(tensor.nbytes)
        collective, side = self._channel.pair(self.rank, peer, tag, kind_of(tensor))
        collective.join(side, collective.call, kind_of(tensor), (tensor.detach().clone(), out))
        if collective.full:
            collective.end(_swap, self._channel.cost("exchange", tensor.nbytes, 2))
        return VirtualWork(collective, side, self.traffic)

    def split(self, groups: Sequence[Sequence[int]]) -> VirtualGroup | None:
        """The group in `groups` that contains this rank; None if none does. A collective call."""
        ranks = [tuple(group) for group in groups]
        wire.check_parts(ranks, self.size)

        def make(_: list[object]) -> list[dict[int, tuple[Channel, int]]]:
            channels: dict[int, tuple[Channel, int]] = {}
            for group in ranks:
                channel = Channel(self._turns, tuple(self._channel.ranks[rank] for rank in group), self._channel.cost)
                channels |= {rank: (channel, position) for position, rank in enumerate(group)}
            return [channels] * self.size

        channels = self._meet("split", str(ranks), None, make, 0).wait().get(self.rank)
        return None if channels is None else VirtualGroup(*channels, self.traffic)

    def together(self, function: Callable[[list[Any]], list[T]], argument: object) -> T:
        """This worker's element of `function([argument of rank 0, of rank 1, …])`, which is called once.

        Benchmarks compute the gradients of all workers by it, as one stacked product.
        """
        return self._meet("together", "", argument, function, 0).wait()

    def compute(self, seconds: float) -> None:
        """Advance this worker's clock by the `seconds` of its own work."""
        now = self._turns.turn.now
        self._turns.advance(now.after(seconds) if seconds > 0 else now)

    @property
    def now_s(self) -> float:
        """This worker's clock in virtual seconds; a fork has its own."""
        return self._turns.turn.now_s

    def fork(self, call: Callable[[], T]) -> VirtualFork[T]:
        """Run `call` as a second turn of this worker, from the current time: its communication thread."""
        return VirtualFork(self._turns, self._channel.ranks[self.rank], call)

    def ledger(self) -> SharedLedger:
        """A ledger for this group; all workers create it at the same point."""
        return SharedLedger(self._meet("ledger", "", {}, lambda ledgers: ledgers[:1] * self.size, 0).wait())

    def wait_until(self, condition: Callable[[], bool], what: str, *, poll_s: float = 0.0) -> None:
        """Wait until `condition()`, on state shared by this worker's turns, is true; `what` names it in messages.

        It is evaluated whenever a turn ends or a clock moves; `poll_s` is ignored.
        """
        before_s = self.now_s
        self._turns.wait_until(condition, what)
        self.traffic.exposed_s += self.now_s - before_s

    def _count(self, size_bytes: int) -> None:
        self.traffic.sent_bytes += size_bytes
        self.traffic.received_bytes += size_bytes

    def _meet(
        self, call: str, kind: str, argument: object, function: Callable[[list[Any]], list[T]], size_bytes: int
    ) -> VirtualWork[T]:
        collective = self._channel.collective(self.rank, call, kind)
        collective.join(self.rank, call, kind, argument)
        if collective.full:
            collective.end(function, self._channel.cost(call.partition(" ")[0], size_bytes, self.size))
        return VirtualWork(collective, self.rank, self.traffic)


def _swap(both: list[tuple[Tensor, Tensor | None]]) -> list[Tensor]:
    (one, into_one), (other, into_other) = both
    arriving = ((other, into_one), (one, into_other))
    return [sent if into is None else into.detach().copy_(sent) for sent, into in arriving]


def _sum_all(tensors: list[Tensor]) -> list[Tensor]:
    total = tensors[0].detach().clone()
    for other in tensors[1:]:
        total += other.detach()
    for tensor in tensors:
        tensor.detach().copy_(total)
    return tensors


def _stack_all(tensors: list[Tensor]) -> list[Tensor]:
    return [torch.stack(tensors)] * len(tensors)
