"""Pending calls of a `TorchGroup`, and the threads that complete them beside the training loop."""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from megahour.core.errors import MegahourError
from megahour.sync.group.base import Traffic
from megahour.sync.group.mesh import Mesh, of_transport

T = TypeVar("T")
Blame = Callable[[str, Exception], MegahourError]
"""Builds the error of a failed call from its name and the exception."""


class TorchCall(Protocol):
    """Pending messages."""

    def end(self) -> None:
        """Complete the call; raises errors that are `of_transport` if a worker is lost."""


class TorchWork:
    """`Work` of processes, completed by a helper thread or by the waiting thread, whichever is first."""

    def __init__(
        self, name: str, call: TorchCall, result: Callable[[], Tensor], clock: Stopwatch, blame: Blame
    ) -> None:
        self._name, self._call, self._result, self._clock, self._blame = name, call, result, clock, blame
        self._began_s = time.monotonic()
        self._ended_s = 0.0
        self._taken = threading.Lock()
        self._ended = threading.Event()
        self._error: Exception | None = None
        self._value: Tensor | None = None

    def run(self) -> None:
        """Complete the call, unless another thread does."""
        if not self._taken.acquire(blocking=False):
            return
        try:
            self._call.end()
        except Exception as error:  # any error goes to the waiting thread
            self._error = error
        self._ended_s = time.monotonic()
        self._ended.set()

    def wait(self) -> Tensor:
        """Its result, once it has ended."""
        if self._value is None:
            before_s = time.monotonic()
            self.run()
            self._ended.wait()  # the thread that runs it observes the time limit
            self._clock.add(before_s, self._began_s, self._ended_s)
            if self._error is not None:
                if not of_transport(self._error):
                    raise self._error
                raise self._blame(self._name, self._error) from self._error
            self._value = self._result()
        return self._value


class Ready:
    """`Work` that is done already, for a single worker."""

    def __init__(self, value: Tensor) -> None:
        self._value = value

    def wait(self) -> Tensor:
        """Its result."""
        return self._value


class Stopwatch:
    """Adds up bytes and seconds, from any thread; waits of threads other than its creator's count as hidden."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._owner = threading.get_ident()
        self._lock = threading.Lock()

    def count(self, sent_bytes: int, received_bytes: int) -> None:
        """Count the payload of a call."""
        with self._lock:
            self._traffic.sent_bytes += sent_bytes
            self._traffic.received_bytes += received_bytes

    def add(self, waited_from_s: float, began_s: float, ended_s: float) -> None:
        """Count a call with these times, which was waited for from `waited_from_s` until now."""
        mine = threading.get_ident() == self._owner
        exposed_s = time.monotonic() - waited_from_s if mine else 0.0
        with self._lock:
            self._traffic.exposed_s += exposed_s
            self._traffic.hidden_s += max(0.0, (min(waited_from_s, ended_s) if mine else ended_s) - began_s)


class Helper:
    """A thread that completes works in order; it starts with the first work, and ends with the helper."""

    def __init__(self) -> None:
        self._works: queue.SimpleQueue[TorchWork | None] = queue.SimpleQueue()
        self._started = False

    def take(self, work: TorchWork) -> None:
        """Complete `work` after those before it."""
        if not self._started:
            self._started = True
            threading.Thread(target=_serve, args=(self._works,), name="sync-helper", daemon=True).start()
            weakref.finalize(self, self._works.put, None)
        self._works.put(work)


def _serve(works: queue.SimpleQueue[TorchWork | None]) -> None:
    """The helper thread's loop, until None arrives; it keeps no reference to works or helper longer than needed."""
    while (work := works.get()) is not None:
        work.run()
        del work


class TorchFork(Generic[T]):
    """A second thread of a worker. If the process exits first, its call ends with SystemExit (`end_forks_at_exit`)."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=FORK, daemon=True)
        self._thread.start()

    def ready(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def wait(self) -> T:
        """Wait for the end; returns the result of `call`, or raises its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error


FORK, JOIN_S = "sync-fork", 5.0
_meshes: weakref.WeakSet[Mesh] = weakref.WeakSet()
_exiting = threading.Event()


def end_forks_at_exit(mesh: Mesh) -> None:
    """End forks that wait for messages of `mesh` when the process exits before them, as after an exception.

    Python unwinds the threads that are left; out of gloo's C++ that aborts the process, "terminate called without an
    active exception".
    """
    if not _meshes:
        atexit.register(_end_forks)
    _meshes.add(mesh)


def at_exit() -> bool:
    """Whether the process is exiting, and waits are broken off."""
    return _exiting.is_set()


def _end_forks() -> None:
    forks = [thread for thread in threading.enumerate() if thread.name == FORK]
    if forks:
        _exiting.set()
        for mesh in _meshes:
            mesh.break_off()
        for fork in forks:
            fork.join(JOIN_S)
