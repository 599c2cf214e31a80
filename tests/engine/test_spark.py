"""The Spark engine: the same results and bytes as the local one, also when executors are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import engine_promises
import psutil
import pytest
import toy_tasks
from loopback import free_port
from spark_marks import NEEDS_SPARK

from megahour.engine import spark_session
from megahour.engine.base import Call, Engine, EngineError
from megahour.engine.local import LocalEngine
from megahour.engine.spark import SparkEngine
from megahour.engine.spark_session import LOCAL_JAVA

pytestmark = NEEDS_SPARK


@pytest.fixture(scope="module")
def local() -> Iterator[LocalEngine]:
    with LocalEngine(workers=2) as engine:
        yield engine


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkEngine]:
    with SparkEngine("local[2]", conf={"spark.python.worker.memory": "48m"}) as engine:
        yield engine


def test_map_gives_every_result_with_its_index(spark: SparkEngine) -> None:
    engine_promises.map_gives_every_result_with_its_index(spark, 8)


def test_results_arrive_while_other_tasks_run_and_closing_stops_those(spark: SparkEngine) -> None:
    results = spark.map(toy_tasks.nap, [500.0, 0.0, 500.0])  # the third takes the second one's core
    assert next(results) == (1, 0.0)
    started = time.monotonic()
    results.close()
    assert dict(spark.map(toy_tasks.square, [2])) == {0: 4}
    assert time.monotonic() - started < 300


def test_reduce_has_the_tree_of_the_local_engine(spark: SparkEngine, local: LocalEngine) -> None:
    engine_promises.reduce_has_the_same_tree(spark, local, 19)  # more than one task combines, and a second level


def test_exchange_writes_the_bytes_of_the_local_engine(spark: SparkEngine, local: LocalEngine, tmp_path: Path) -> None:
    engine_promises.exchange_writes_the_same_bytes(spark, local, tmp_path)


def test_a_partition_larger_than_memory_is_merged_block_by_block(spark: SparkEngine, tmp_path: Path) -> None:
    """Python workers may sort 48 MB in memory, half of which the shuffle's writer takes."""
    engine_promises.partitions_are_merged_block_by_block(spark)


def test_stages_make_the_same_artifacts(spark: SparkEngine, local: LocalEngine, tmp_path: Path) -> None:
    engine_promises.stages_make_the_same_artifacts(spark, local, tmp_path)


def test_killed_python_workers_are_retried_and_then_named(spark: SparkEngine, tmp_path: Path) -> None:
    engine_promises.killed_workers_are_retried_and_then_named(spark, tmp_path)


def test_an_exception_comes_with_item_and_traceback_and_is_not_retried(spark: SparkEngine, tmp_path: Path) -> None:
    engine_promises.exceptions_come_with_item_and_traceback_and_are_not_retried(spark)


def test_a_failing_split_stops_the_exchange_before_any_merge(spark: SparkEngine, tmp_path: Path) -> None:
    engine_promises.a_failing_split_stops_the_exchange_before_any_merge(spark, tmp_path)


def test_a_task_over_its_time_is_stopped(spark: SparkEngine, tmp_path: Path) -> None:
    spark.close()  # one session a process; the shared one starts again when it is needed
    with SparkEngine("local[2]", task_timeout_s=1.0) as engine:
        assert dict(engine.map(partial(toy_tasks.hang_first, str(tmp_path)), range(3))) == {n: n for n in range(3)}


@pytest.mark.faults
def test_an_executor_killed_in_a_standalone_cluster_loses_nothing(
    spark: SparkEngine, local: LocalEngine, tmp_path: Path
) -> None:
    """A master and two workers on loopback; one worker's whole process tree is killed while both split and merge."""
    spark.close()
    split = partial(toy_tasks.slow_split, 4)
    merge = partial(toy_tasks.slow_merge, str(tmp_path))
    (tmp_path / "spill").mkdir()
    expected = dict(local.exchange(split, range(12), merge, 4, spill=str(tmp_path / "spill")))
    with (
        standalone_cluster(tmp_path) as (master, workers),
        SparkEngine(master, conf={"spark.executor.extraJavaOptions": LOCAL_JAVA}) as engine,
    ):
        both_work(engine)
        results = dict(killing(workers[0], engine, split, merge))
    assert results == expected


@pytest.mark.faults
def test_a_driver_that_executors_cannot_reach_is_named_within_a_minute(spark: SparkEngine, tmp_path: Path) -> None:
    """The driver listens on one loopback address and tells the cluster another."""
    spark.close()
    away = {"spark.driver.host": "127.0.0.2", "spark.driver.bindAddress": "127.0.0.1"}
    with standalone_cluster(tmp_path) as (master, _), SparkEngine(master, conf=away) as engine:
        started = time.monotonic()
        with pytest.raises(EngineError, match=r"ended before they reached the driver at 127\.0\.0\.2:\d+"):
            list(engine.map(toy_tasks.square, range(4)))
        assert time.monotonic() - started < 60


