"""How long this process has compiled functions, or waited for another one that did.

A machine compiles each function once, so that this is no part of what a step costs at any size. Receipts' timings state
it apart, and `megahour plan` leaves it out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple


class Spent(NamedTuple):
    """seconds: on the clock. cpu_seconds: of this process, with what its other threads did meanwhile."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def since(self, before: Spent) -> Spent:
        return Spent(self.seconds - before.seconds, self.cpu_seconds - before.cpu_seconds)


class _CompileClock:
    """The time in which at least one thread compiles: a function compiles those that it calls within its own time."""

    def __init__(self) -> None:
        self.total = Spent()
        self._lock, self._compiling, self._began = Lock(), 0, Spent()

    def add(self, one: int) -> None:
        with self._lock:
            now = Spent(time.monotonic(), time.process_time())
            if self._compiling == 0:
                self._began = now
            self._compiling += one
            if self._compiling == 0:
                own = now.since(self._began)
                self.total = Spent(self.total.seconds + own.seconds, self.total.cpu_seconds + own.cpu_seconds)


_clock = _CompileClock()


def spent() -> Spent:
    """All that this process has spent so far."""
    return _clock.total


@contextmanager
def compiling() -> Iterator[None]:
    """Count the time within."""
    _clock.add(1)
    try:
        yield
    finally:
        _clock.add(-1)
