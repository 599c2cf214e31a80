"""Killed at random moments, on each engine: no shard lost, none twice, bytes equal to an undisturbed run.

Local: the driver's whole process group (driver and both workers) gets SIGKILL, and is started again.
Spark: a Java start costs seconds, so only the last kill of a session takes everything (driver, Java, Python); the
others take one of the Python task workers (busy, or between two tasks) while the session lives on and Spark tries the
task again. Executors on a cluster that lose their Java process and shuffle files are in test_spark.py.
`make faults` kills 30 times on each.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import killable
import psutil
import pytest
from spark_marks import needs_spark
from trainings import until

from megahour.core.locks import MARKS
from megahour.core.store import Artifact
from megahour.core.verify import verify
from megahour.engine.local import LocalEngine
from megahour.runner.job import Job, run_task
from megahour.runner.runner import stage_fingerprint

WAIT_S = 240.0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digests of all files of an undisturbed run."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with LocalEngine(workers=1) as engine:
        killable.run_round(engine, folder / "round")
    digests = tree_digests(folder / "round")
    # Each artifact has claim, receipts.jsonl, manifest; each shard its data (two files, or one), receipt, quarantine.
    assert len(digests) == (3 + 14 * 4) + (3 + 6 * 2), sorted(digests)
    return digests


def tree_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file by path, without timings and a killed writer's mark, which may stay where it finished."""
    others = ("timings", MARKS)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.parent.name not in others]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def assert_committed_shards_are_whole(folder: Path) -> None:
    """Right after a kill: every receipt that is there can be read, and its files have its digests."""
    for path in folder.glob("*/receipts/*.json"):
        receipt = json.loads(path.read_text())
        for suffix, info in receipt["files"].items():
            data = (path.parent.parent / "shards" / f"{receipt['shard']:05d}{suffix}").read_bytes()
            assert hashlib.sha256(data).hexdigest() == info["sha256"]


def assert_rounds_are_equal(folder: Path, undisturbed: dict[str, str]) -> None:
    rounds = sorted(folder.glob("round-*"))
    assert rounds
    for path in rounds:
        assert tree_digests(path) == undisturbed, path.name
        assert verify(Artifact(path / "numbers")) == verify(Artifact(path / "groups")) == []


@contextmanager
def driver(engine: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver in its own session, with its engine ready; killed at the end if it still runs."""
    command = [sys.executable, "-c", f"import killable; killable.main({engine!r}, {str(folder)!r})"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"], *sys.path]),
    }
    environment["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # Java starts sooner
    process = subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        if process.poll() is None:
            kill_group(process)
        process.wait()


def kill_group(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the driver and all that it started; Spark's Python daemons lead groups of their own."""
    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    for child in children:
        if child.is_running():
            child.kill()
    process.wait()


def finish(engine: str, folder: Path) -> None:
    """One more start, told to stop after the rounds that exist."""
    (folder / "stop").touch()
    with driver(engine, folder) as process:
        assert process.wait(WAIT_S) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.faults)])
def test_local_driver_and_workers_killed(tmp_path: Path, undisturbed: dict[str, str], kills: int) -> None:
    moments = random.Random(20)
    inside_a_stage = 0
    for _ in range(kills):
        with driver("local", tmp_path) as process:
            until(lambda: newest_round(tmp_path) != tmp_path)  # the first has begun
            time.sleep(moments.uniform(0.0, 0.8))
            assert process.poll() is None
            kill_group(process)
        newest = newest_round(tmp_path)
        assert_committed_shards_are_whole(newest)
        inside_a_stage += not Artifact(newest / "groups").complete
    assert inside_a_stage > kills // 2, "most kills must find work unfinished, or the test shows little"
    finish("local", tmp_path)
    assert_rounds_are_equal(tmp_path, undisturbed)


def test_duplicate_attempts_of_a_shard_are_harmless(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    """Both workers make each shard at the same time, as with Spark's speculation or a worker presumed lost."""
    job = Job(
        stage="killable:Make",
        params=killable.MakeParams().model_dump(mode="json"),
        inputs={},
        output=str(tmp_path / "numbers"),
        fingerprint=stage_fingerprint(killable.Make(), killable.MakeParams(), {}),
        work=str(tmp_path / "work"),
    )
    twice = [(shard, {"shard": shard}) for shard in range(14) for _ in range(2)]
    with LocalEngine(workers=2) as engine:
        receipts = [receipt for _, receipt in sorted(engine.map(partial(run_task, job), twice))]
    assert receipts[::2] == receipts[1::2]
    written = {path: digest for path, digest in tree_digests(tmp_path).items() if "/tmp/" not in path}
    assert len(written) == 14 * 4
    assert written.items() <= undisturbed.items()


def newest_round(folder: Path) -> Path:
    return max(folder.glob("round-*"), default=folder)


@pytest.mark.faults
@needs_spark
@pytest.mark.parametrize(("sessions", "kills"), [(1, 6), (2, 15)])
def test_spark_task_workers_and_driver_killed(
    tmp_path: Path, undisturbed: dict[str, str], sessions: int, kills: int
) -> None:
    moments = random.Random(21)
    for _ in range(sessions):
        with driver("spark", tmp_path) as process:
            for _ in range(kills - 1):
                time.sleep(moments.uniform(0.05, 0.5))
                kill_a_task_worker(process, moments)
            time.sleep(moments.uniform(0.0, 0.5))
            assert process.poll() is None
            kill_group(process)
        assert_committed_shards_are_whole(newest_round(tmp_path))
    finish("spark", tmp_path)
    assert_rounds_are_equal(tmp_path, undisturbed)


def kill_a_task_worker(process: subprocess.Popen[str], moments: random.Random) -> None:
    """SIGKILL to one of Spark's Python task workers: the children of its Python daemon. Waits until there is one."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        assert process.poll() is None
        daemons = [child for child in psutil.Process(process.pid).children(recursive=True) if is_daemon(child)]
        workers = [worker for daemon in daemons for worker in daemon.children()]
        if workers:
            moments.choice(workers).kill()
            return
        time.sleep(0.01)
    raise AssertionError("no Python worker of Spark appeared")


def is_daemon(process: psutil.Process) -> bool:
    try:
        return "pyspark.daemon" in process.cmdline() and "pyspark.daemon" not in process.parent().cmdline()
    except psutil.Error:
        return False
