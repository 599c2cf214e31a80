"""The local engine: a pool of processes on this machine, the default."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import psutil

from megahour.core.errors import ConfigError
from megahour.engine.base import Call, EngineBase, EngineError, Failure, Outcome, TaskFailed, Tree, in_order, shown
from megahour.engine.pool import AS_SCRIPT, Attempt, PoolWorker, WorkerDied

LOG = logging.getLogger(__name__)
MEMORY_CHECK_S = 0.5


class LocalEngine(EngineBase):
    """`map`, `exchange` and `reduce` over worker processes that stay warm between calls.

    Parameters
    ----------
    workers: processes; by default the cores that this process may use.
    retries: further attempts at a task whose worker was killed or timed out. Exceptions are not retried.
    task_timeout_s: seconds that one attempt may take; None for no limit.
    in_flight: items taken from the input whose results have not been yielded yet; by default 2 × workers.
    memory_bytes: resident memory above which a worker is killed, before the machine runs out.

    One call runs at a time: a new call stops the tasks of an unfinished one. `lost` counts the attempts whose worker
    was killed or timed out.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        retries: int = 2,
        task_timeout_s: float | None = None,
        in_flight: int | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        self.workers = workers if workers is not None else usable_cores()
        self.retries = retries
        self.task_timeout_s = task_timeout_s
        self.in_flight = in_flight if in_flight is not None else 2 * self.workers
        self.memory_bytes = memory_bytes
        for name, least in (("workers", 1), ("retries", 0), ("in_flight", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}, it must be at least {least}")
        self.lost = 0
        self._pool: list[PoolWorker] = []
        self._flow: _Flow | None = None
        # At exit multiprocessing joins its children: an engine that was not closed must stop its workers before that.
        self._at_exit = Finalize(self, _stop, args=(self._pool,), exitpriority=10)

    def close(self) -> None:
        """Stop all workers; a later call starts new ones."""
        if self._flow is not None:
            self._flow.stop()
        _stop(self._pool)

    def _each(self, call: Call, items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Items may come from an endless generator: at most `in_flight` are taken ahead."""
        return self._run("task", call, items)

    def exchange(
        self, split: Call, items: Iterable[Any], merge: Call, partitions: int, *, spill: str
    ) -> Iterator[tuple[int, Any]]:
        """See `Engine.exchange`. Batches go through spill files (`spills`): memory holds one block per worker.

        Spill files of a killed run are removed and written again: splits are cheap compared with other tasks.
        """
        from megahour.engine import spills

        Path(spill).mkdir(parents=True, exist_ok=True)
        for leftover in Path(spill).glob("exchange-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        folder = tempfile.mkdtemp(prefix="exchange-", dir=spill)
        try:
            spill_task = partial(spills.spill, split, folder, partitions)
            tasks = sum(1 for _ in self._run("split task", spill_task, items, indexed=True))
            files = [spills.spill_path(Path(folder), task) for task in range(tasks)]
            for level in spills.levels(files, partitions, self.workers):
                for at, _ in self._run("gather task", spills.gather, level):
                    spills.remove_gathered(level, at)
                files = [gathering.target for gathering in level]
            yield from self._run("merge task", partial(spills.merge_spilled, merge, files), range(partitions))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def reduce(self, call: Call, items: Iterable[Any], combine: Call) -> Any:
        """See `Engine.reduce`. Results are combined here, in order, while other tasks run."""
        tree = Tree(combine)
        for result in in_order(self._run("task", call, items)):
            tree.add(result)
        return tree.result()

    def _run(self, what: str, call: Call, items: Iterable[Any], *, indexed: bool = False) -> Iterator[tuple[int, Any]]:
        if self._flow is not None:
            self._flow.stop()
        self._flow = flow = _Flow(self, self._pool, call, _attempts(what, items, indexed))
        try:
            yield from flow.results()
        finally:
            flow.stop()


class _Flow:
    """One call over many items: running attempts, attempts to repeat, and the rest of the input."""

    def __init__(self, engine: LocalEngine, pool: list[PoolWorker], call: Call, attempts: Iterator[Attempt]) -> None:
        self._engine = engine
        self._pool = pool
        self._call = pickle.dumps(call)
        self._attempts = attempts
        self._again: deque[Attempt] = deque()
        self._stopped = False

    def results(self) -> Iterator[tuple[int, Any]]:
        while True:
            self._fill(held=0)
            if not self._running():
                return
            finished = self._collect()
            self._fill(held=len(finished))  # before the caller processes the results
            for result in finished:
                yield result
                if self._stopped:
                    raise EngineError("this call was stopped: its engine was closed, or started another call")

    def stop(self) -> None:
        """Kill the workers that still have a task: their output would not be used."""
        if not self._stopped:
            self._stopped = True
            for worker in self._running():
                self._discard(worker)

    def _running(self) -> list[PoolWorker]:
        return [worker for worker in self._pool if worker.attempt is not None]

    def _fill(self, held: int) -> None:
        """Give tasks to idle workers while `in_flight` allows; `held` results wait for the caller."""
        running = len(self._running())
        while running < self._engine.workers and running + held < self._engine.in_flight:
            following = self._again.popleft() if self._again else next(self._attempts, None)
            if following is None:
                return
            self._idle_worker().give(self._call, following)
            running = len(self._running())

    def _idle_worker(self) -> PoolWorker:
        for worker in [worker for worker in self._pool if worker.attempt is None]:
            if worker.process.is_alive():
                return worker
            self._discard(worker)  # it was killed while idle
        worker = PoolWorker(self._engine.task_timeout_s)
        self._pool.append(worker)
        return worker

    def _collect(self) -> list[tuple[int, Any]]:
        """Wait for at least one event, then collect all outcomes."""
        running = self._running()
        ends = [end for worker in running for end in (worker.connection, worker.process.sentinel)]
        wait(ends, self._patience_s(running))
        finished = []
        for worker in running:
            attempt = worker.attempt
            assert attempt is not None  # it runs
            try:
                outcome = worker.receive()
            except WorkerDied as death:
                if worker.never_began:
                    what, where = "its worker cannot begin; Python's message above says why", shown(attempt.item)
                    raise TaskFailed(
                        what, where=f"{attempt.task} ({where})", remedy=AS_SCRIPT, item=attempt.item
                    ) from None
                self._lost(worker, str(death))
                continue
            if outcome is None:
                self._check_limits(worker)
            else:
                finished.append((attempt.index, _value(outcome)))
        return finished

    def _patience_s(self, running: list[PoolWorker]) -> float | None:
        remaining_s = min(worker.deadline_s for worker in running) - time.monotonic()
        if self._engine.memory_bytes is not None:
            remaining_s = min(remaining_s, MEMORY_CHECK_S)
        return None if remaining_s == float("inf") else max(0.0, remaining_s)

    def _check_limits(self, worker: PoolWorker) -> None:
        if time.monotonic() > worker.deadline_s:
            self._lost(worker, f"its worker ran longer than task_timeout_s = {self._engine.task_timeout_s}")
        elif self._engine.memory_bytes is not None:
            used_bytes = _resident_bytes(worker)
            if used_bytes > self._engine.memory_bytes:
                self._lost(worker, f"its worker used {used_bytes} bytes, memory_bytes is {self._engine.memory_bytes}")

    def _lost(self, worker: PoolWorker, reason: str) -> None:
        """Discard a worker and retry its task while attempts are left."""
        attempt = worker.attempt
        assert attempt is not None  # it ran
        self._discard(worker)
        self._engine.lost += 1
        if attempt.number > self._engine.retries:
            raise TaskFailed(
                f"{reason}; that was attempt {attempt.number} of {self._engine.retries + 1}",
                where=f"{attempt.task} ({shown(attempt.item)})",
                remedy="make the task smaller (smaller shards), allow more memory or time, or use fewer workers",
                item=attempt.item,
            )
        tries = self._engine.retries - attempt.number + 1
        message = f"retrying {attempt.task} ({tries} left): {reason}"
        facts = {"task": attempt.task, "attempt": attempt.number, "reason": reason}
        LOG.warning("%s", message, extra={"event": "worker-lost", "facts": facts})
        self._again.append(replace(attempt, number=attempt.number + 1))

    def _discard(self, worker: PoolWorker) -> None:
        self._pool.remove(worker)
        worker.kill()


def _attempts(what: str, items: Iterable[Any], indexed: bool) -> Iterator[Attempt]:
    return (Attempt(index, item, f"{what} {index}", indexed) for index, item in enumerate(items))


def _value(outcome: Outcome) -> Any:
    if isinstance(outcome, Failure):
        outcome.throw()
    return outcome.value


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _resident_bytes(worker: PoolWorker) -> int:
    try:
        return int(psutil.Process(worker.process.pid).memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _stop(pool: list[PoolWorker]) -> None:
    """End all workers: idle ones exit by themselves, busy ones are killed."""
    for worker in pool:
        if worker.attempt is None:
            worker.dismiss()
        else:
            worker.process.kill()
    while pool:
        pool.pop().bury()
