"""The Ray engine: the same three calls on a Ray cluster, which provides scheduling, retries and an object store.

Tasks carry addresses and small results. Data crosses Ray only in `exchange`, as Arrow blocks of bounded size, one
object each. Ray keeps objects in shared memory, spills them to disk when it is full, and recomputes them from their
task if the machine that held them is lost.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from megahour.core.extras import missing
from megahour.engine import ray_tasks as tasks
from megahour.engine.base import (
    THREAD_VARIABLES,
    Call,
    EngineBase,
    EngineError,
    Failure,
    Outcome,
    TaskFailed,
    Tree,
    in_order,
    shown,
)
from megahour.engine.network import unreached
from megahour.engine.paths import own_paths

LOCAL = "local"
AHEAD = 2  # tasks submitted per core, so that no core waits for the next one
HEAD_PORT = 6379
REMEDY = "check engine.master: `local`, `auto` on a machine of the cluster, or HOST:PORT of its head"
SLOW = "run it again when the machine is less busy, or with engine.kind local; logs: /tmp/ray/session_latest/logs"
SHORT_S = 0.5  # how long tasks have to end before they are cancelled
REFRESH_S = 10.0  # between checks of the number of cores: a cluster may grow
Task = Callable[[int, Any], Any]  # (index, item) → Ray's reference, or its stream of references


class RayEngine(EngineBase):
    """`map`, `exchange` and `reduce` on Ray, which is started or connected to at the first call.

    Parameters
    ----------
    address: `local` for processes of this machine, `auto` for the cluster that this machine is part of, or HOST:PORT
        of a cluster's head.
    workers: cores for `local`; 0 for all.
    retries: further attempts at a task whose worker or machine died. Exceptions are not retried.
    task_timeout_s: seconds that one attempt may take; its worker then ends itself, which counts as a death.

    Errors, at the first call: MissingPackage if ray is not installed, EngineError if no cluster answers at `address`.
    """

    def __init__(
        self, address: str = LOCAL, *, workers: int = 0, retries: int = 2, task_timeout_s: float | None = None
    ) -> None:
        self.address, self.retries, self.task_timeout_s = address, retries, task_timeout_s
        self._cores = workers
        self._ray: Any = None

    @property
    def workers(self) -> int:
        """The number of concurrent tasks that Ray reports; 1 before the first call."""
        return 1 if self._ray is None else max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def close(self) -> None:
        """Leave the cluster, or end the local one; a later call starts it again."""
        if self._ray is not None:
            self._ray.shutdown()
            self._ray = None

    def _each(self, call: Call, items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """One Ray task per item; items may come from an endless generator."""
        run = self._remote(tasks.run_task)
        return self._results("task", partial(run.remote, call, self.task_timeout_s), items)

    def exchange(
        self, split: Call, items: Iterable[Any], merge: Call, partitions: int, *, spill: str = ""
    ) -> Iterator[tuple[int, Any]]:
        """See `Engine.exchange`. Blocks are objects of Ray's store; `spill` is not used."""
        cut = partial(self._remote(tasks.split_task, num_returns="streaming").remote, split, partitions)
        blocks: list[list[tuple[int, Any]]] = [[] for _ in range(partitions)]  # (task, reference) of each partition
        for index, item, stream in self._done(partial(cut, self.task_timeout_s), items):
            *references, end = stream
            owners = self._value(end, "split task", index, item)
            for partition, reference in zip(owners, references, strict=True):
                blocks[partition].append((index, reference))
        # Blocks of one task are in order already, and the sort is stable.
        ordered = [[reference for _, reference in sorted(part, key=lambda block: block[0])] for part in blocks]
        merged = partial(self._remote(tasks.merge_task).remote, merge, self.task_timeout_s)
        yield from self._results("merge task", merged, ordered, named=False)

    def reduce(self, call: Call, items: Iterable[Any], combine: Call) -> Any:
        """See `Engine.reduce`. Results stay in Ray's store; each task combines two of them."""
        tree = Tree(partial(self._remote(tasks.combine_task).remote, combine))
        run = partial(self._remote(tasks.run_task).remote, call, self.task_timeout_s)
        for reference in in_order((index, result) for index, _, result in self._done(run, items)):
            tree.add(reference)
        return self._value(tree.result(), "reduce", 0, None)

    def _results(
        self, name: str, submit: Task, items: Iterable[Any], *, named: bool = True
    ) -> Iterator[tuple[int, Any]]:
        """(index, value) of each task as it ends. named: errors show the item; else it is a list of references."""
        for index, item, reference in self._done(submit, items):
            yield index, self._value(reference, name, index, item if named else index)

    def _done(self, submit: Task, items: Iterable[Any]) -> Iterator[tuple[int, Any, Any]]:
        """(index, item, reference or stream) of each finished task, with `AHEAD` tasks per core in flight."""
        ray, numbered, running = self._connected(), enumerate(items), dict[Any, tuple[int, Any, Any]]()
        room, refreshed_s = AHEAD * self.workers, time.monotonic()
        try:
            while True:
                while len(running) < room and (following := next(numbered, None)) is not None:
                    index, item = following
                    result = submit(index, item)
                    end = result.completed() if hasattr(result, "completed") else result
                    running[end] = (index, item, result)
                if not running:
                    return
                (ended, *_), _ = ray.wait(list(running), num_returns=1)
                if time.monotonic() - refreshed_s > REFRESH_S:
                    room, refreshed_s = AHEAD * self.workers, time.monotonic()
                yield running.pop(ended)
        finally:
            # To cancel a task by force at the moment when it ends aborts this process (`task_manager.cc`, "Tried to
            # complete task that was not pending"): short ones may end first.
            if running:
                _, left = ray.wait(list(running), num_returns=len(running), timeout=SHORT_S)
                for end in left:
                    ray.cancel(running[end][2], force=True)

    def _value(self, reference: Any, name: str, index: int, item: Any) -> Any:
        """The value of a task. Raises TaskFailed if the task raised, or its worker died on every attempt."""
        ray = self._connected()
        try:
            outcome: Outcome = pickle.loads(ray.get(reference))
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0]
            raise TaskFailed(
                f"lost on all {self.retries + 1} attempts, last: {type(error).__name__}: {reason}",
                where=f"{name} {index} ({shown(item)})",
                remedy="make the task smaller (smaller shards), or allow more memory or time",
                item=item,
            ) from error
        if isinstance(outcome, Failure):
            outcome.throw()
        return outcome.value

    def _remote(self, function: Call, **options: Any) -> Any:
        """A function as a Ray remote function with the engine's retries."""
        return self._connected().remote(num_cpus=1, max_retries=self.retries, **options)(function)

    def _connected(self) -> Any:
        if self._ray is None:
            if ":" in self.address and (problem := unreached(self.address.rpartition("//")[2], HEAD_PORT)):
                raise EngineError(f"no Ray cluster answers at {problem}", remedy=REMEDY)
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
            try:
                import ray
            except ImportError as error:
                raise missing(error) or error from error
            before = signal.getsignal(signal.SIGTERM)
            try:
                ray.init(**self._settings())
            except Exception as error:  # Ray raises plain ones, such as when its node is too slow to start
                ray.shutdown()  # processes that have started
                remedy = SLOW if self.address == LOCAL else REMEDY
                raise EngineError(f"Ray did not start at {self.address}: {error}", remedy=remedy) from error
            finally:
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGTERM, before)  # Ray's handler would end the process silently
            self._ray = ray
        return self._ray

    def _settings(self) -> dict[str, Any]:
        variables = dict.fromkeys(THREAD_VARIABLES, "1") | {"PYTHONPATH": os.pathsep.join(own_paths())}
        settings = {"address": self.address, "runtime_env": {"env_vars": variables}, "log_to_driver": False}
        settings |= {"configure_logging": False, "logging_level": logging.ERROR}
        if self.address == LOCAL:
            settings |= {"include_dashboard": False, "num_cpus": self._cores or None}
        return settings
