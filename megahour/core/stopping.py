"""Stops a command cleanly: SIGTERM (from `kill`, a scheduler or a container) is handled like Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

TWICE_S = 1.0  # `timeout` and others signal a process and, a moment later, its group


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


def end_by_sigterm() -> None:
    """Raise Terminated in the main thread at SIGTERM; a second one ends the process at once."""
    first_s: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if first_s:
            if time.monotonic() - first_s[0] > TWICE_S:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return None
        first_s.append(time.monotonic())
        raise Terminated

    signal.signal(signal.SIGTERM, stop)
