"""Processes that run steps beside each other; monitors in this process learn what happens in them.

Each training has a process of its own, because torch has one random generator and one number of threads for all of one.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, Self

from megahour.core.errors import MegahourError
from megahour.core.stopping import end_by_signals, exit_code, no_more_signals
from megahour.engine.base import EngineError, Failure, interrupts_held
from megahour.engine.pool import AS_SCRIPT, die_with_driver, how_it_ended
from megahour.runner import log
from megahour.runner.monitor import Monitor

if TYPE_CHECKING:
    from megahour.engine.base import Engine
    from megahour.runner.job import Job

EVENTS = ("started", "took", "task_done", "progress", "hint", "stopped", "finished")  # of `Monitor`, sent as they are
ENDED, FAILED = "step-ended", "step-failed"
STOP_LIMIT_S = 300.0  # to commit what is finished; then it is killed, which loses no committed shard either

Work = Callable[[], AbstractContextManager[Callable[[str, Monitor], Any]]]
"""Picklable, and entered once in each process: yields the function that runs a step by its name."""


class StepProcess:
    """A process that runs one step at a time, and the monitor of that step; None while it is idle."""

    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        lifeline, self._lifeline = context.Pipe(duplex=False)
        arguments = (work, log.begun(), theirs, lifeline)
        self.process = context.Process(target=_serve, args=arguments, name="megahour-steps")
        with interrupts_held():
            self.process.start()
        theirs.close()
        lifeline.close()
        self.monitor: Monitor | None = None
        self.step = ""
        self._size = _Size(1)
        self._began = self._closed = False

    def begin(self, step: str, monitor: Monitor) -> None:
        self.step, self.monitor = step, monitor
        with suppress(OSError):  # a dead process is reported by `receive`
            self.connection.send(step)

    def receive(self) -> tuple[Any] | None:
        """Report events to the monitor; the step's result, None while it runs. Raises what the step raised, or
        EngineError: the process was killed.
        """
        dead = not self.process.is_alive()  # checked first: a result sent before the death is in the pipe by now
        while (message := self._message()) is not None:
            event, lost, given, named = message
            self._began = True
            if event == "begins":
                self._size = given[-1]
            self._size.lost = lost
            if event in (ENDED, FAILED):
                self.monitor = None
            if event == ENDED:
                return (given[0],)
            if event == FAILED:
                failure, cause = given
                if failure.error is None:
                    failure.throw()
                raise failure.error from cause
            getattr(self.monitor, event)(*given, **named)
        if dead or self._closed:
            raise self._death()
        return None

    def _message(self) -> Any:
        """The next message that has come; None: there is none, or the process has closed the pipe."""
        with suppress(EOFError, OSError):
            return self.connection.recv() if self.connection.poll() else None
        self._closed = True
        return None

    def _death(self) -> EngineError:
        self.process.join()
        if self.process.exitcode == 1 and not self._began:
            what = "the step's process cannot begin; Python's message above says why"
            return EngineError(what, where=self.step, remedy=AS_SCRIPT)
        what = how_it_ended(self.process.exitcode, "the step's process")
        return EngineError(what, where=self.step, remedy="the same command resumes; lower steps_at_once if need be")

    def stop(self) -> None:
        """Ask it to end, as by SIGTERM if it runs a step, without waiting for it."""
        if self.monitor is not None:
            self.process.terminate()
            self.monitor.stopped()
        with suppress(OSError):
            self.connection.close()

    def bury(self, limit_s: float = STOP_LIMIT_S) -> None:
        self.process.join(limit_s)
        self.process.kill()
        self.process.join()
        self._lifeline.close()
        self.process.close()


class StepProcesses:
    """Processes that run steps at once; they stay warm between steps, and are stopped at the end of `with`."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._all: list[StepProcess] = []
        # At exit multiprocessing joins its children, also after a second Ctrl-C.
        self._at_exit = Finalize(self, _kill, args=(self._all,), exitpriority=10)

    def begin(self, step: str, monitor: Monitor) -> None:
        """Run a step in an idle process, or in a new one."""
        idle = [each for each in self._all if each.monitor is None and each.process.is_alive()]
        process = idle[0] if idle else None
        if process is None:
            self._all.append(process := StepProcess(self._work))
        process.begin(step, monitor)

    def wait(self) -> Iterator[tuple[str, Any]]:
        """Wait until a step ends; yields the name and the result of each that has ended.

        Raises what a step raised, or EngineError: its process was killed.
        """
        ended: list[tuple[str, Any]] = []
        while not ended:
            busy = [each for each in self._all if each.monitor is not None]
            wait([end for each in busy for end in (each.connection, each.process.sentinel)])
            received = [(each, each.receive()) for each in busy]
            ended = [(each.step, result[0]) for each, result in received if result is not None]
        yield from ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for each in self._all:
            each.stop()
        while self._all:
            self._all[-1].bury()
            self._all.pop()


def _kill(processes: list[StepProcess]) -> None:
    for each in processes:
        each.process.kill()
    while processes:
        processes.pop().bury()


@dataclass(eq=False)
class _Size:
    """What monitors read of an engine, which stays in its process. lost: attempts of one step."""

    workers: int
    lost: int = 0


class _Reports(Monitor):
    """Sends its events to the monitor in the process that started this one."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self._engine: Any = None
        self._lost_before = 0
        for event in EVENTS:
            setattr(self, event, partial(self.send, event))

    def begins(self, stage: str, job: Job, engine: Engine) -> None:
        self._engine, self._lost_before = engine, getattr(engine, "lost", 0)
        self.send("begins", stage, job, _Size(engine.workers))

    def send(self, event: str, *given: Any, **named: Any) -> None:
        lost = getattr(self._engine, "lost", 0) - self._lost_before
        with self._lock, suppress(OSError):  # the reader has closed the pipe: this process is being stopped
            self._connection.send((event, lost, given, named))


def _serve(work: Work, begun: dict[str, Any], connection: Connection, lifeline: Connection) -> None:
    """Run steps until the other process closes the pipe, or dies. Ctrl-C is left to that one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    end_by_signals()
    die_with_driver(lifeline)
    if begun:
        log.begin(**begun)
    try:
        _run_each(work, connection)
    except KeyboardInterrupt as stop:
        sys.exit(exit_code(stop))
    finally:
        no_more_signals()


def _run_each(work: Work, connection: Connection) -> None:
    reports, step = _Reports(connection), ""
    try:
        with work() as run:
            for step in _received(connection):
                log.of_step(step)
                reports.send(ENDED, run(step, reports))
    except Exception as error:
        cause = error.__cause__ if isinstance(error.__cause__, MegahourError) else None
        reports.send(FAILED, Failure.of(error, "step", step), cause)


def _received(connection: Connection) -> Iterator[str]:
    with suppress(EOFError, OSError):
        while True:
            yield connection.recv()
