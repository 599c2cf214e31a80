"""The Ray engine: the same three calls on a Ray cluster, which gives scheduling, retries and an object store.

Tasks carry addresses and small results. Data crosses Ray only in `exchange`, as Arrow blocks of bounded size: each is
an object of its own, which Ray keeps in shared memory, writes to disk when there is none left, and makes again from its
task when the machine that held it is lost.
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
AHEAD = 2  # tasks for each core that Ray has at once: a core finds the next one at hand
HEAD_PORT = 6379
REMEDY = "check engine.master: `local`, `auto` on a machine of the cluster, or HOST:PORT of its head"
REFRESH_S = 10.0  # between looks at how many cores there are: a cluster may grow
Task = Callable[[int, Any], Any]  # (index, item) → Ray's reference, or its stream of references


class RayEngine(EngineBase):
    """`map`, `exchange` and `reduce` on Ray. It is started, or connected to, with the first call.

    Parameters
    ----------
    address: `local` for processes of this machine, `auto` for the cluster that this machine is part of, or HOST:PORT
        of a cluster's head.
    workers: cores for `local`; 0 for all.
    retries: further attempts at a task whose worker or machine died. Exceptions are not retried.
    task_timeout_s: seconds that one attempt may take; then its worker ends itself, which counts as a death.

    Errors: MissingPackage at the first call when ray is not installed, EngineError when no cluster is at `address`.
    """

    def __init__(
        self, address: str = LOCAL, *, workers: int = 0, retries: int = 2, task_timeout_s: float | None = None
    ) -> None:
        self.address, self.retries, self.task_timeout_s = address, retries, task_timeout_s
        self._cores = workers
        self._ray: Any = None

    @property
    def workers(self) -> int:
        """Tasks at the same time, as far as Ray knows by now; 1 before it is connected."""
        return 1 if self._ray is None else max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def close(self) -> None:
        """Leave the cluster, or end the local one; a later call starts again."""
        if self._ray is not None:
            self._ray.shutdown()
            self._ray = None

    def _each(self, call: Call, items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """One Ray task an item; items may come from an endless generator."""
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
        # Within a task they are in order already, and sorting keeps that.
        ordered = [[reference for _, reference in sorted(part, key=lambda block: block[0])] for part in blocks]
        merged = partial(self._remote(tasks.merge_task).remote, merge, self.task_timeout_s)
        yield from self._results("merge task", merged, ordered, named=False)

    def reduce(self, call: Call, items: Iterable[Any], combine: Call) -> Any:
        """See `Engine.reduce`. Results stay in Ray's store; a task combines two of them."""
        tree = Tree(partial(self._remote(tasks.combine_task).remote, combine))
        run = partial(self._remote(tasks.run_task).remote, call, self.task_timeout_s)
        for reference in in_order((index, made) for index, _, made in self._done(run, items)):
            tree.add(reference)
        return self._value(tree.result(), "reduce", 0, None)

    def _results(
        self, name: str, submit: Task, items: Iterable[Any], *, named: bool = True
    ) -> Iterator[tuple[int, Any]]:
        """(index, value) of each task as it ends. named: errors name the item; else it is a list of references."""
        for index, item, reference in self._done(submit, items):
            yield index, self._value(reference, name, index, item if named else index)

    def _done(self, submit: Task, items: Iterable[Any]) -> Iterator[tuple[int, Any, Any]]:
        """(index, item, reference or stream) of each task once it has ended, with `AHEAD` a core in flight."""
        ray, numbered, running = self._connected(), enumerate(items), dict[Any, tuple[int, Any, Any]]()
        room, looked_s = AHEAD * self.workers, time.monotonic()
        try:
            while True:
                while len(running) < room and (following := next(numbered, None)) is not None:
                    index, item = following
                    made = submit(index, item)
                    end = made.completed() if hasattr(made, "completed") else made
                    running[end] = (index, item, made)
                if not running:
                    return
                (ended, *_), _ = ray.wait(list(running), num_returns=1)
                if time.monotonic() - looked_s > REFRESH_S:
                    room, looked_s = AHEAD * self.workers, time.monotonic()
                yield running.pop(ended)
        finally:
            for _, _, made in running.values():
                ray.cancel(made, force=True)

    def _value(self, reference: Any, name: str, index: int, item: Any) -> Any:
        """The value of an outcome. Raises TaskFailed: the task raised, or its worker died on every attempt."""
        ray = self._connected()
        try:
            outcome: Outcome = pickle.loads(ray.get(reference))
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0]
            raise TaskFailed(
                f"lost on all {self.retries + 1} attempts, last: {type(error).__name__}: {reason}",
                where=f"{name} {index} ({shown(item)})",
                remedy="give the task less to do (smaller shards), or allow more memory or time",
                item=item,
            ) from error
        if isinstance(outcome, Failure):
            outcome.throw()
        return outcome.value

    def _remote(self, function: Call, **options: Any) -> Any:
        """A function that Ray calls, with the engine's attempts."""
        return self._connected().remote(num_cpus=1, max_retries=self.retries, **options)(function)

    def _connected(self) -> Any:
        if self._ray is None:
            if ":" in self.address and (problem := unreached(self.address.rpartition("//")[2], HEAD_PORT)):
                raise EngineError(f"no Ray cluster answers at {problem}", remedy=REMEDY)
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no message to Ray's makers
            try:
                import ray
            except ImportError as error:
                raise missing(error) or error from error
            before = signal.getsignal(signal.SIGTERM)
            try:
                ray.init(**self._settings())
            except (ConnectionError, OSError, RuntimeError, ValueError) as error:
                raise EngineError(f"Ray did not start at {self.address}: {error}", remedy=REMEDY) from error
            finally:
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGTERM, before)  # Ray's own would end the process without a word
            self._ray = ray
        return self._ray

    def _settings(self) -> dict[str, Any]:
        variables = dict.fromkeys(THREAD_VARIABLES, "1") | {"PYTHONPATH": os.pathsep.join(own_paths())}
        settings = {"address": self.address, "runtime_env": {"env_vars": variables}, "log_to_driver": False}
        settings |= {"configure_logging": False, "logging_level": logging.ERROR}
        if self.address == LOCAL:
            settings |= {"include_dashboard": False, "num_cpus": self._cores or None}
        return settings