@pytest.mark.faults
def test_a_straggler_gets_a_second_attempt_beside_it(spark: SparkEngine, tmp_path: Path) -> None:
    """Speculation: a task slower than the others is started again elsewhere; each result arrives once."""
    spark.close()
    conf = {"spark.speculation": "true", "spark.speculation.interval": "200ms", "spark.speculation.quantile": "0.5"}
    (tmp_path / "attempts").mkdir()
    apart = ("127.0.0.1", "127.0.0.2")  # Spark never makes a second attempt on the host of the first
    with standalone_cluster(tmp_path, apart) as (master, _), SparkEngine(master, conf=conf) as engine:
        both_work(engine)
        started = time.monotonic()
        results = list(engine.map(partial(toy_tasks.straggle_first, str(tmp_path / "attempts")), range(6)))
        assert time.monotonic() - started < 300, "nobody waited for the straggler"
    assert sorted(results) == [(n, n) for n in range(6)]
    assert len(list((tmp_path / "attempts" / "3").iterdir())) == 2


@pytest.mark.faults
def test_a_machine_that_is_told_to_leave_hands_over_its_shuffle_data(
    spark: SparkEngine, local: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decommissioning: no split runs again, as it would if the machine were killed at that moment."""
    spark.close()
    names = ("spark.decommission.enabled", "spark.storage.decommission.enabled")
    conf = dict.fromkeys((*names, "spark.storage.decommission.shuffleBlocks.enabled"), "true")
    for name in ("expected", "made", "splits"):
        (tmp_path / name).mkdir()
    plain = partial(toy_tasks.slow_merge, str(tmp_path / "expected"))
    expected = dict(local.exchange(partial(toy_tasks.slow_split, 4), range(8), plain, 4, spill=str(tmp_path / "spill")))
    split = partial(toy_tasks.noted_split, str(tmp_path / "splits"), 4)
    merge = partial(toy_tasks.late_merge, str(tmp_path / "made"))
    monkeypatch.setenv("SPARK_WORKER_OPTS", "-Dspark.decommission.enabled=true")
    with standalone_cluster(tmp_path) as (master, workers), SparkEngine(master, conf=conf) as engine:
        both_work(engine)
        results = {}
        for partition, digest in engine.exchange(split, range(8), merge, 4, spill=""):
            if not results:
                workers[0].send_signal(signal.SIGPWR)
            results[partition] = digest
        launches = spark_session._log_folder() / "launches.log"
        assert "DECOMMISSIONED" in launches.read_text()
    assert results == expected
    made = sorted(int(path.name.partition("-")[0]) for path in (tmp_path / "splits").iterdir())
    assert made == list(range(8))


def both_work(engine: Engine) -> None:
    """Waits until both workers of a cluster have had a task; a worker that starts late is idle at first."""
    folders: set[str] = set()
    for _ in range(20):
        folders |= set(dict(engine.map(toy_tasks.executor_folder, range(8))).values())
        if len(folders) == 2:
            return
    pytest.fail("only one worker works")


def killing(worker: subprocess.Popen[bytes], engine: Engine, split: Call, merge: Call) -> Iterator[tuple[int, str]]:
    """The exchange's results; after the first the worker is killed, with the shuffle data that it serves."""
    for count, result in enumerate(engine.exchange(split, range(12), merge, 4, spill="")):
        if count == 0:
            kill_tree(worker)
        yield result


@contextmanager
def standalone_cluster(
    folder: Path, hosts: tuple[str, ...] = ("127.0.0.1", "127.0.0.1")
) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The URL of a master, and its workers, one on each of `hosts`, which are addresses of this machine."""
    import pyspark

    launcher = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    port = str(free_port())
    url = f"spark://127.0.0.1:{port}"
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(folder / "cluster")}
    environment |= {"PYSPARK_PYTHON": sys.executable, "JAVA_TOOL_OPTIONS": LOCAL_JAVA}

    def start(kind: str, *arguments: str, host: str = "127.0.0.1") -> subprocess.Popen[bytes]:
        command = [launcher, f"org.apache.spark.deploy.{kind}", "--host", host, "--webui-port", "0", *arguments]
        with (folder / f"{kind}.log").open("ab") as log:
            return subprocess.Popen(command, env=environment | {"SPARK_LOCAL_IP": host}, stdout=log, stderr=log)

    processes = [start("master.Master", "--port", port)]
    worker = ("worker.Worker", "--cores", "1", "--memory", "1g", url)
    processes += [start(*worker, host=host) for host in hosts]
    try:
        wait_for_workers(folder / "master.Master.log", 2)
        yield url, processes[1:]
    finally:
        for process in processes:
            kill_tree(process)


def wait_for_workers(log: Path, count: int) -> None:
    deadline = time.monotonic() + 240
    while log.read_text().count("Registering worker") < count:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        root = psutil.Process(process.pid)
        for member in [root, *root.children(recursive=True)]:
            member.kill()
    process.wait()


def test_without_java_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    remedy = r"needs Java, which was not found\nRemedy: install Java 17 .* or use the local engine"
    with SparkEngine() as engine, pytest.raises(EngineError, match=remedy):
        list(engine.map(toy_tasks.square, [1]))
