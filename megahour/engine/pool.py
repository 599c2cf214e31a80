"""Worker processes of the local engine, each with its own pipe, so that a death affects one task only.

`concurrent.futures` gives up the whole pool when a worker is killed; here the driver sees which worker died on which
task, and starts another. Workers are spawned, never forked (a fork copies the locks of the driver's threads); they
leave Ctrl-C to the driver, and die with it however it dies.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from megahour.engine.base import THREAD_VARIABLES, Failure, Outcome, Success, interrupts_held, packed

STARTED = b""  # sent once the task's code is imported; its time limit starts here
IMPORT_LIMIT_S = 300.0  # for the imports before that
EXIT_LIMIT_S = 3.0
AS_SCRIPT = (
    "keep a script in a file, not on standard input, and what it does under `if __name__ == '__main__':`, since each "
    "worker imports it"
)
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


class WorkerDied(Exception):
    """The process has ended; the message explains how."""


@dataclass(frozen=True)
class Attempt:
    """One try at one item: `call(item)`, or `call(index, item)` when `indexed`."""

    index: int
    item: Any
    task: str
    indexed: bool = False
    number: int = 1


class PoolWorker:
    """One worker process and the driver's ends of its pipes."""

    def __init__(self, time_limit_s: float | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        lifeline, self._lifeline = context.Pipe(duplex=False)
        self.process = context.Process(target=serve, args=(theirs, lifeline), name="megahour-worker")
        with _single_threaded(), interrupts_held():
            self.process.start()
        theirs.close()
        lifeline.close()
        self.attempt: Attempt | None = None
        self._began = False
        self.deadline_s: float  # of the attempt
        self._time_limit_s = float("inf") if time_limit_s is None else time_limit_s
        self._call = b""

    def give(self, call: bytes, attempt: Attempt) -> None:
        """Start an attempt. Pickling errors are raised here, in the driver; a dead worker is reported by `receive`."""
        message = pickle.dumps((attempt.item, attempt.task, (attempt.index,) if attempt.indexed else ()))
        self.attempt = attempt
        self.deadline_s = time.monotonic() + IMPORT_LIMIT_S
        with suppress(OSError):
            self.connection.send_bytes(b"" if call == self._call else call)
            self.connection.send_bytes(message)
        self._call = call

    def receive(self) -> Outcome | None:
        """The outcome of the attempt, None while it runs. Raises WorkerDied."""
        dead = not self.process.is_alive()  # checked first: a result sent before the death is in the pipe by now
        try:
            while self.connection.poll():
                message = self.connection.recv_bytes()
                if message == STARTED:
                    self._began = True
                    self.deadline_s = time.monotonic() + self._time_limit_s
                    continue
                outcome: Outcome = pickle.loads(message)
                if isinstance(outcome, Failure):
                    self._call = b""  # the call may have failed to import: send it again
                self.attempt = None
                return outcome
        except (EOFError, OSError):
            dead = True
        if dead:
            raise WorkerDied(self.epitaph())
        return None

    def epitaph(self) -> str:
        """How the process ended."""
        self.process.join(EXIT_LIMIT_S)
        return how_it_ended(self.process.exitcode, "its worker")

    @property
    def never_began(self) -> bool:
        """Whether the process died before it had imported the user's script; Python has printed why."""
        return not self._began and self.process.exitcode == 1

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self._close()

    def dismiss(self) -> None:
        """Ask an idle worker to end, without waiting for it."""
        with suppress(OSError):
            self.connection.close()

    def bury(self) -> None:
        """Wait for a dismissed worker; kill it when it lingers."""
        self.process.join(EXIT_LIMIT_S)
        self.kill()

    def _close(self) -> None:
        self.connection.close()
        self._lifeline.close()
        self.process.close()


def serve(connection: Connection, lifeline: Connection) -> None:
    """The worker's loop: receive a call and an item, reply with an outcome, until the driver closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    die_with_driver(lifeline)
    call: Any = None
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            new_call, message = connection.recv_bytes(), connection.recv_bytes()
            item, task = None, "task"
            try:
                item, task, before = pickle.loads(message)
                call = pickle.loads(new_call) if new_call else call
                connection.send_bytes(STARTED)
                outcome: Outcome = Success(call(*before, item))
            except (Exception, SystemExit) as error:
                outcome = Failure.of(error, task, item)
            connection.send_bytes(packed(outcome, task=task, item=item))


def die_with_driver(lifeline: Connection) -> None:
    """End this process when the driver's end of the pipe closes, which the kernel ensures however the driver dies.

    A thread sees the end of file on every system, but not while a task holds the interpreter's lock in a long call
    into C; for that case Linux's SIGIO, whose default action ends the process, needs no interpreter.
    """
    threading.Thread(target=_exit_at_end, args=(lifeline,), daemon=True).start()
    descriptor = lifeline.fileno()
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)


def _exit_at_end(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


def how_it_ended(code: int | None, process: str) -> str:
    """A clause about a process that is gone. code: as of `multiprocessing`, None while it has not exited."""
    if code is None:
        return f"{process} closed its pipe"
    if code >= 0:
        return f"{process} ended with exit code {code}"
    hint = " (often by the kernel, out of memory)" if -code == KILL else ""
    return f"{process} was killed by {signal.Signals(-code).name}{hint}"


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Limit workers to one thread: the variables must be in their environment before the first import."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
