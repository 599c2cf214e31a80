"""Messages if a Spark cluster and its driver cannot connect."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest
from loopback import free_port

from megahour.engine.base import EngineError
from megahour.engine.spark_reach import Wait, check_master, launches
from megahour.engine.spark_settings import settings_of, without_secrets

# What a driver's Java wrote on a standalone cluster whose executors were given an address that is not the driver's.
LOST = """\
Connecting to master spark://127.0.0.1:52985...
Executor added: app-1/0 on worker-1 (127.0.0.1:45413) with 1 core(s)
Executor added: app-1/1 on worker-2 (127.0.0.1:36433) with 1 core(s)
Executor updated: app-1/1 is now RUNNING
Executor updated: app-1/0 is now EXITED (Command exited with code 1)
Executor added: app-1/2 on worker-1 (127.0.0.1:45413) with 1 core(s)
Executor updated: app-1/1 is now EXITED (Command exited with code 1)
Executor updated: app-1/2 is now RUNNING
"""
THIRD = "Executor updated: app-1/2 is now EXITED (Command exited with code 1)\n"


def test_a_master_that_is_not_there_is_named_before_java_starts() -> None:
    port = free_port()
    with pytest.raises(EngineError, match=rf"no Spark master answers at spark://127.0.0.1:{port} .*refused") as caught:
        check_master(f"spark://127.0.0.1:{port}")
    assert "engine.master" in str(caught.value)
    with pytest.raises(EngineError, match="no Spark master answers at k8s"):
        check_master(f"k8s://https://127.0.0.1:{port}")
    for other in ("head:7077", "locals", "yarns"):
        with pytest.raises(EngineError, match=f'"{other}" is no Spark master\nRemedy: .*spark://HOST:PORT'):
            check_master(other)


@pytest.mark.parametrize("master", ["spark://a..b:1", f"spark://{'a' * 70}", "k8s://ftp://127.0.0.1:1"])
def test_a_name_that_no_machine_can_have_is_named(master: str) -> None:
    with pytest.raises(EngineError, match="no Spark master answers at"):
        check_master(master)


def test_one_of_several_masters_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = server.getsockname()[1]
        check_master(f"spark://127.0.0.1:{free_port()},127.0.0.1:{there}")
        check_master(f"k8s://http://127.0.0.1:{there}")
    for other in ("local", "local[*]", "local[2,3]", "local-cluster[1,1,1024]", "yarn"):
        check_master(other)


def test_executors_that_end_before_they_come_here_end_the_job(tmp_path: Path) -> None:
    log = tmp_path / "launches.log"
    wait = Wait(lambda: 0, "127.0.0.2:4040", log)
    wait.look()  # nothing was written yet
    log.write_text(LOST)
    assert launches(log) == launches(log, "app-1") == (3, 2)
    assert launches(log, "app-2") == (0, 0)
    wait.look()
    log.write_text(LOST + THIRD)
    with pytest.raises(EngineError, match=r"3 executors .* 3 of them ended .* 127\.0\.0\.2:4040") as caught:
        wait.look()
    assert "engine.conf.spark.driver.host" in str(caught.value)


@pytest.mark.parametrize(("text", "reason"), [("", "none free"), (LOST, "none has reached the driver at host:1")])
def test_a_long_wait_is_explained_once(
    text: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "log").write_text(text)
    wait = Wait(lambda: 0, "host:1", tmp_path / "log", patience_s=0.0)
    with caplog.at_level(logging.WARNING):
        wait.look()
        wait.look()
    assert [reason in record.getMessage() for record in caplog.records] == [True]


def test_executors_that_end_after_the_warning_end_the_job_too(tmp_path: Path) -> None:
    """On a slow cluster the third ends long after 40 s; Spark would start further ones for ever."""
    wait = Wait(lambda: 0, "host:1", tmp_path / "log", patience_s=0.0)
    (tmp_path / "log").write_text(LOST)
    wait.look()
    (tmp_path / "log").write_text(LOST + THIRD)
    with pytest.raises(EngineError, match="3 of them ended before they reached"):
        wait.look()


def test_once_an_executor_is_there_losses_are_sparks_affair(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    there = [1]
    wait = Wait(lambda: there[0], "host:1", tmp_path / "log", patience_s=0.0)
    wait.look()
    there[0] = 0
    (tmp_path / "log").write_text(LOST + THIRD)
    wait.look()
    assert not caplog.records


def test_settings_are_texts_as_spark_reads_them() -> None:
    given = {"spark.speculation": True, "spark.executor.cores": 2, "spark.executor.memory": "4g"}
    read = {"spark.speculation": "true", "spark.executor.cores": "2", "spark.executor.memory": "4g"}
    assert settings_of(given) == read
    assert settings_of([f"{name}={value}" for name, value in read.items()]) == read
    assert without_secrets(read | {"spark.authenticate.secret": "x", "spark.hadoop.fs.s3a.access.key": "y"}) == read


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"executor.memory": "4g"}, "begin with `spark.`"),
        ({"spark.master": "yarn"}, "set by engine.master"),
        ({"spark.jars": ["a"]}, "not text, a number"),
    ],
)
def test_what_is_no_setting_is_refused(given: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        settings_of(given)
