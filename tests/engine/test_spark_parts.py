"""Parts of the Spark engine that need no Spark: settings, what its tasks do with records, and error messages."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import toy_tasks

from megahour.engine import spark_session, spark_tasks
from megahour.engine.base import EngineError, Failure, Success, TaskFailed, Tree
from megahour.engine.paths import own_paths
from megahour.engine.spark import SparkEngine
from megahour.engine.spark_tasks import CHUNK_BYTES, FAN_IN, block_of, partition_of
from megahour.engine.time_limit import time_limit


class Posts:
    """An accumulator in a task."""

    def __init__(self) -> None:
        self.found: list[tuple[int, Any]] = []

    def add(self, posts: list[tuple[int, bytes]]) -> None:
        self.found += [(index, pickle.loads(message)) for index, message in posts]


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Full garbage collections and freezes of a worker that has just begun."""
    done: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: done.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    monkeypatch.setattr(spark_tasks, "_settled", [0])
    return done


def test_a_task_posts_results_and_failures_and_yields_nothing(collections: list[str]) -> None:
    posts = Posts()
    assert list(spark_tasks.map_partition(partial(toy_tasks.fail_on, 2), None, posts, iter([(4, 1), (5, 2)]))) == []
    (first, result), (second, failure) = posts.found
    assert (first, result, second) == (4, Success(1), 5)
    assert (failure.task, failure.item, failure.message) == ("task 5", 2, "2 is the bad one")
    list(spark_tasks.map_partition(toy_tasks.square, None, posts, iter([])))
    assert collections == ["collect", "freeze"], "once, as nothing was imported since"


def shuffled(split: Any, items: list[Any], partitions: int, posts: Posts) -> dict[int, list[tuple[Any, bytes]]]:
    """Records by partition, sorted, as Spark's shuffle hands them on."""
    records = list(spark_tasks.split_partition(split, partitions, None, posts, iter(enumerate(items))))
    assert all(0 < len(chunk) <= CHUNK_BYTES == 128 << 10 for key, chunk in records if key[1] >= 0)
    parts = {p: sorted(r for r in records if partition_of(r[0]) == p) for p in range(partitions)}
    assert sum(map(len, parts.values())) == len(records)
    return parts


def test_what_is_split_is_merged_in_order_of_task_and_position(collections: list[str]) -> None:
    posts, split = Posts(), partial(toy_tasks.split_wide, 2, 200_000)  # blocks of several chunks, all in partition 0
    parts = shuffled(split, [7, 8], 2, posts)
    assert collections.count("freeze") == 1
    assert len(parts[0]) > 4
    for partition in parts:
        merged = spark_tasks.merge_partition(cells, None, posts, partition, iter(parts[partition]))
        assert list(merged) == []
    batches = [batch for item in (7, 8) for _, batch in split(item)]
    assert posts.found == [(0, Success((0, [b["cell"].to_pylist() for b in batches]))), (1, Success((1, [])))]


def cells(partition: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, list[Any]]:
    return partition, [batch["cell"].to_pylist() for batch in batches]


def test_a_failed_split_is_posted_at_once_and_by_every_merge(collections: list[str]) -> None:
    posts = Posts()
    parts = shuffled(partial(toy_tasks.split_fails, 1), [0, 1], 3, posts)
    for partition in parts:
        assert list(spark_tasks.merge_partition(cells, None, posts, partition, iter(parts[partition]))) == []
    assert [index for index, _ in posts.found] == [1, 0, 1, 2]
    assert {(type(failure), failure.task, failure.item) for _, failure in posts.found} == {(Failure, "split task 1", 1)}


