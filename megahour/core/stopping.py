"""Stops a command cleanly: SIGTERM (from `kill`, a scheduler or a container) is handled like Ctrl-C, and neither gets
lost in a library that swallows exceptions."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

TWICE_S = 1.0  # `timeout` and others signal a process and, a moment later, its group

AGAIN_S = 1.0


class Interrupted(KeyboardInterrupt):
    """SIGINT has arrived. Unlike Python's own, it can have weak references."""


class Terminated(KeyboardInterrupt):
    """SIGTERM has arrived; the cleanup for Ctrl-C applies."""

    def __init__(self) -> None:
        super().__init__("stopped by SIGTERM")


def signal_name(stop: KeyboardInterrupt) -> str:
    """The name of the signal: SIGTERM, or SIGINT for Ctrl-C."""
    return (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT).name


def said(stop: KeyboardInterrupt) -> str:
    """The start of the closing line. SIGTERM is named because someone else sent it; the user knows about Ctrl-C."""
    return f"Stopped by {signal_name(stop)}" if isinstance(stop, Terminated) else "Stopped"


def exit_code(stop: KeyboardInterrupt) -> int:
    """The exit code that a shell reports for a process ended by this signal."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def end_by_signals() -> None:
    """Raise Interrupted in the main thread at SIGINT and Terminated at SIGTERM; a second SIGTERM ends the process.

    A shell that has SIGINT ignored (`&`, `nohup`) keeps it so. Call `no_more_signals` when the command has ended.
    """
    first_s: list[float] = []
    signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def interrupt(number: int, frame: FrameType | None) -> None:
        _raise(Interrupted)

    def terminate(number: int, frame: FrameType | None) -> None:
        if first_s:
            if time.monotonic() - first_s[0] > TWICE_S:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return None
        first_s.append(time.monotonic())
        _raise(Terminated)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, terminate)


def no_more_signals() -> None:
    """The command has ended: a stop that it has dealt with is not raised again.

    Nor is one that comes while the process exits: each of its exit functions swallows what it raises, and another one
    would end the next.
    """
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def stops_held() -> Iterator[None]:
    """SIGINT and SIGTERM wait for the end of the block; a second one that comes more than `TWICE_S` later does not.

    To block them in this thread would not do: another thread gets the signal, and Python runs its handler in this one.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    came: list[tuple[float, int]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if came and time.monotonic() - came[0][0] > TWICE_S:
            came.clear()
            before[signal.Signals(number)](number, frame)
        came.append((time.monotonic(), number))

    here = threading.current_thread() is threading.main_thread()  # others can set no handler, and get no signal
    try:
        for number in before if here else ():
            signal.signal(number, hold)
        yield
    finally:
        for number, handler in before.items() if here else ():
            signal.signal(number, handler)
        if came:  # also if the block failed: a process that it started may have got the signal, too
            signal.raise_signal(came[0][1])


def _raise(kind: type[KeyboardInterrupt]) -> NoReturn:
    """Raise a stop, and every `AGAIN_S` another one if it has got lost.

    Some libraries catch every exception: pyarrow imports pandas when it first converts an array to numpy, and ignores
    any exception from that import. A stop without references is one that no code handles: from `resumable` to the end
    of the process, SystemExit refers to it as its context.
    """
    stop = kind()
    known = weakref.ref(stop)

    def again(number: int, frame: FrameType | None) -> None:
        if known() is None:
            _raise(kind)

    if signal.getsignal(signal.SIGALRM) is not signal.SIG_IGN:
        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S, AGAIN_S)
    try:
        raise stop
    finally:
        del stop  # its traceback has this frame, which would keep it alive
