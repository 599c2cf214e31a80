"""Hanging workers, machines that join and leave, full or faulty disks: training continues by itself.

A second machine is a second agent on this one. Networks that are cut are in benchmarks/train_network.py.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from loopback import free_port
from made_artifacts import utterances
from trainings import Trained, page_me, seen, trained, training_data, until, workers

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.monitor.lines import JsonLines
from megahour.train.workers.agent import place_of

SMALL: dict[str, Any] = {
    **{"hidden": 32, "layers": 1, "batch_frames": 120, "learning_rate": 1e-2, "final_learning_rate": 1e-3, "rows": 8},
    **{"workers": 2, "threads": 1, "epochs": 40, "whole_epochs": 0, "tensorboard": False, "timeout_s": 60.0},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return training_data(tmp_path_factory.mktemp("data"), utterances(60, speakers=6), shards=2)


def run(folder: Path, inputs: dict[str, Artifact], **values: Any) -> Trained:
    return trained(folder, inputs, {**SMALL, **values})


@pytest.fixture(scope="module")
def undisturbed(data: dict[str, Artifact], tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return run(tmp_path_factory.mktemp("undisturbed"), data)


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("work/checkpoints/??????????/checkpoint.json"))


class Disturbance(threading.Thread):
    """Does something to a training that runs in the main thread; what it raises is raised by `done`."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._act = act
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._act()
        except BaseException as error:
            self._error = error

    def done(self) -> None:
        self.join()
        if self._error is not None:
            raise self._error


@pytest.mark.faults
def test_a_worker_that_stands_still_is_waited_for(
    tmp_path: Path, data: dict[str, Artifact], undisturbed: Trained
) -> None:
    def stop() -> None:
        until(lambda: checkpoints(tmp_path))
        process = workers()[-1]
        process.suspend()
        time.sleep(2.0)
        process.resume()

    disturbance = Disturbance(stop)
    found = run(tmp_path, data, checkpoint_s=0.1)
    disturbance.done()
    assert found == undisturbed
    assert len(list((tmp_path / "work" / "workers").rglob("attempt_*"))) == 1


@pytest.mark.faults
def test_a_worker_that_stands_still_for_too_long_is_named_and_replaced(
    tmp_path: Path, data: dict[str, Artifact], undisturbed: Trained
) -> None:
    def stop() -> None:
        until(lambda: checkpoints(tmp_path))
        next(w for w in workers() if w.environ()["RANK"] == "1").suspend()

    command, told = page_me(tmp_path)
    disturbance = Disturbance(stop)
    found = run(tmp_path, data, checkpoint_s=0.1, timeout_s=2.0, alarm=command)
    disturbance.done()
    assert found == undisturbed, "all losses of the curve as well"
    assert not told.exists(), "nobody is called for what mends itself"
    logs = (tmp_path / "work" / "workers").rglob("stderr.log")
    assert any("rank 1 does not answer" in log.read_text() for log in logs)


def other_machine(folder: Path) -> psutil.Popen:
    until((folder / "work" / "train.json").exists)
    command = [sys.executable, "-m", "megahour.train.join", str(folder / "work" / "train.json"), "--patience", "30"]
    return psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=(folder / "join.log").open("w"))


@pytest.mark.faults
def test_a_machine_joins_and_leaves_and_nothing_is_skipped_or_repeated(
    tmp_path: Path, data: dict[str, Artifact]
) -> None:
    sizes: list[int] = []

    def come_and_go() -> None:
        until(lambda: checkpoints(tmp_path))
        sizes.append(json.loads(checkpoints(tmp_path)[-1].read_text())["workers"])
        other = other_machine(tmp_path)
        try:
            until(lambda: json.loads(checkpoints(tmp_path)[-1].read_text())["workers"] == 2)
            sizes.append(2)
            other.kill()
            until(lambda: json.loads(checkpoints(tmp_path)[-1].read_text())["workers"] == 1)
            sizes.append(1)
        finally:
            other.kill()
            other.wait()

    disturbance = Disturbance(come_and_go)
    shared = {"nodes": 2, "min_nodes": 1, "rendezvous": f"127.0.0.1:{free_port()}", "epochs": 2500, "hidden": 16}
    _, rows = run(tmp_path, data, checkpoint_s=0.2, **shared)
    disturbance.done()
    assert sizes == [1, 2, 1]
    _, alone = run(tmp_path / "alone", data, workers=1, epochs=2500, hidden=16, checkpoint_s=60.0)
    assert seen(rows) == seen(alone)