@pytest.mark.parametrize("count", [1, 16, 19, 300])
def test_results_are_combined_level_by_level_in_the_shape_of_the_tree(count: int, collections: list[str]) -> None:
    posts, tree = Posts(), Tree(toy_tasks.bracket)
    for number in range(count):
        tree.add(toy_tasks.square(number))
    level = list(spark_tasks.leaf(toy_tasks.square, None, posts, iter(enumerate(range(count)))))
    assert collections.count("freeze") == 1
    while len(level) > 1:
        blocks: dict[int, list[Any]] = {}
        for index, outcome in level:
            blocks.setdefault(block_of(index), []).append((index, outcome))
        assert all(len(block) <= FAN_IN for block in blocks.values())
        combine = partial(spark_tasks.combine_block, toy_tasks.bracket)
        level = [pair for number, block in blocks.items() for pair in combine(number, iter(block))]
    assert posts.found == []
    assert list(spark_tasks.post_root(posts, iter(level))) == []
    assert posts.found == [(0, Success(tree.result()))]


def test_a_failure_of_a_leaf_is_posted_at_once_and_not_combined(collections: list[str]) -> None:
    posts = Posts()
    leaves = spark_tasks.leaf(partial(toy_tasks.fail_on, 2), None, posts, iter(enumerate(range(4))))
    ((number, outcome),) = spark_tasks.combine_block(toy_tasks.bracket, 3, leaves)
    assert (number, type(outcome), [index for index, _ in posts.found]) == (3, Failure, [2])


def test_the_time_limit_is_that_of_one_task() -> None:
    """SIGALRM's default ends the process, also within a call into C."""
    before, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    try:
        with time_limit(60.0):
            assert 50 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60
            assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def test_settings_follow_the_master_and_the_users_come_last() -> None:
    engine = SparkEngine("spark://host:7077", retries=4, conf={"spark.task.cpus": "2"})
    far = engine._settings()
    assert (engine.master, engine.workers, far["spark.task.maxFailures"]) == ("spark://host:7077", 1, "5")
    assert (far["spark.task.cpus"], far["spark.executorEnv.OMP_NUM_THREADS"]) == ("2", "1")
    assert not [name for name in far if name.startswith("spark.driver.")]
    for master in ("local[2]", "spark://127.0.0.1:7077", "spark://localhost:7077"):
        near = SparkEngine(master)._settings()
        assert (near["spark.driver.host"], near["spark.driver.bindAddress"]) == ("127.0.0.1", "127.0.0.1")
        assert near["spark.task.cpus"] == "1"
    assert SparkEngine("local[2]", retries=1).master == "local[2,2]"
    assert SparkEngine("local[2,9]").master == "local[2,9]"


class FakeConf(dict[str, str]):
    """pyspark's SparkConf."""

    def setMaster(self, master: str) -> FakeConf:  # noqa: N802 - pyspark's name
        return self.setAll([("master", master)])

    def setAll(self, pairs: list[tuple[str, str]]) -> FakeConf:  # noqa: N802 - pyspark's name
        self.update(pairs)
        return self

    def get(self, name: str, default: str | None = None) -> str | None:
        return dict.get(self, name, default)


class FakeContext:
    """pyspark's SparkContext, as far as starting goes; `stopped_by`: a signal that comes while Java starts."""

    stopped_by, connected = 0, False
    log_settings = ""

    def __init__(self, conf: FakeConf) -> None:
        if conf["master"] == "nowhere://":
            raise ValueError("no such master")
        self.conf, self.master, self.applicationId = conf, conf["master"], "app-1"
        self.executors = 1
        self._jsc = SimpleNamespace(sc=lambda: SimpleNamespace(getExecutorMemoryStatus=lambda: self))

    def size(self) -> int:
        return self.executors

    def getConf(self) -> FakeConf:  # noqa: N802 - pyspark's name
        return self.conf

    @classmethod
    def _ensure_initialized(cls, conf: FakeConf) -> None:
        os.kill(os.getpid(), cls.stopped_by)
        time.sleep(0.1)
        cls.connected = True
        java = conf["spark.driver.extraJavaOptions"]
        cls.log_settings = Path(java.partition("-Dlog4j2.configurationFile=file://")[2]).read_text()


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch(mode=0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(SparkConf=FakeConf, SparkContext=FakeContext))


