"""The interface of a group of workers: the few calls on which every synchroniser is built.

There are two groups: `torch_group.TorchGroup`, over a process group of torch.distributed (gloo or NCCL), and
`virtual.VirtualGroup`, whose workers are threads of one process that take turns, so that the same synchronisers run
with 1 to 256 workers on a laptop and give the same bits every time.

Except for `exchange`, all workers of a group make the same calls in the same order. A call that cannot end because a
worker is lost raises `WorkerLostError`, which names the call and, if known, the worker, or `WorkerFailedError`, which
names the exception that has ended it; no call waits for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from megahour.core.errors import MegahourError


class WorkerLostError(MegahourError):
    """A worker does not respond: it died or hangs, or the network is cut."""

    ranks: tuple[int, ...] = ()
    """Ranks in the group that are lost, if known."""


class WorkerFailedError(MegahourError):
    """A worker was ended by an exception of its program, which the message names; no machine is lost."""


@dataclass
class Traffic:
    """The cost of a worker's calls so far: payload bytes, and seconds for which its training loop waited."""

    sent_bytes: int = 0
    received_bytes: int = 0
    exposed_s: float = 0.0
    hidden_s: float = 0.0


class Work(Protocol):
    """A pending call."""

    def wait(self) -> Tensor:
        """Wait for the call; returns its result."""


class Group(Protocol):
    """N workers, numbered; this one is `rank`. Tensors are dense, of equal shape and dtype on all workers."""

    rank: int
    size: int
    traffic: Traffic

    def all_reduce(self, tensor: Tensor) -> Work:
        """Sum over the workers, in place, in the same order on all, so that all hold the same bits."""

    def all_gather(self, tensor: Tensor) -> Work:
        """(size, *tensor.shape): every worker's tensor, in the order of ranks."""

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        """Overwrite `tensor` with that of rank `source`."""

    def exchange(self, tensor: Tensor, peer: int, tag: int = 0, out: Tensor | None = None) -> Work:
        """Swap tensors with rank `peer`, which calls `exchange` with our rank and the same tag.

        Pairs of workers call it independently of all others, also from a second thread. The peer's tensor arrives in
        `out`, contiguous and like `tensor`, or in a new tensor.
        """

    def split(self, groups: Sequence[Sequence[int]]) -> Group | None:
        """The group in `groups` that contains this rank; None if none does. A collective call."""
