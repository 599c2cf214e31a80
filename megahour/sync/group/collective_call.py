"""Collective calls of virtual workers: they end, with a result for each worker, once all have arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch import Tensor

from megahour.core.errors import MegahourError
from megahour.sync.group.base import Traffic
from megahour.sync.group.turns import Moment, Turn, TurnScheduler

T = TypeVar("T")
Cost = Callable[[str, int, int], float]
"""Virtual seconds of a call after its last arrival, of its name, the bytes of one worker's tensor, and the workers."""


class CollectiveCall:
    """One call of `size` workers. Each leaves an argument on arrival; the last one computes the results."""

    def __init__(self, turns: TurnScheduler, call: str, kind: str, size: int) -> None:
        self.turns, self.call, self.kind = turns, call, kind
        self.ends: Moment | None = None
        self.results: list[Any] = []
        self._arguments: list[Any] = [_ABSENT] * size
        self._arrived = [Moment()] * size
        self._missing = size
        self._waiting: list[Turn] = []

    @property
    def full(self) -> bool:
        """Whether all have arrived."""
        return not self._missing

    def absent(self, index: int) -> bool:
        """Whether the worker at `index` has not arrived."""
        return self._arguments[index] is _ABSENT

    def join(self, index: int, call: str, kind: str, argument: object) -> None:
        """The worker at `index` arrives with `argument`; all workers' `kind` must be equal."""
        if (call, kind) != (self.call, self.kind):
            raise MegahourError(
                f"rank {self.turns.turn.rank} calls {call} {kind} where another calls {self.call} {self.kind}".strip(),
                remedy="all workers of a group must make the same calls, in the same order, of equal shapes and dtypes",
            )
        self._arguments[index] = argument
        self._arrived[index] = self.turns.turn.now
        self._missing -= 1

    def end(self, function: Callable[[list[Any]], list[Any]], seconds: float) -> None:
        """Compute the results, available `seconds` after the last arrival, and wake the waiting workers."""
        self.results = function(self._arguments)
        self._arguments = []
        self.ends = max(self._arrived).after(seconds)
        for turn in self._waiting:
            self.turns.wake(turn, self.ends)

    def leave(self, index: int, traffic: Traffic) -> Any:
        """Wait for the result of the worker at `index`, and count the seconds waited and hidden."""
        turn = self.turns.turn
        before_s = turn.now_s
        if self.ends is None:
            self._waiting.append(turn)
            self.turns.wait(self.call)
        assert self.ends is not None
        self.turns.advance(self.ends)
        exposed_s = turn.now_s - before_s
        traffic.exposed_s += exposed_s
        traffic.hidden_s += max(0.0, self.ends.seconds - self._arrived[index].seconds - exposed_s)
        return self.results[index]


class VirtualWork(Generic[T]):
    """A pending call: `Work` with any result."""

    def __init__(self, collective: CollectiveCall, place: int, traffic: Traffic) -> None:
        self._collective, self._place, self._traffic = collective, place, traffic
        self._left = False
        self._result: T | None = None

    def ready(self) -> bool:
        """Whether `wait` would return at the current virtual time."""
        ends = self._collective.ends
        return self._left or (ends is not None and ends.seconds <= self._collective.turns.turn.now_s)

    def wait(self) -> T:
        """Wait until all workers have arrived and their tensors have travelled; returns the result."""
        if not self._left:
            self._result = self._collective.leave(self._place, self._traffic)
            self._left = True
        return self._result  # type: ignore[return-value]


class VirtualFork(Generic[T]):
    """A second turn of a worker."""

    def __init__(self, turns: TurnScheduler, rank: int, call: Callable[[], T]) -> None:
        self._turns = turns
        self._result: T | None = None
        self._ends: Moment | None = None

        def play() -> None:
            self._result = call()
            self._ends = turns.turn.now

        turns.add(rank, turns.turn.now, play)

    def ready(self) -> bool:
        """Whether it has ended."""
        return self._ends is not None

    def wait(self) -> T:
        """Wait for the end; returns the result of `call`."""
        self._turns.wait_until(self.ready, "the end of a fork")
        assert self._ends is not None
        self._turns.advance(self._ends)
        return self._result  # type: ignore[return-value]


class Channel:
    """Calls of a group of workers that not all of them have made yet."""

    def __init__(self, turns: TurnScheduler, ranks: tuple[int, ...], cost: Cost) -> None:
        self.turns, self.ranks, self.cost = turns, ranks, cost
        self._made = [0] * len(ranks)
        self._open: dict[int, CollectiveCall] = {}
        self._pairs: dict[tuple[int, int, int], deque[CollectiveCall]] = {}

    def collective(self, rank: int, call: str, kind: str) -> CollectiveCall:
        """The next collective call of `rank`."""
        number = self._made[rank]
        self._made[rank] += 1
        collective = self._open.get(number)
        if collective is None:
            collective = self._open[number] = CollectiveCall(self.turns, call, kind, len(self.ranks))
        if min(self._made) > number:
            del self._open[number]
        return collective

    def pair(self, rank: int, peer: int, tag: int, kind: str) -> tuple[CollectiveCall, int]:
        """The first exchange of two ranks under `tag` at which `rank` has not arrived, and its index there."""
        low, high = sorted((rank, peer))
        side = int(rank > peer)
        queue = self._pairs.setdefault((low, high, tag), deque())
        if queue and queue[0].absent(side):
            return queue.popleft(), side
        collective = CollectiveCall(self.turns, f"exchange of ranks {low} and {high} with tag {tag}", kind, 2)
        queue.append(collective)
        return collective, side


def kind_of(tensor: Tensor) -> str:
    """The shape and dtype that all tensors of a call must share."""
    return f"of {tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


_ABSENT = object()
