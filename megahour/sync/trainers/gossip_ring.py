"""Pairwise averaging of weights between neighbours on a ring, each worker at its own pace.

Edge i of the ring joins worker i, who asks, with the next one, who serves. One mixing of an edge is

    s_i, s_j: both partners' weights now;    both send theirs;    x_i += a (s_j - s_i),    x_j += a (s_i - s_j)

with a = 1/3. When all edges mix at once, x becomes x T, where T has 1/3 on the diagonal and on either side of it: IBM's
ring (Zhang et al., arXiv 1904.04956). T's eigenvalues (1 + 2 cos θ) / 3 lie in [-1/3, 1], so every disagreement decays;
with a = 1/2 one between odd and even workers would oscillate forever. Two workers have one edge: the first asks the
other, a = 1/2, and both hold the mean.

**The average is conserved**: both partners add the same numbers with opposite signs, since fl(s_j - s_i) is
-fl(s_i - s_j). So the terms that a mixing adds sum to exactly zero, even if x_i and x_j have changed meanwhile. The
only error is the rounding of the additions to x, at most half a unit in the last place.

**There is no deadlock**, for even and odd rings alike. Each worker has an asking and a serving thread, and holds no
lock during a call. A serving thread waits only for the asker of its edge, an asking thread only for one server. A
server with a request does its part of the mixing without waiting for another worker, so its asker gets an answer.
A server without a request waits for an asker that has not begun a mixing, and such an asker waits for no other
thread. So chains of waiting have length one, and there is no cycle. (With one thread per worker, which asks the next
worker before it serves the previous one, all would wait in a cycle. Taking turns by parity, as in Lian et al. (2018),
helps even rings only.)

**A straggler slows only itself**: its serving thread answers while its gradient is computed.

**A lost worker** is skipped by both its neighbours, which log its name. The one before it asks the one after it, and so
closes the ring. If only a connection is lost and both its ends survive, the ring becomes a line.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from megahour.sync.group.base import Group, WorkerLostError
from megahour.sync.group.ledger import Ledger
from megahour.sync.trainers.stream_lock import HostCopies, StreamLock

LOG = logging.getLogger(__name__)
_BYE, _MIX = 0, 1
_POLL_S = 0.05
_CACHED = 1 << 16  # elements that stay in the cache between two reads
_REQUEST, _ANSWER, _WEIGHTS = range(3)  # message tags; each direction of a pair has its own


class Fork(Protocol):
    """A second thread of this worker."""

    def ready(self) -> bool:
        """Whether it has ended."""

    def wait(self) -> Any:
        """Wait for the end; returns the result."""


class Forking(Group, Protocol):
    """A group whose workers can have a second thread: TorchGroup and VirtualGroup."""

    def fork(self, call: Callable[[], Any]) -> Fork:
        """Run `call` in a second thread."""

    def wait_until(self, condition: Callable[[], bool], what: str, *, poll_s: float = ...) -> None:
        """Wait until `condition()` on state shared by this worker's threads. WorkerLostError naming `what`: timeout."""

    def ledger(self) -> Ledger:
        """A ledger that all workers can read, even if connections are broken. All call this at the same point."""


@dataclass
class MixingCounts:
    """Statistics of a worker's mixings."""

    mixed: int = 0
    refused: int = 0
    left_out: int = 0
    distance: float = 0.0
    """‖s_j - s_i‖₂ of the last mixing."""
    lost: set[int] = field(default_factory=set)


def difference(own: Tensor, other: Tensor) -> float:
    """Replace `other` s_j by s_j - s_i, where `own` is s_i, both (D,), and return the norm of the result.

    The partner gets the same difference with opposite sign.
    """
    squares = 0.0
    for mine, theirs in zip(*(torch.split(of, _CACHED) for of in (own, other)), strict=True):
        theirs.sub_(mine)
        squares += float(theirs.dot(theirs))
    return math.sqrt(squares)


class _Buffers:
    """Buffers (D,) of one edge, kept because allocating them for each mixing would cost as much as sending."""

    def __init__(self, elements: int, weights: Tensor) -> None:
        self._elements, self.copies = elements, HostCopies(weights[:elements])
        self.renew()

    def renew(self) -> None:
        """Replace the buffers after a failed call: pending messages must not arrive in the next one."""
        self.own, self.other = (self.copies.empty(self._elements) for _ in range(2))


