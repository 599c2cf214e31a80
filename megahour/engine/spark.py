"""The Spark engine: the same three calls on Apache Spark, which provides scheduling, retries and the shuffle.

Tasks carry addresses and small results. Data crosses Spark only in `exchange`, as Arrow blocks of bounded size.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any

from megahour.engine import spark_session
from megahour.engine import spark_tasks as tasks
from megahour.engine.base import THREAD_VARIABLES, Call, EngineBase, EngineError, Failure, Outcome, Tree
from megahour.engine.paths import own_paths


class SparkEngine(EngineBase):
    """`map`, `exchange` and `reduce` on a Spark master. The session starts with the first call.

    Parameters
    ----------
    master: `local[*]`, `local[n]`, `spark://host:port`, `yarn`, `k8s://…`.
    retries: further attempts at a task whose worker or executor died. Exceptions are not retried.
    task_timeout_s: seconds that one attempt may take; its Python worker then ends itself, which counts as a death.
    conf: Spark settings (https://spark.apache.org/docs/latest/configuration.html); they override the engine's.

    Errors: EngineError at the first call if Java or pyspark is missing, the master cannot be reached, or executors
    cannot reach this process.
    """

    def __init__(
        self,
        master: str = "local[*]",
        *,
        retries: int = 2,
        task_timeout_s: float | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        # A local master gives up at the first failure unless its URL has a retry count.
        self.master = re.sub(r"^local\[([^,\]]+)\]$", rf"local[\1,{retries + 1}]", master)
        self.retries = retries
        self.task_timeout_s = task_timeout_s
        self.conf = dict(conf or {})
        self._context: Any = None

    @property
    def workers(self) -> int:
        """The number of concurrent tasks that Spark reports; 1 before the session starts."""
        return 1 if self._context is None else int(self._context.defaultParallelism)

    def close(self) -> None:
        """Stop the session; a later call starts a new one."""
        if self._context is not None:
            self._context.stop()
            self._context = None

    def _each(self, call: Call, items: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """One Spark task per item."""
        pairs = list(enumerate(items))
        if not pairs:
            return
        inbox = spark_session.Inbox(self._session())
        source = self._session().parallelize(pairs, len(pairs))
        done = source.mapPartitions(partial(tasks.map_partition, call, self.task_timeout_s, inbox.posts))
        yield from self._results(done, inbox, len(pairs), items=[item for _, item in pairs])

    def exchange(
        self, split: Call, items: Iterable[Any], merge: Call, partitions: int, *, spill: str = ""
    ) -> Iterator[tuple[int, Any]]:
        """See `Engine.exchange`. Spark's own shuffle directories are used, not `spill`."""
        pairs = list(enumerate(items))
        inbox = spark_session.Inbox(self._session())
        source = self._session().parallelize(pairs, max(1, len(pairs)))
        split_work = partial(tasks.split_partition, split, partitions, self.task_timeout_s, inbox.posts)
        merge_work = partial(tasks.merge_partition, merge, self.task_timeout_s, inbox.posts)
        chunks = source.mapPartitions(split_work)
        shuffled = chunks.repartitionAndSortWithinPartitions(partitions, partitionFunc=tasks.partition_of)
        yield from self._results(shuffled.mapPartitionsWithIndex(merge_work), inbox, partitions)

    def reduce(self, call: Call, items: Iterable[Any], combine: Call) -> Any:
        """See `Engine.reduce`. Aligned blocks of `spark_tasks.FAN_IN` results are combined in tasks, level by level."""
        pairs = list(enumerate(items))
        count = len(pairs)
        if not count:
            return Tree(combine).result()
        inbox = spark_session.Inbox(self._session())
        source = self._session().parallelize(pairs, count)
        level = source.mapPartitions(partial(tasks.leaf, call, self.task_timeout_s, inbox.posts))
        while count > 1:
            count = -(-count // tasks.FAN_IN)
            level = level.repartitionAndSortWithinPartitions(count, partitionFunc=tasks.block_of)
            level = level.mapPartitionsWithIndex(partial(tasks.combine_block, combine))
        return dict(self._results(level.mapPartitions(partial(tasks.post_root, inbox.posts)), inbox, 1))[0]

    def _session(self) -> Any:
        if self._context is None:
            self._context = spark_session.start(self.master, self._settings())
        return self._context

    def _settings(self) -> dict[str, str]:
        settings = {
            "spark.app.name": "megahour",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.task.cpus": "1",
            "spark.task.maxFailures": str(self.retries + 1),
            "spark.python.worker.memory": "256m",  # above it, a merge task sorts on disk
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(own_paths()),
        }
        settings |= {f"spark.executorEnv.{name}": "1" for name in THREAD_VARIABLES}
        if self.master.startswith(("local", "spark://127.0.0.1", "spark://localhost")):
            settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        return settings | self.conf

    def _results(
        self, done: Any, inbox: spark_session.Inbox, expected: int, items: list[Any] | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Run a job and yield what its tasks post: the (index, value) of each task, once."""
        seen: set[int] = set()
        with closing(inbox.listen(done, items)) as posts:  # an error ends the other tasks of the job at once
            for index, message in posts:
                outcome: Outcome = pickle.loads(message)
                if isinstance(outcome, Failure):
                    outcome.throw()
                if index not in seen:
                    seen.add(index)
                    yield index, outcome.value
        if len(seen) != expected:
            raise EngineError(f"Spark ended a job with {len(seen)} of {expected} results", remedy="run again")
