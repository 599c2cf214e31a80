"""Finds out why a worker does not respond: it has reported an exception, or it is lost.

Workers that notice a failure write to the store, and those that write nothing are lost. A worker ended by an exception
reports it first.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeVar

from torch._C._distributed_c10d import Store

from megahour.sync.group.base import WorkerLostError

T = TypeVar("T")
_POLL_S = 0.05
_FAILED = "megahour/failed"
_ANSWER_S = 1.0  # within which a live store responds


def lost_ranks(
    store: Store | None, name: str, rank: int, size: int, suspect: int | None, grace_s: float, timeout_s: float
) -> list[int]:
    """Ranks of lost workers, as far as known after `grace_s`; empty: all respond, or there is no store to ask.

    Each caller writes the time to `store` under `name` and its rank. The suspect, the other end of the broken
    connection, counts as lost unless it writes in time, as a victim itself; then those that write nothing are lost.
    Without a store, or if its host is lost too, the suspect is named. What was written more than `timeout_s` ago tells
    nothing: a group may outlive a loss (gossip), and a worker that answered then may be lost now.
    """
    suspected = [] if suspect is None else [suspect]
    if store is None:
        return suspected
    answered: set[int] = set()
    in_time(lambda: _ask(store, name, rank, range(size), grace_s, timeout_s, answered), grace_s + _ANSWER_S)
    if rank not in answered or (suspect is not None and suspect not in answered):
        return suspected
    return [other for other in range(size) if other not in answered]


class Failures:
    """Reports which worker of a process group an exception has ended; the first one causes the others' errors.

    Parameters
    ----------
    store: of the process group; None: nothing can be reported.
    rank: of this worker there.
    """

    def __init__(self, store: Store | None, rank: int) -> None:
        self._store, self._rank = store, rank

    def tell(self, error: BaseException) -> None:
        """Report that `error` ends this worker."""
        if (store := self._store) is not None:
            what = f"worker {self._rank} failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            in_time(lambda: store.compare_set(_FAILED, "", what), _ANSWER_S)

    def first(self) -> str:
        """The first worker that failed, with its error; empty if there is none, or the store does not respond."""
        if (store := self._store) is None:
            return ""
        return in_time(lambda: store.get(_FAILED).decode() if store.check([_FAILED]) else "", _ANSWER_S) or ""

    def tell_at_exit(self) -> None:
        """While this object exists, an uncaught exception that ends the process is reported to the other workers."""
        if not isinstance(sys.excepthook, _Hook):
            sys.excepthook = _Hook(sys.excepthook)
        _told_at_exit.add(self)


class _Hook:
    """An exception hook that calls the previous hook and reports the error."""

    def __init__(self, before: Callable[[type[BaseException], BaseException, TracebackType | None], object]) -> None:
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._before(kind, error, trace)
        if isinstance(error, Exception) and not isinstance(error, WorkerLostError):  # Ctrl-C reaches all
            for failures in list(_told_at_exit):
                failures.tell(error)


_told_at_exit: weakref.WeakSet[Failures] = weakref.WeakSet()


def in_time(call: Callable[[], T], seconds: float) -> T | None:
    """The result of a `call` to a store; None if the store's host is gone or hangs."""
    results: list[T] = []

    def run() -> None:
        with contextlib.suppress(RuntimeError):
            results.append(call())

    asking = threading.Thread(target=run, daemon=True)
    asking.start()
    asking.join(seconds)
    return results[0] if results else None


def _ask(
    store: Store, name: str, rank: int, ranks: Sequence[int], grace_s: float, timeout_s: float, answered: set[int]
) -> None:
    since_s = time.time() - timeout_s  # by the clocks of the workers' machines
    ends_s = time.monotonic() + grace_s

    def has_answered(other: int) -> bool:
        key = f"{name}/{other}"
        return store.check([key]) and float(store.get(key)) > since_s

    try:
        store.set(f"{name}/{rank}", str(time.time()))
        while len(answered) < len(ranks) and time.monotonic() < ends_s:
            answered.update(other for other in ranks if other not in answered and has_answered(other))
            time.sleep(_POLL_S)
    except RuntimeError:
        answered.clear()  # the store's host is gone: its contents tell nothing about the others
