"""Training on several processes that are killed and restarted: nothing is lost or repeated."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
import torch
from gloo import LASTS_UNTIL, processes
from made_artifacts import utterances, write_artifact
from trainings import Trained, page_me, seen, trained, training_data, until, with_a_nan, workers

from megahour.core.errors import StageError
from megahour.core.store import Artifact
from megahour.train.workers.worker import comes_again, of_program

SMALL = {
    **{"hidden": 16, "layers": 1, "batch_frames": 120, "learning_rate": 1e-2, "final_learning_rate": 1e-3, "rows": 4},
    **{"workers": 2, "threads": 1, "epochs": 4, "whole_epochs": 0, "tensorboard": False, "timeout_s": 60.0},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return training_data(tmp_path_factory.mktemp("data"), utterances(60, speakers=6), shards=2)


def run(folder: Path, inputs: dict[str, Artifact], **values: Any) -> Trained:
    return trained(folder, inputs, {**SMALL, **values})


class Killer(threading.Thread):
    """SIGKILLs one worker at a random moment after a new checkpoint, or at the end; `times`, each in another start.

    The training does not end before.
    """

    def __init__(self, folder: Path, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(daemon=True)
        self.folder, self.times, self.killed, self.moments = folder, times, 0, random.Random(3)
        self.done, self.at_end = folder / "killed", folder / "killed.waits"
        self.seen, self.hit = set[Path](), set[psutil.Process]()
        folder.mkdir(exist_ok=True)
        monkeypatch.setenv(LASTS_UNTIL, str(self.done))
        self.start()

    def run(self) -> None:
        try:
            for _ in range(self.times):
                self._kill()
        finally:
            self.done.touch()

    def _kill(self) -> None:
        until(lambda: not self.hit & set(workers()))
        until(lambda: self._checkpoints() - self.seen or self.at_end.exists())
        time.sleep(self.moments.uniform(0.0, 0.3))
        self.seen, self.hit = self._checkpoints(), set(until(workers))
        until(lambda: kills(self.moments.choice(list(self.hit))))
        self.at_end.unlink(missing_ok=True)
        self.killed += 1

    def _checkpoints(self) -> set[Path]:
        return set(self.folder.glob("work/checkpoints/*/checkpoint.json"))


def kills(process: psutil.Process) -> bool:
    """Kills a process, unless it has ended by itself."""
    try:
        process.suspend()
        until(lambda: process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE))
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.fixture(scope="module")
def undisturbed(data: dict[str, Artifact], tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """By workers that are started with `python -m`, as users' are."""
    return run(tmp_path_factory.mktemp("undisturbed"), data, epochs=8)


@pytest.mark.faults
def test_an_error_that_comes_again_without_progress_ends_the_run(tmp_path: Path, data: dict[str, Artifact]) -> None:
    """The folder of the meters cannot be made; `max_restarts` would allow more. Without processes: test_worker.py."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "meters").write_text("in the way")
    with pytest.raises(StageError, match=r"the same error ended 3 starts in a row: FileExistsError.*meters"):
        run(tmp_path, data)


def test_an_error_of_the_program_ends_the_run_at_once_and_names_its_worker(tmp_path: Path) -> None:
    """Labels that are not numbers, which no stage writes, give pyarrow's error on the worker that opens them."""
    inputs = training_data(tmp_path, utterances(40, speakers=6), 1)
    table = inputs["units"].read_table(0, ".alignments.arrow")
    letters = pa.array([["a"] * len(row) for row in table["senones"]])
    odd = {".alignments.arrow": table.set_column(2, "senones", letters)}
    inputs["units"] = write_artifact(tmp_path / "odd", [({}, odd)], inputs["units"].summary)
    with pytest.raises(StageError, match=r"worker \d failed: ArrowInvalid: (.|\n)*work/workers"):
        run(tmp_path, inputs, held_out=0.0)
    assert len(list((tmp_path / "work" / "workers").rglob("attempt_*"))) == 1, "no restart"
    logs = [log.read_text() for log in (tmp_path / "work" / "workers").rglob("stderr.log")]
    assert any("Traceback" in text and "ragged.py" in text for text in logs)


@pytest.mark.parametrize(
    "error",
    [
        *(TypeError("no"), KeyError("no"), IndexError("no"), AssertionError(), AttributeError("no"), NameError("no")),
        *(ZeroDivisionError("division by zero"), NotImplementedError("no"), RecursionError("maximum recursion depth")),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x5 and 4x2)"),
        RuntimeError("The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0"),
        RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn"),
    ],
)
def test_errors_of_the_program_are_distinguished_from_the_machines(error: Exception) -> None:
    assert of_program(error)