@pytest.mark.faults
def test_a_machine_that_gets_notice_leaves_behind_a_checkpoint_and_the_other_goes_on(
    tmp_path: Path, data: dict[str, Artifact]
) -> None:
    """What `megahour.train.leave` does beside `join`, which takes the run's folder, on a machine that will be taken."""
    (tmp_path / "run" / ".work" / "made").mkdir(parents=True)
    (tmp_path / "work").symlink_to(tmp_path / "run" / ".work" / "made")
    ends: list[int | None] = []

    def notice() -> None:
        until((tmp_path / "work" / "train.json").exists)
        python = [sys.executable, "-m"]
        with (tmp_path / "log").open("w") as log:
            other = psutil.Popen([*python, "megahour.train.join", str(tmp_path / "run")], stderr=log)
            watch = [*python, "megahour.train.leave", str(tmp_path / "run"), "--process", str(other.pid)]
            watcher = psutil.Popen([*watch, "--notice", f"test -e {tmp_path / 'notice'}"], stderr=log)
        try:
            until(lambda: checkpoints(tmp_path) and workers_of(tmp_path) == 2)
            (tmp_path / "notice").touch()
            ends.extend([watcher.wait(240), other.wait(240)])
            until(lambda: workers_of(tmp_path) == 1)
        finally:
            for process in (watcher, other):
                if process.is_running():
                    process.kill()

    disturbance = Disturbance(notice)
    shared = {"nodes": 2, "min_nodes": 1, "rendezvous": f"127.0.0.1:{free_port()}", "epochs": 2500, "hidden": 16}
    _, rows = run(tmp_path, data, checkpoint_s=600.0, **shared)  # it is the notice that has one saved
    disturbance.done()
    log = (tmp_path / "log").read_text()
    assert ends == [0, 1], log
    assert "a checkpoint after" in log
    assert "stopped by SIGTERM" in log
    _, alone = run(tmp_path / "alone", data, workers=1, epochs=2500, hidden=16, checkpoint_s=60.0)
    assert seen(rows) == seen(alone)


def workers_of(folder: Path) -> int:
    """How many workers have written the newest checkpoint."""
    return int(json.loads(checkpoints(folder)[-1].read_text())["workers"])


@pytest.mark.faults
def test_the_newest_checkpoint_is_damaged_while_it_runs(
    tmp_path: Path, data: dict[str, Artifact], undisturbed: Trained
) -> None:
    def damage() -> None:
        until(lambda: len(checkpoints(tmp_path)) > 1)
        for process in workers():
            process.suspend()  # so that the newest one stays it
        newest = checkpoints(tmp_path)[-1].parent / "rank-00001.safetensors"
        newest.write_bytes(newest.read_bytes()[:-1] + b"\0")
        workers()[0].send_signal(signal.SIGKILL)

    disturbance = Disturbance(damage)
    found = run(tmp_path, data, checkpoint_s=0.1)
    disturbance.done()
    assert found == undisturbed
    logs = [log.read_text() for log in (tmp_path / "work" / "workers").rglob("stderr.log")]
    assert any("is damaged" in text for text in logs)
    assert any("using the checkpoint before" in text for text in logs)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.faults
def test_a_full_disk_is_reported_and_training_goes_on(
    tmp_path: Path, small_disk: Path, data: dict[str, Artifact], undisturbed: Trained
) -> None:
    command, alarm = page_me(tmp_path)

    def fill_and_free() -> None:
        until(lambda: checkpoints(small_disk))
        ballast = small_disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(b"\0" * 4096) == 4096:
                    pass
            except OSError:
                assert os.statvfs(small_disk).f_bfree == 0
        try:
            until(lambda: alarm.exists() and "not written" in alarm.read_text())
        finally:
            ballast.unlink()

    disturbance = Disturbance(fill_and_free)
    found = run(small_disk, data, checkpoint_s=0.1, alarm=command)
    disturbance.done()
    assert found == undisturbed
    assert len(list((small_disk / "work" / "workers").rglob("attempt_*"))) == 1


def test_a_row_that_does_not_fit_is_left_out_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """RLIMIT_FSIZE stands for the full disk."""
    lines = JsonLines(tmp_path / "rows.jsonl")
    lines.add({"step": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
        with caplog.at_level(logging.WARNING):
            for step in (2, 3):
                lines.add({"step": step})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    lines.add({"step": 4})
    lines.close()
    assert [json.loads(line)["step"] for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == [1, 4]
    assert caplog.text.count("rows could not be written") == 1


def test_a_machine_knows_its_address_among_the_others() -> None:
    place = place_of("127.0.0.1:29400")
    assert (place.address, place.hosts) == ("127.0.0.1", True)
    assert place.device.startswith("lo")
    with pytest.raises(ConfigError, match=r"cannot reach no-such-host\.invalid"):
        place_of("no-such-host.invalid:29400")
