"""A whole recipe through `megahour run`, disturbed as by users and machines, ends in the same bytes."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from command_line import hears_ctrl_c
from small_run import SMALL, already_made, contents, megahour, run

from megahour.core.store import Artifact
from megahour.core.verify import verify
from megahour.corpus.transcripts.speaker_names import one_name
from megahour.runner.scratch import KEPT

WAIT_S = 400.0
Disturbance = Callable[[subprocess.Popen[str]], None]


def kill_group(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)


def kill_driver(process: subprocess.Popen[str]) -> None:
    process.kill()


def press_ctrl_c(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)


def disturb(folder: Path, step: str, more: int, pause_s: float, disturbance: Disturbance) -> None:
    """Start the run, wait until `step` is claimed and `more` shards are committed in this session, then disturb it."""
    before = committed(folder)
    process = subprocess.Popen(
        megahour("run", str(SMALL), f"run={folder}"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hears_ctrl_c,
    )
    wait_until(lambda: (folder / step / "claim.txt").exists() and committed(folder) >= before + more, process)
    time.sleep(pause_s)
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    disturbance(process)
    _, errors = process.communicate(timeout=400)
    _, alive = psutil.wait_procs(family[1:], timeout=240)
    assert not alive, f"outlived the run: {alive}"
    if disturbance is press_ctrl_c:
        # Python itself ends with the signal, which a shell also shows as 130, where it hit within an exec of a string.
        assert process.returncode in (130, -signal.SIGINT), errors
        assert "To resume: megahour run" in errors
        assert "Traceback" not in errors, errors
    else:
        assert process.returncode == -signal.SIGKILL, errors


def committed(folder: Path) -> int:
    return sum(1 for _ in folder.glob("*/receipts/*.json"))


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert process.poll() is None, "the run ended before it was disturbed"
        assert time.monotonic() < deadline, "the moment never came"
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("all_of_them", [False, pytest.param(True, marks=pytest.mark.faults)])
def test_a_disturbed_run_ends_in_the_same_bytes(tmp_path: Path, undisturbed: Path, all_of_them: bool) -> None:
    folder, moments = tmp_path / "small", random.Random(5)
    if all_of_them:
        disturb(folder, "prompts-raw", 1, moments.uniform(0, 0.5), kill_group)
    else:
        already_made(folder, undisturbed, "prompts-raw", "prompts-recordings", "prompts-utterances", "prompts")
    disturb(folder, "aligner", 0, moments.uniform(0.5, 2), press_ctrl_c)  # a model in training, in the driver
    if all_of_them:
        disturb(folder, "raw", moments.randint(1, 3), moments.uniform(0, 0.3), kill_driver)
    else:
        already_made(folder, undisturbed, "raw")
    disturb(folder, "alignment", 0, moments.uniform(0, 1), kill_driver)  # the service outlives no driver
    if all_of_them:
        disturb(folder, "utterances", moments.randint(0, 4), moments.uniform(0, 0.3), kill_group)
        disturb(folder, "units", moments.randint(0, 2), moments.uniform(0, 0.5), kill_group)
        disturb(folder, "targets", 0, moments.uniform(0.5, 2.5), press_ctrl_c)  # tasks wait for the service

    rest = [] if all_of_them else ["--until", "alignment"]  # what follows begins with the same bytes
    assert f"up to date) in {folder}" in run("run", str(SMALL), f"run={folder}", *rest)
    steps = {path.parent.name for path in folder.glob("*/manifest.json")}
    assert contents(folder) == contents(undisturbed, steps)
    assert not [problem for step in steps for problem in verify(Artifact(folder / step))]
    assert re.search(r"(\d+) steps \(\1 up to date\) in", run("run", str(SMALL), f"run={folder}", *rest))


def test_a_finished_run_has_a_report_and_no_scratch_files(undisturbed: Path) -> None:
    """Except the meters of its trainings."""
    assert "BAD" not in run("verify", str(SMALL), f"run={undisturbed}")
    assert list((undisturbed / "report" / "shards").glob("*.html"))
    assert not [path for path in (undisturbed / ".work").rglob("*") if path.is_file() and path.parent.name not in KEPT]


@pytest.mark.slow
def test_no_test_speaker_and_no_test_recording_is_trained_on(undisturbed: Path) -> None:
    """`tests/select/test_leaks.py` plants leaks; here a whole recipe has none."""
    selection = Artifact(undisturbed / "selection")
    rows = [row for receipt in selection.receipts() for row in selection.read_table(receipt.shard).to_pylist()]
    assert {row["set"] for row in rows} == {"test", "tune", "labelled", "unlabelled"}
    for identity in ("speaker", "recording"):
        sets = {(one_name(str(row[identity])), row["set"]) for row in rows}
        assert len(sets) == len({who for who, _ in sets}), f"a {identity} is in two sets"