class Ring:
    """One worker's two edges, and the weights (D,) that its threads share. Hold `lock` to read or change them.

    Parameters
    ----------
    group: the ring, in the order of ranks; at least two.
    weights: (D,), changed in place.
    max_staleness: mixings allowed while a gradient is computed; further requests are refused.
    names: the workers' names in messages.
    ledger: where a worker announces that it will send no more requests.
    """

    def __init__(
        self, group: Forking, weights: Tensor, max_staleness: int, names: Sequence[str], ledger: Ledger
    ) -> None:
        self.group, self.weights, self.max_staleness, self.names = group, weights, max_staleness, names
        self._ledger, self._closed = ledger, 0
        pair = group.size == 2
        self.share = 1 / 2 if pair else 1 / 3
        self._asks, self._serves = not pair or group.rank == 0, not pair or group.rank == 1
        self.lock = StreamLock(weights.device)
        self.counts = MixingCounts()
        self.staleness = 0  # mixings since the weights were last read for a gradient; the reader resets it
        self._busy = False  # the serving thread has a request
        self._asked = _Buffers(self.weights.numel() if self._asks else 0, weights)
        self._served = _Buffers(self.weights.numel() if self._serves else 0, weights)
        self._asking: Fork | None = None
        self._serving: Fork | None = None
        self._open = False
        self._begin()  # serve from now on, since the previous worker may be faster

    def check(self) -> None:
        """Raise the error that has ended the serving thread, if any; otherwise it would appear only at the end."""
        if self._serving is not None and self._serving.ready():
            self._serving.wait()

    def ask(self) -> None:
        """Begin a mixing with the next worker; the last one must have ended. With two workers only the first asks."""
        self._begin()
        if self._asks:
            self._asking = self.group.fork(self._ask)

    def asking(self) -> bool:
        """Whether a mixing that this worker began is under way."""
        return self._asking is not None and not self._asking.ready()

    def wait(self) -> None:
        """Wait for the end of the mixing that this worker began."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.wait()

    def settle(self) -> None:
        """Wait until all mixings are added, after every worker has called `wait` and none has asked since."""
        self.group.wait_until(lambda: not self._busy, "the end of a mixing")

    def close(self) -> None:
        """End mixing: notify the next worker, and serve the previous one until it ends too."""
        self.wait()
        if self._open and self._asks:
            self._to_next(lambda peer: self._exchange(_BYE, peer, _REQUEST, asks=True))
            self._ledger.first(f"{self._closed}/bye/{self.group.rank}", "said")
        if self._serving is not None:
            self._serving.wait()
        self._serving, self._open, self._closed = None, False, self._closed + 1

    def _begin(self) -> None:
        if not self._open:
            self._open = True
            self._serving = self.group.fork(self._serve) if self._serves else None

    def _ask(self) -> None:
        def mix(peer: int) -> None:
            self._exchange(_MIX, peer, _REQUEST, asks=True)
            if self._exchange(_MIX, peer, _ANSWER, asks=True) == _MIX:
                self._mix(peer, self._asked, asks=True)
            else:
                self.counts.refused += 1

        self._to_next(mix)

    def _serve(self) -> None:
        before = self._neighbour(-1)
        while (peer := self._neighbour(-1)) is not None and (peer == before or not self._asks_no_more(peer)):
            before = peer
            try:
                if self._exchange(_MIX, peer, _REQUEST, asks=False) == _BYE:
                    return
                self._busy = True
                takes = self.staleness < self.max_staleness - 1  # one is left for its own mixing
                self._exchange(_MIX if takes else _BYE, peer, _ANSWER, asks=False)
                if takes:
                    self._mix(peer, self._served, asks=False)
            except WorkerLostError as error:
                self._lose(peer, error)
            finally:
                self._busy = False

    def _asks_no_more(self, peer: int) -> bool:
        """Whether `peer` has already said goodbye to the lost worker between us, so that it will never ask this one.

        Waits long enough for a peer to announce this if the lost worker died just after the peer's goodbye.
        """
        ends_s = time.monotonic() + self._ledger.patience_s / 5
        with contextlib.suppress(WorkerLostError):  # the ledger may be lost too
            while self._ledger.get(f"{self._closed}/bye/{peer}") is None:
                if time.monotonic() >= ends_s:
                    return False
                time.sleep(_POLL_S)
            return True
        return False

    def _mix(self, peer: int, buffers: _Buffers, *, asks: bool) -> None:
        with buffers.copies.beside():
            self._mix_beside(peer, buffers, asks=asks)

    def _mix_beside(self, peer: int, buffers: _Buffers, *, asks: bool) -> None:
        own, other = buffers.own, buffers.other
        buffers.copies.take(self.weights, self.lock, own)
        try:
            self._send(own, peer, _WEIGHTS, asks=asks, out=other)
        except WorkerLostError:
            buffers.renew()
            raise
        distance = difference(own, other)
        if math.isfinite(distance):
            added = buffers.copies.to_device(other)
            with self.lock:
                self.weights.add_(added, alpha=self.share)
                self.staleness += 1
                self.counts.mixed += 1
                self.counts.distance = distance
        else:  # the partner sees the same distance and skips it too
            self.counts.left_out += 1
            LOG.warning("%s and %s: weights are not finite; not mixed", self.names[self.group.rank], self.names[peer])

    def _to_next(self, call: Callable[[int], Any]) -> None:
        """`call(peer)` with the next worker that is not lost."""
        while (peer := self._neighbour(1)) is not None:
            try:
                call(peer)
                return
            except WorkerLostError as error:
                self._lose(peer, error)

    def _neighbour(self, direction: int) -> int | None:
        """The nearest next or previous worker that is not lost; None if this one is alone."""
        size, rank = self.group.size, self.group.rank
        around = ((rank + direction * i) % size for i in range(1, size))
        return next((peer for peer in around if peer not in self.counts.lost), None)

    def _lose(self, peer: int, error: WorkerLostError) -> None:
        with self.lock:
            known = peer in self.counts.lost
            self.counts.lost.add(peer)
        if not known:
            LOG.warning("%s: %s is lost, skipped: %s", self.names[self.group.rank], self.names[peer], error.message)

    def _exchange(self, word: int, peer: int, tag: int, *, asks: bool) -> int:
        return int(self._send(torch.tensor([word]), peer, tag, asks=asks))

    def _send(self, tensor: Tensor, peer: int, tag: int, *, asks: bool, out: Tensor | None = None) -> Tensor:
        """Swap tensors with a peer. The last two workers of a ring share two edges: tags tell which of them asks."""
        asker, server = (self.group.rank, peer) if asks else (peer, self.group.rank)
        return self.group.exchange(tensor, peer, 2 * tag + int(asker > server), out).wait()