@pytest.mark.usefixtures("java")
def test_a_session_starts_quietly() -> None:
    near = {"spark.driver.bindAddress": "127.0.0.1", "spark.shuffle.compress": "true"}
    context = spark_session.start("local[2]", near)
    assert FakeContext.log_settings.startswith(spark_session.QUIET)
    assert "launches.log" in FakeContext.log_settings
    assert context.conf["master"] == "local[2]"
    assert context.conf["spark.driver.extraJavaOptions"].startswith("-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -D")
    assert (context.conf["spark.shuffle.compress"], context.conf["spark.shuffle.spill.compress"]) == ("true", "false")
    assert (os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"]) == (sys.executable, "127.0.0.1")


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_stops_a_run_waits_until_java_is_there(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java process whose Python ends before they connect stays for ever. Another thread may get the signal."""
    monkeypatch.setattr(FakeContext, "stopped_by", number)
    monkeypatch.setattr(FakeContext, "connected", False)
    before, ended = signal.signal(number, signal.default_int_handler), threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            spark_session.start("local[2]", {})
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        ended.set()
        thread.join()
        signal.signal(number, before)
    assert FakeContext.connected


@pytest.mark.usefixtures("java")
def test_the_users_python_and_address_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "python9")
    with socket.create_server(("127.0.0.1", 0)) as master:
        context = spark_session.start(f"spark://127.0.0.1:{master.getsockname()[1]}", {})
    assert context.conf["spark.driver.extraJavaOptions"].startswith("-Dlog4j2")
    assert os.environ["PYSPARK_PYTHON"] == "python9"
    assert "SPARK_LOCAL_IP" not in os.environ
    wait = spark_session._waits[context]
    assert wait is not None
    assert wait.executors() == 0  # the driver itself is counted by Spark
    assert wait.application == "app-1"


@pytest.mark.usefixtures("java")
def test_what_is_missing_to_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match=r"did not start on nowhere://: no such master\nRemedy: check engine"):
        spark_session.start("nowhere://", {})
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(EngineError, match="needs pyspark"):
        spark_session.start("local[1]", {})
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EngineError, match="needs Java"):
        spark_session.start("local[1]", {})


LOST = (
    "Job aborted due to stage failure: Task 1 in stage 4.0 failed 3 times, most recent failure: "
    "Lost task 1.2: ExecutorLostFailure. Consider boosting memory.\nDriver stacktrace: …"
)


def test_a_task_that_spark_lost_too_often_is_named_with_its_item() -> None:
    error = spark_session.gave_up(Exception(LOST), ["a", "b"])
    assert isinstance(error, TaskFailed)
    assert (error.item, error.where) == ("b", "task 1 ('b')")
    assert error.message == "lost on all 3 attempts, last: Lost task 1.2: ExecutorLostFailure"
    unknown = spark_session.gave_up(Exception(LOST), None)
    assert isinstance(unknown, TaskFailed)
    assert (unknown.item, unknown.where) == (None, "task 1")
    other = spark_session.gave_up(Exception("no space\nat org.apache…"), ["a"])
    assert (type(other), other.message) == (EngineError, "Spark ended a job: no space")
    assert "ValueError()" in spark_session.gave_up(ValueError(), None).message


def test_executors_import_what_this_process_imports_beyond_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), packages, str(tmp_path / "gone"), sysconfig.get_path("stdlib")])
    assert own_paths() == [str(tmp_path)]


class FakeInbox:
    def __init__(self, *posts: tuple[int, Any]) -> None:
        self.messages = [(index, pickle.dumps(Success(value))) for index, value in posts]

    def listen(self, done: Any, items: Any) -> Iterator[tuple[int, bytes]]:
        yield from self.messages


def test_a_result_reported_twice_by_spark_counts_once_and_a_missing_one_is_an_error() -> None:
    twice: Any = FakeInbox((0, "a"), (0, "a"), (1, "b"))
    assert list(SparkEngine()._results(None, twice, 2)) == [(0, "a"), (1, "b")]
    missing: Any = FakeInbox((1, "b"))
    with pytest.raises(EngineError, match="ended a job with 1 of 2 results"):
        list(SparkEngine()._results(None, missing, 2))
