"""A lock on weights that several threads change, on CPU or GPU; a holder never waits for the device.

On a GPU each thread has its own stream. A holder of the lock only queues work on its stream, which the device starts
after the previous holder's work. A copy to the host has to wait for the device, so it is made from a snapshot after
the lock is released. So the training loop's kernels never wait for the network, nor its thread for a copy.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor


class StreamLock:
    """Orders the holders' work on `device` by the order in which they held the lock. On a CPU it is a plain lock."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._lock, self._last = device, threading.Lock(), None
        self._streams = device.type == "cuda"

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._last is not None:
            self._current().wait_event(self._last)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._streams:
            self._last = self._current().record_event()
        self._lock.release()

    def locked(self) -> bool:
        """Whether a thread holds the lock."""
        return self._lock.locked()

    def _current(self) -> Any:
        return torch.cuda.current_stream(self._device)


class HostCopies:
    """Copies weights (D,) to the host and back for one thread, on a stream other than the training loop's."""

    def __init__(self, weights: Tensor) -> None:
        self._device = weights.device
        self._stream = torch.cuda.Stream(weights.device) if weights.is_cuda else None  # type: ignore[no-untyped-call]
        self._snapshot = None if weights.device.type == "cpu" else torch.empty_like(weights)

    def empty(self, elements: int) -> Tensor:
        """A vector on the host, in page-locked memory."""
        return torch.empty(elements, pin_memory=self._stream is not None)

    def beside(self) -> AbstractContextManager[Any]:
        """A context in which this thread's device work goes to its own stream."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def take(self, weights: Tensor, lock: StreamLock, out: Tensor) -> None:
        """Copy the current weights into `out`; the copy is complete on return."""
        if self._snapshot is None:
            with lock:
                out.copy_(weights)
            return
        with lock:
            self._snapshot.copy_(weights)
        out.copy_(self._snapshot, non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()

    def to_device(self, vector: Tensor) -> Tensor:
        """Copy `vector` to the weights' device; `vector` must not change until the next `take`."""
        return vector if self._snapshot is None else vector.to(self._device, non_blocking=True)
