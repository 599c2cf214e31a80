"""How a worker talks to the others: the few calls that every synchroniser is written with.

There are two groups: `torch_group.TorchGroup`, over a process group of torch.distributed (gloo or NCCL), and
`virtual.VirtualGroup`, whose workers are threads of one process that take turns, so that the same synchronisers run
with 1 to 256 workers on a laptop and give the same bits every time.

Except for `exchange`, all workers of a group make the same calls in the same order. A call that cannot end because a
worker is lost raises `WorkerLostError`, which names the call and what is known of the worker, or `WorkerFailedError`,
which names the exception that has ended it; no call waits for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from megahour.core.errors import MegahourError


class WorkerLostError(MegahourError):
    """A worker does not answer: it died, hangs, or the network between us is cut."""

    ranks: tuple[int, ...] = ()
    """Of those in the group who are lost, where that is known."""


class WorkerFailedError(MegahourError):
    """A worker does not answer as an exception of its program has ended it, which is named: no machine is lost."""


@dataclass
class Traffic:
    """What a worker's calls cost it so far: payload bytes and seconds that its training loop waited."""

    sent_bytes: int = 0
    received_bytes: int = 0
    exposed_s: float = 0.0
    hidden_s: float = 0.0


class Work(Protocol):
    """A call under way."""

    def wait(self) -> Tensor:
        """Its result, once it has ended."""


class Group(Protocol):
    """N workers, numbered; this one is `rank`. Tensors are dense, of equal shape and dtype on all workers."""

    rank: int
    size: int
    traffic: Traffic

    def all_reduce(self, tensor: Tensor) -> Work:
        """Sum over the workers, in place; the order of the sum is the same on all, so that all hold the same bits."""

    def all_gather(self, tensor: Tensor) -> Work:
        """(size, *tensor.shape): every worker's tensor, in the order of ranks."""

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        """Overwrites `tensor` with that of rank `source`."""

    def exchange(self, tensor: Tensor, peer: int, tag: int = 0, out: Tensor | None = None) -> Work:
        """What rank `peer` sends us in its call of `exchange` with our rank and the same tag, while it gets `tensor`.

        Pairs of workers call it independently of all others, also from a second thread. It arrives in `out`, of the
        kind of `tensor` and contiguous, or in a new tensor.
        """

    def split(self, groups: Sequence[Sequence[int]]) -> Group | None:
        """The group of those ranks in `groups` that hold this one; None where none does. A collective call."""
