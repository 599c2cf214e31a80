"""How a command is stopped: SIGTERM, of `kill`, a scheduler or a container, is the same to it as Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

TWICE_S = 1.0  # `timeout` and others send the signal to a process, and to its group in the next moment


class Terminated(KeyboardInterrupt):
    """SIGTERM has come. Whatever cleans up after Ctrl-C does so now."""

    def __init__(self) -> None:
        super().__init__("stopped by SIGTERM")


def signal_name(stop: KeyboardInterrupt) -> str:
    """The signal that has come: SIGTERM or SIGINT, which is Ctrl-C's."""
    return (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT).name


def said(stop: KeyboardInterrupt) -> str:
    """How a line about the end begins. Who pressed Ctrl-C knows it; a SIGTERM is someone else's, and is named."""
    return f"Stopped by {signal_name(stop)}" if isinstance(stop, Terminated) else "Stopped"


def exit_code(stop: KeyboardInterrupt) -> int:
    """What a shell shows for a process that the signal has ended."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def end_by_sigterm() -> None:
    """Raise Terminated in the main thread at SIGTERM; a second one ends the process at once."""
    came_s: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if came_s:
            if time.monotonic() - came_s[0] > TWICE_S:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return None
        came_s.append(time.monotonic())
        raise Terminated

    signal.signal(signal.SIGTERM, stop)
