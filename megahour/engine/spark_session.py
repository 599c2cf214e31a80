"""The driver's side of Spark: starts sessions, and runs jobs whose results arrive while they run.

Results come back through an accumulator, whose updates Spark applies once for each task of a job's last stage: the
driver gets each result when its task ends, without a collect and without one job per partition.
"""

from __future__ import annotations

import atexit
import os
import queue
import re
import shutil
import sys
import tempfile
import uuid
import weakref
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from megahour.core.extras import install
from megahour.core.stopping import stops_held
from megahour.engine.base import EngineError, TaskFailed, shown
from megahour.engine.spark_reach import CLIENT_LOGGER, Wait, check_master, wait_of

LOOPBACK = "127.0.0.1"
CANCEL_LIMIT_S = 10.0
LOOK_S = 1.0  # between checks of a cluster without a first result
REMEDY = f"install Java 17 or later and `{install('spark')}`, or use the local engine"
CHECK = "check engine.master, engine.conf, and with `megahour doctor` Java; its own lines are above"
# Arrow has compressed the batches already: compressing them again in Spark would only cost CPU time.
OWN_BLOCKS = {"spark.shuffle.compress": "false", "spark.shuffle.spill.compress": "false"}
# A local master's Java only moves blocks between Python workers and the disk: its first compiler is good enough for
# that, the second would take longer than it saves, and one thread collects the garbage.
LOCAL_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Log4j settings of the driver: errors only, and no Java stack for a Python worker that died and is tried again.
QUIET = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark %p %c{1}: %m%n%ex
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""
# Executors that a cluster starts for this driver, logged for `spark_reach` and not for the terminal.
LAUNCHES = f"""\
appender.launches.type = File
appender.launches.name = launches
appender.launches.fileName = {{path}}
appender.launches.layout.type = PatternLayout
appender.launches.layout.pattern = %m%n
logger.client.name = {CLIENT_LOGGER}
logger.client.level = info
logger.client.additivity = false
logger.client.appenderRef.launches.ref = launches
"""


def start(master: str, settings: Mapping[str, str]) -> Any:
    """A SparkContext. Raises EngineError, which names what is missing, or the address at which no master answers."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=str(Path(home) / "bin") if home else None) is None:
        raise EngineError("the Spark engine needs Java, which was not found", remedy=REMEDY)
    try:
        from pyspark import SparkConf, SparkContext
    except ImportError as error:
        raise EngineError("the Spark engine needs pyspark, which is not installed", remedy=REMEDY) from error
    check_master(master)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the same Python on the executors, unless one is named
    if settings.get("spark.driver.bindAddress") == LOOPBACK:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    folder = _log_folder()
    conf = SparkConf().setMaster(master).setAll(list(_with_logs(master, settings, folder).items()))
    try:
        with stops_held():  # Java would wait for ever if its Python died before they connected
            SparkContext._ensure_initialized(conf=conf)
        context = SparkContext(conf=conf)
    except Exception as error:
        raise EngineError(f"Spark did not start on {master}: {error}", remedy=CHECK) from error
    _waits[context] = wait_of(context, folder / "launches.log")
    return context


_waits: weakref.WeakKeyDictionary[Any, Wait | None] = weakref.WeakKeyDictionary()


@cache
def _log_folder() -> Path:
    """This process's folder of Java logs; successive sessions share one Java and one file."""
    folder = tempfile.mkdtemp(prefix="megahour-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _with_logs(master: str, settings: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Spark's settings plus those of the driver's log, placed before the user's Java options."""
    log_settings = folder / "log4j2.properties"
    log_settings.write_text(QUIET + LAUNCHES.format(path=folder / "launches.log"))
    java = "spark.driver.extraJavaOptions"
    own = f"{LOCAL_JAVA if master.startswith('local') else ''} -Dlog4j2.configurationFile={log_settings.as_uri()}"
    return OWN_BLOCKS | dict(settings) | {java: f"{own} {settings.get(java, '')}".strip()}


def gave_up(error: Exception, items: list[Any] | None) -> EngineError:
    """The error for a task that Spark gave up on, parsed from its message."""
    text = str(error)
    lost = re.search(r"Task (\d+) in stage \S+ failed (\d+) times, most recent failure: (.*)", text)
    if lost is None:
        return EngineError(f"Spark ended a job: {text.splitlines()[0] if text else repr(error)}", remedy="run again")
    number, attempts, reason = int(lost[1]), lost[2], lost[3].partition(". Consider")[0]
    item = items[number] if items is not None else None
    return TaskFailed(
        f"lost on all {attempts} attempts, last: {reason}",
        where=f"task {number} ({shown(item)})" if items is not None else f"task {number}",
        remedy="make the task smaller (smaller shards), or allow more memory or time",
        item=item,
    )


class Inbox:
    """The driver's end of an accumulator: a queue of the tasks' posts, and the job that produces them."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._queue: queue.SimpleQueue[tuple[int, bytes] | _JobEnd] = queue.SimpleQueue()
        self.posts = context.accumulator(_Arrivals(self._queue), _Posting())

    def listen(self, done: Any, items: list[Any] | None) -> Generator[tuple[int, bytes]]:
        """Yield posts while the job runs. Raises TaskFailed if Spark gives up. Closing it cancels the job."""
        from pyspark import InheritableThread

        group = f"megahour-{uuid.uuid4().hex}"
        thread = InheritableThread(target=self._run, args=(done, group), daemon=True)
        thread.start()
        message: tuple[int, bytes] | _JobEnd | None = None
        try:
            while not isinstance(message := self._next(), _JobEnd):
                yield message
            if message.error is not None:
                raise gave_up(message.error, items) from message.error
        finally:
            if not isinstance(message, _JobEnd):
                self._context.cancelJobGroup(group)
            thread.join(CANCEL_LIMIT_S)

    def _next(self) -> tuple[int, bytes] | _JobEnd:
        """The next post. Raises EngineError if the cluster's executors cannot reach this driver."""
        wait = _waits.get(self._context)
        while wait is not None:
            with suppress(queue.Empty):
                return self._queue.get(timeout=LOOK_S)
            wait.look()
        return self._queue.get()

    def _run(self, done: Any, group: str) -> None:
        try:
            self._context.setJobGroup(group, "megahour", interruptOnCancel=False)
            done.count()
            self._queue.put(_JobEnd(None))
        except Exception as error:
            self._queue.put(_JobEnd(error))


@dataclass(frozen=True)
class _JobEnd:
    error: Exception | None


class _Arrivals:
    """The accumulator's value on the driver: puts each post into the queue."""

    def __init__(self, arrived: queue.SimpleQueue[Any]) -> None:
        self._arrived = arrived

    def extend(self, posts: list[tuple[int, bytes]]) -> None:
        for post in posts:
            self._arrived.put(post)


class _Posting:
    """The accumulator's rule (pyspark's AccumulatorParam): in a task a list, on the driver an `_Arrivals`."""

    def zero(self, value: Any) -> list[tuple[int, bytes]]:
        return []

    def addInPlace(self, value: Any, posts: list[tuple[int, bytes]]) -> Any:  # noqa: N802 - pyspark's name
        value.extend(posts)
        return value
