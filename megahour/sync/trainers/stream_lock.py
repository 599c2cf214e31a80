"""A lock on weights that several threads change, also where they lie on a GPU: the host waits for no device in it.

On a GPU each thread has a stream of its own. Who holds the lock only puts work into its stream; that begins when the
work of the holder before has ended, which the device sees to. A copy to the host, which has to be waited for, is made
from a snapshot when the lock is free again: the training loop's kernels wait for no network, nor its thread for a copy.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor


class StreamLock:
    """Holders' work on `device` is done in the order in which they held the lock. On a CPU it is a plain lock."""

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
        """Whether a thread holds it."""
        return self._lock.locked()

    def _current(self) -> Any:
        return torch.cuda.current_stream(self._device)


class HostCopies:
    """One thread's copies of weights (D,) to the host and back, beside the training loop's stream."""

    def __init__(self, weights: Tensor) -> None:
        self._device = weights.device
        self._stream = torch.cuda.Stream(weights.device) if weights.is_cuda else None  # type: ignore[no-untyped-call]
        self._snapshot = None if weights.device.type == "cpu" else torch.empty_like(weights)

    def empty(self, elements: int) -> Tensor:
        """A vector on the host, in memory that the device reads and writes by itself."""
        return torch.empty(elements, pin_memory=self._stream is not None)

    def beside(self) -> AbstractContextManager[Any]:
        """This thread's work on the device is in a stream of its own."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def take(self, weights: Tensor, lock: StreamLock, out: Tensor) -> None:
        """Copies the weights as they are now into `out`, which is there when this returns."""
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
        """`vector` where the weights are; the host's stays as it is until the next `take`."""
        return vector if self._snapshot is None else vector.to(self._device, non_blocking=True)
