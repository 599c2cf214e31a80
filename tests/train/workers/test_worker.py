"""A worker's status files: its progress, and an error that a restart cannot fix."""

from __future__ import annotations

import json
import logging
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo import run_workers

from megahour.core.errors import ConfigError, StageError
from megahour.sync.group.base import WorkerLostError
from megahour.sync.group.torch_group import TorchGroup
from megahour.train import result
from megahour.train.workers import worker
from megahour.train.workers.worker import _final, _new_store, _Progress


def left(work: Path) -> dict[str, Any]:
    path = work / result.FOLDER / result.ERROR
    return dict(json.loads(path.read_text())["error"]) if path.exists() else {}


def test_an_error_of_ours_is_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no units"), _final(tmp_path):
        raise ConfigError("no units", where="train", remedy="give them")
    assert left(tmp_path) == {"message": "no units", "where": "train", "remedy": "give them"}
    with pytest.raises(ConfigError, match="no units"):
        result.read(tmp_path)


def test_an_error_of_the_program_is_left_with_its_worker_and_the_place_of_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(StageError, match="worker 3 failed: KeyError: 'x'"), _final(tmp_path):
        raise KeyError("x")
    assert left(tmp_path)["message"] == "worker 3 failed: KeyError: 'x'"
    assert left(tmp_path)["remedy"] == f"restarting does not help; its traceback is in {tmp_path / 'workers'}"


@pytest.mark.parametrize("error", [WorkerLostError("rank 1 does not answer"), OSError("stale"), dist.DistError("lost")])
def test_what_a_restart_may_mend_is_left_to_it(tmp_path: Path, error: Exception) -> None:
    with pytest.raises(type(error)) as caught, _final(tmp_path):
        raise error
    assert caught.value is error
    assert left(tmp_path) == {}


def test_the_third_start_that_the_same_error_ends_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_the_way(*_: Any) -> None:
        raise FileExistsError("meters")

    spec = tmp_path / "train.json"
    spec.write_text(json.dumps({"work": str(tmp_path), "params": {}, "inputs": {}, "durable": ""}))
    monkeypatch.setattr(sys, "argv", ["worker", str(spec)])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(worker, "_end_with_parent", lambda: None)
    monkeypatch.setattr(worker, "_run", in_the_way)
    for start in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", start)
        with pytest.raises(FileExistsError):
            worker.main()
        assert left(tmp_path) == {}, "the agent starts it again"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    worker.main()
    assert left(tmp_path)["message"] == "the same error ended 3 starts in a row: FileExistsError: meters"


def test_progress_is_written_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    progress = _Progress(path)
    progress(1, 3, "batches", loss=0.5)
    progress(2, 3, "batches", loss=0.4)
    assert json.loads(path.read_text()) == {"done": 1, "total": 3, "unit": "batches", "loss": 0.5}
    progress(3, 3, "batches", loss=0.3)
    assert json.loads(path.read_text())["done"] == 3
    progress._said_s -= 0.6
    progress(4, 9, "batches")
    assert json.loads(path.read_text())["done"] == 4
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"]


def test_progress_of_several_workers_does_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where they come and go, each machine's writes. One half file would end the thread that shows them."""
    monkeypatch.setattr(worker, "PROGRESS_S", 0.0)
    path = tmp_path / "progress.json"

    def write(_: int) -> None:
        say = _Progress(path)
        for done in range(200):
            say(done, 200, "batches")

    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, number) for number in range(2)]
        while not all(writer.done() for writer in writers):
            if path.exists():
                assert json.loads(path.read_text())["total"] == 200
    assert not caplog.text


def test_progress_names_restarts_once_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    _Progress(tmp_path / "progress.json")(1, 3, "batches")
    assert json.loads((tmp_path / "progress.json").read_text())["restarts"] == 2


def test_progress_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        _Progress(tmp_path / "file" / "progress.json")(1, 3, "batches")
    assert "progress is not shown" in caplog.text


def counted(starts: int) -> list[int]:
    """What the first worker adds to in each start's store, which both see."""
    group, found = TorchGroup(), []
    for _ in range(starts):
        store = _new_store(group)
        found.append(store.add("batches", 1 + group.rank))
        group.all_gather(torch.zeros(1)).wait()
    return found


def test_each_start_counts_from_nothing_in_a_store_that_all_workers_see() -> None:
    first, second = run_workers(counted, 2, 3)
    assert sorted(zip(first, second, strict=True)) in [[(1, 3)] * n + [(3, 2)] * (3 - n) for n in range(4)], (
        "whoever came second saw the sum of both"
    )
