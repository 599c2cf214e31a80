"""A machine with a notice that it will be taken away: what it waits for. test_membership.py has a whole training."""

from __future__ import annotations

import itertools
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import EndpointConnectionError
from fsspec.implementations.local import LocalFileSystem

from megahour.core.store import Artifact
from megahour.sync.checkpoint import Checkpoints
from megahour.train.checkpoints import Saving
from megahour.train.leave import given, leave, newest, request


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as started:
        threading.Thread(target=started.wait, daemon=True).start()  # so that its end is not that of a zombie
        yield started
        started.kill()


def checkpoint(run: Path, name: str) -> None:
    for folder in (run / ".work" / "made", run / "student" / ".scratch"):
        path = folder / "checkpoints" / name / "checkpoint.json"
        path.parent.mkdir(parents=True)
        path.touch()


def test_the_process_ends_once_there_is_a_checkpoint_of_now(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    tmp_path /= "run [2019]"
    checkpoint(tmp_path, "7")
    before = newest(str(tmp_path))
    assert before > 0
    left, names = threading.Event(), itertools.count(8)

    def save() -> None:  # more than one: it may be long before the first is looked at
        while not left.wait(0.3):
            checkpoint(tmp_path, f"{next(names)}")

    saving = threading.Thread(target=save)
    saving.start()
    try:
        assert leave(str(tmp_path), process.pid, 300.0)
    finally:
        left.set()
        saving.join()
    assert newest(str(tmp_path)) > before
    assert process.wait() == -15


def test_checkpoints_that_go_while_they_are_looked_at_and_a_store_that_fails_do_not_keep_the_process(
    tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(tmp_path, "7")
    whole = Artifact.matching
    with monkeypatch.context() as patched:
        patched.setattr(Artifact, "matching", lambda home, path: [*whole(home, path), f"{tmp_path}/gone"])
        assert newest(str(tmp_path)) > 0
    answers = iter([1.0])

    def fails_later(run: str) -> float:
        try:
            return next(answers)
        except StopIteration:
            raise TimeoutError("no answer") from None

    monkeypatch.setattr("megahour.train.leave.newest", fails_later)
    assert not leave(str(tmp_path), process.pid, 0.2)
    assert process.wait() == -15


def test_checkpoints_are_requested_of_every_training_and_taken_once(tmp_path: Path) -> None:
    checkpoint(tmp_path, "7")
    for request_it in (False, True):
        if request_it:
            request(str(tmp_path))
        for work in (tmp_path / ".work" / "made", tmp_path / "student" / ".scratch"):
            with Checkpoints(work / "checkpoints") as saver:
                saving = Saving(saver, "", None)
                assert [saving.requested(), saving.requested()] == [request_it, False]


@pytest.mark.parametrize("error", [TimeoutError("no answer"), EndpointConnectionError(endpoint_url="http://s3")])
def test_a_store_that_cannot_be_asked_for_requests_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def unreachable(fs: object, path: str) -> bool:
        raise error

    with Checkpoints(tmp_path) as saver:
        monkeypatch.setattr(LocalFileSystem, "exists", unreachable)
        assert not Saving(saver, "", None).requested()


def test_no_checkpoint_is_waited_for_longer_than_there_is_time(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    checkpoint(tmp_path, "7")
    assert not leave(str(tmp_path), process.pid, 0.2)
    assert process.wait() == -15


def test_a_notice_is_a_command_that_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megahour.train.leave.LOOK_S", 240.0)
    assert given("true")
    assert not given("false")
    monkeypatch.setattr("megahour.train.leave.LOOK_S", 0.3)
    assert not given("exec sleep 240")