@pytest.mark.parametrize(
    "error",
    [
        *(
            OSError("stale file handle"),
            MemoryError(),
            ConnectionResetError("reset by peer"),
            TimeoutError("no answer"),
        ),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("[/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer"),
        RuntimeError("Application timeout caused pair closure"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("can't start new thread"),
        torch.OutOfMemoryError("Tried to allocate 20 GiB"),
        torch.distributed.DistBackendError("NCCL error"),
    ],
)
def test_errors_of_the_machine_are_left_to_a_restart(error: Exception) -> None:
    assert not of_program(error)


def test_errors_count_only_where_they_repeat_in_starts_that_get_nowhere(tmp_path: Path) -> None:
    def fails(start: int, error: Exception) -> bool:
        return comes_again(error, tmp_path / "unexpected.json", start, tmp_path / "checkpoints")

    same = RuntimeError("no")
    assert [fails(start, same) for start in range(3)] == [False, False, True]
    assert [fails(start, same) for start in (0, 1)] == [False, False], "another run counts anew"
    assert not fails(2, RuntimeError("other"))
    assert [fails(start, same) for start in (3, 4)] == [False, False]
    (tmp_path / "checkpoints" / "0000000009").mkdir(parents=True)
    assert [fails(start, same) for start in (5, 6, 7)] == [False, False, True]
    (tmp_path / "unexpected.json").write_text("{")
    assert not fails(8, same)


def test_two_workers_learn_and_see_every_piece_once(
    tmp_path: Path, data: dict[str, Artifact], undisturbed: Trained
) -> None:
    _, rows = undisturbed
    assert rows[-1]["loss"] < rows[0]["loss"]
    _, alone = run(tmp_path, data, epochs=8, workers=1)
    assert seen(rows) == seen(alone)
    assert rows[-1]["step"] == pytest.approx(alone[-1]["step"] / 2, abs=1)


def test_killed_workers_are_started_again_and_the_bytes_are_the_same(
    tmp_path: Path, data: dict[str, Artifact], undisturbed: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer = Killer(tmp_path, 2, monkeypatch)
    disturbed = run(tmp_path, data, epochs=8, checkpoint_s=0.05)
    killer.join()
    assert killer.killed == 2
    assert disturbed == undisturbed
    for path in (tmp_path / "work" / "meters").glob("steps-0000?.jsonl"):
        steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
        assert steps == sorted(set(steps)), "rows of steps that were done again are not there twice"
    assert json.loads((tmp_path / "work" / "progress.json").read_text())["restarts"] == 2


def test_workers_that_do_not_wait_for_each_other_skip_and_repeat_nothing_either(
    tmp_path: Path,
    data: dict[str, Artifact],
    undisturbed: Trained,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    killer = Killer(tmp_path, 1, monkeypatch)
    _, rows = run(tmp_path, data, epochs=8, trainer="gossip", checkpoint_s=0.05)
    killer.join()
    assert killer.killed == 1
    (told,) = [message for message in caplog.messages if "was lost" in message]
    assert told.startswith(("train: worker 0 was lost (", "train: worker 1 was lost ("))
    assert "all start again from the newest checkpoint (restart 1 of at most 100;" in told
    assert seen(rows) == seen(undisturbed[1])


def test_an_error_that_no_restart_mends_ends_the_run_at_once(tmp_path: Path) -> None:
    inputs = with_a_nan(tmp_path, 8)
    command, told = page_me(tmp_path)
    with pytest.raises(StageError, match=r"loss nan at step \d+.*utterance 2 are not finite"):
        run(tmp_path, inputs, held_out=0.0, alarm=command)
    assert len(list((tmp_path / "work" / "workers").rglob("attempt_*"))) == 1
    until(lambda: told.exists() and "utterance 2 are not finite" in told.read_text())
    assert told.read_text().count("training ended") == 1, "whoever has the error"


def test_workers_that_are_lost_again_and_again_end_the_run_with_their_folder(
    tmp_path: Path, data: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, told = page_me(tmp_path)
    killer = Killer(tmp_path, 1, monkeypatch)
    last = r"the last was worker \d \((SIGKILL, as .*|exit code 1)\)"  # the other one's, if the agent sees both at once
    with pytest.raises(StageError, match=rf"more than 0 times, {last}(.|\n)*work/workers"):
        run(tmp_path, data, epochs=8, max_restarts=0, checkpoint_s=0.05, alarm=command)
    killer.join()
    assert killer.killed == 1
    assert "more than 0 times" in told.read_text()


def training_process(folder: Path, data: dict[str, Artifact], **values: Any) -> BaseProcess:
    """A training, and its agent, in a forked process; it starts its workers as users' are. stderr is in `folder`."""
    folder.mkdir(exist_ok=True)
    urls = {role: artifact.url for role, artifact in data.items()}
    process = processes.Process(target=_train, args=(folder, urls, {**SMALL, **values}))
    process.start()
    return process


def _train(folder: Path, urls: dict[str, str], settings: dict[str, Any]) -> None:
    with (folder / "stderr").open("w") as file:
        os.dup2(file.fileno(), 2)
    trained(folder, {role: Artifact(url) for role, url in urls.items()}, settings)


def workers_of(agent: BaseProcess) -> list[psutil.Process]:
    return workers(psutil.Process(agent.pid))


def test_sigterm_ends_a_training_with_a_word(tmp_path: Path, data: dict[str, Artifact]) -> None:
    command, told = page_me(tmp_path)
    first = training_process(tmp_path, data, epochs=400, checkpoint_s=0.05, alarm=command)
    try:
        until(lambda: list(tmp_path.glob("work/checkpoints/*/checkpoint.json")))
        started = workers_of(first)
        assert len(started) == 2
        first.terminate()
        first.join(240)
        assert first.exitcode == 1
    finally:
        first.kill()
    assert not any(lives(process) for process in started)
    assert "Terminated: stopped by SIGTERM" in (tmp_path / "stderr").read_text()
    assert "stopped by SIGTERM" in told.read_text()


@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.faults)])
def test_workers_end_with_their_agent_even_where_it_dies_before_they_have_begun(
    tmp_path: Path, data: dict[str, Artifact], trains: bool
) -> None:
    agent = training_process(tmp_path, data, epochs=400, checkpoint_s=0.05)
    until(lambda: len(workers_of(agent)) == 2)
    if trains:
        until(lambda: list(tmp_path.glob("work/checkpoints/*/checkpoint.json")))
    started = workers_of(agent)
    agent.kill()
    agent.join()
    until(lambda: not any(lives(process) for process in started))


def lives(process: psutil.Process) -> bool:
    """Whether it runs; init may be slow to reap the children of a killed process."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
