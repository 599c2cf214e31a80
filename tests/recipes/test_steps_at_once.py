"""Steps that do not depend on each other run at once: with the same artifacts, and stopped together."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from command_line import command, megahour
from toy_stages import TOY_STAGES

from megahour.cli.main import _for_users
from megahour.cli.session import RunSession
from megahour.core.errors import ConfigError, StageError, StoreError
from megahour.core.receipts import Receipt
from megahour.core.store import Artifact
from megahour.engine.base import EngineError, TaskFailed
from megahour.metrics.run import MeteredMonitor, RunBoard
from megahour.recipes import stage_table
from megahour.recipes.recipe import Recipe, load_recipe
from megahour.recipes.run import execute
from megahour.runner import log
from megahour.runner.monitor import Monitor

MEET = {"stage": "toy-meet", "others": 1}


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_table, "STAGES", stage_table.STAGES | TOY_STAGES)
    monkeypatch.setattr("megahour.recipes.recipe.STAGES", stage_table.STAGES)


def written(folder: Path, *, at_once: int = 2, **steps: dict[str, Any]) -> Path:
    """A recipe with a folder `place`, where its steps meet."""
    place = folder / "place"
    place.mkdir(exist_ok=True)
    meeting = {name: {**step, "place": str(place), "name": name} if step["stage"].startswith("toy-meet") else step
               for name, step in steps.items()}  # fmt: skip
    text = {"run": f"{folder}/run", "engine": {"workers": 1}, "steps_at_once": at_once, "steps": meeting}
    path = folder / "toy.yaml"
    path.write_text(yaml.safe_dump(text, sort_keys=False))
    return path


def made(folder: Path, **steps: Any) -> Recipe:
    return load_recipe(written(folder, **steps))


def names(recipe: Recipe) -> list[str]:
    """The steps, in the order in which they end; those that were made before in brackets."""
    done = execute(recipe, lambda step: Monitor())
    return [each.step.name if each.seconds is not None else f"({each.step.name})" for each in done]


def processes(folder: Path) -> list[int]:
    """Those in which steps met."""
    return sorted(int(path.suffix[1:]) for path in (folder / "place").iterdir())


def test_two_steps_run_at_once_in_processes_of_their_own(tmp_path: Path) -> None:
    """Each waits for the other; one that needs the first comes after it."""
    recipe = made(tmp_path, one=MEET, two=MEET, last={"stage": "toy-meet", "inputs": {"numbers": "one"}})
    assert sorted(names(recipe)) == ["last", "one", "two"]
    assert len(set(processes(tmp_path))) == 2, "the third step has the process of one of the others"
    assert os.getpid() not in processes(tmp_path)
    assert not alive(processes(tmp_path))
    assert names(recipe) == ["(one)", "(two)", "(last)"]


def alive(processes: list[int]) -> list[int]:
    return [each for each in processes if psutil.pid_exists(each) and psutil.Process(each).status() != "zombie"]


def test_the_artifacts_are_those_of_one_step_after_the_other(tmp_path: Path) -> None:
    steps = {
        "grouped": {"stage": "toy-parity", "inputs": {"numbers": "numbers"}},
        "numbers": {"stage": "toy-count", "shards": 3, "bad_every": 7, "max_bad": 1.0},
        "others": {"stage": "toy-count", "shards": 2},
    }
    digests = []
    for at_once in (1, 3):
        folder = tmp_path / str(at_once)
        folder.mkdir()
        reports = Reports()
        assert len(list(execute(made(folder, at_once=at_once, **steps), lambda step, to=reports: to.of(step)))) == 3
        digests.append([Artifact(f"{folder}/run/{name}").manifest.digest for name in steps])
        assert reports.events["numbers"] == ["begins", "started", *["took", "task_done"] * 3, "stopped", "finished"]
    assert digests[0] == digests[1]


class Reports:
    """The events that monitors of steps get."""

    def __init__(self) -> None:
        self.events: dict[str, list[str]] = {}

    def of(self, step: str) -> Monitor:
        events = self.events[step] = []
        monitor = Monitor()
        for name in ("begins", "started", "took", "task_done", "progress", "hint", "stopped", "finished"):
            setattr(monitor, name, lambda *_, name=name, **__: events.append(name))
        return monitor


@pytest.mark.parametrize("stage", ["toy-meet", "toy-meet-in-pool"])
def test_an_error_ends_the_run_and_the_other_step_keeps_its_shards(tmp_path: Path, stage: str) -> None:
    steps = {"one": {**MEET, "stage": stage, "ends": "in an error"}, "two": {**MEET, "ends": "never"}}
    with pytest.raises(StageError if stage == "toy-meet" else TaskFailed) as error:
        names(made(tmp_path, **steps))
    shown = _for_users(error.value)
    assert shown is not None
    assert str(shown) == f"{tmp_path}/run/one shard 1: the remedy is known\nRemedy: try another"
    assert not alive(processes(tmp_path))
    two = Artifact(f"{tmp_path}/run/two")
    assert (two.committed(), two.complete) == ({0}, False)
    assert sorted(names(made(tmp_path, one=MEET, two=MEET))) == ["one", "two"]


def test_a_bug_comes_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(TaskFailed, match="seven by nothing") as error:
        names(made(tmp_path, one={**MEET, "ends": "in a bug"}, two={**MEET, "ends": "never"}))
    assert "toy_stages.py" in str(error.value)


def test_a_killed_process_is_named_and_the_run_resumes(tmp_path: Path) -> None:
    recipe = made(tmp_path, one={**MEET, "others": 0, "ends": "never"}, two={**MEET, "others": 0})
    with closing(execute(recipe, lambda step: Monitor())) as ended:
        assert next(ended).step.name == "two"
        os.kill(waited_for(tmp_path / "place"), signal.SIGKILL)
        with pytest.raises(EngineError, match=r"^one: the step's process was killed by SIGKILL") as error:
            next(ended)
    assert "the same command resumes" in error.value.remedy
    assert names(made(tmp_path, one={**MEET, "others": 0}, two={**MEET, "others": 0})) == ["(two)", "one"]


def test_a_process_that_was_killed_between_steps_is_replaced(tmp_path: Path) -> None:
    recipe = made(tmp_path, one={**MEET, "others": 0}, last={**MEET, "others": 0, "inputs": {"numbers": "one"}})
    with closing(execute(recipe, lambda step: Monitor())) as ended:
        assert next(ended).step.name == "one"
        (idle,) = processes(tmp_path)
        os.kill(idle, signal.SIGKILL)
        next(each for each in multiprocessing.active_children() if each.pid == idle).join()
        assert next(ended).step.name == "last"


def test_steps_that_are_closed_leave_no_process(tmp_path: Path) -> None:
    never = {**MEET, "others": 0, "ends": "never"}
    ended = execute(made(tmp_path, one={**MEET, "others": 0}, two=never, three=never), lambda step: Monitor())
    assert next(ended).step.name == "one"
    ended.close()
    assert not alive(processes(tmp_path))


def test_a_step_that_reads_the_run_by_a_path_waits_for_the_steps_before_it(tmp_path: Path) -> None:
    """As with one step after the other: it may read what they make."""
    reader = {"stage": "toy-count", "kind": f"{tmp_path}/run/one/shards"}
    recipe = made(tmp_path, one=MEET, reader=reader, last={**MEET, "inputs": {"numbers": "one"}, "others": 0}, two=MEET)
    assert set(names(recipe)[:2]) == {"one", "two"}


class Full(Monitor):
    """Raises what a disk would, at the first event of its step."""

    def begins(self, *given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_an_error_of_a_monitor_ends_the_run(tmp_path: Path) -> None:
    """The driver mistook it for the end of the process, and waited for a process that still ran."""
    recipe = made(tmp_path, one={**MEET, "others": 0, "ends": "never"})
    with pytest.raises(StoreError, match="No space left on device"):
        list(execute(recipe, lambda step: Full()))
    assert not alive(processes(tmp_path))


class Kills(MeteredMonitor):
    """Kills the worker of the second shard."""

    def task_done(self, receipt: Receipt) -> None:
        super().task_done(receipt)
        if receipt.shard == 0:
            os.kill(waited_for(Path(self._work).parents[2] / "place"), signal.SIGKILL)


def waited_for(place: Path) -> int:
    deadline = time.monotonic() + 120
    while not (one := [int(path.suffix[1:]) for path in place.glob("one.*")]):
        assert time.monotonic() < deadline, "the steps did not start"
        time.sleep(0.01)
    return one[0]


def test_the_lost_workers_of_a_step_beside_others_are_counted_and_named(tmp_path: Path) -> None:
    """The second attempt meets what the first one left."""
    board = RunBoard()
    log.begin(file=str(tmp_path / "log"))
    try:
        list(execute(made(tmp_path, one={**MEET, "stage": "toy-meet-in-pool"}), lambda step: Kills(board, step)))
    finally:
        log.begin()
    assert "one: retrying task 1 (2 left): its worker was killed by SIGKILL" in (tmp_path / "log").read_text("utf-8")
    assert {name: value for name, value, _ in board()}["megahour_shards_failed_total"] == 1


UNGUARDED = """
from megahour.recipes.recipe import load_recipe
from megahour.recipes.run import execute
from megahour.runner.monitor import Monitor

print([done.step.name for done in execute(load_recipe("toy.yaml"), lambda step: Monitor())])
"""


def test_a_script_that_each_process_would_run_again_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text("{steps_at_once: 2, steps: {said: {stage: synthesise, hours: 0.003}}}", "utf-8")
    (tmp_path / "unguarded.py").write_text(UNGUARDED, "utf-8")
    ended = subprocess.run([sys.executable, "unguarded.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "said: the step's process cannot begin; Python's message above says why" in ended.stderr
    assert "__name__ == '__main__'" in ended.stderr.splitlines()[-1]


def test_equal_steps_do_not_meet_in_their_scratch_folder(tmp_path: Path) -> None:
    """Their jobs have one fingerprint, which is the folder's name."""
    same = {"stage": "toy-count", "shards": 4}
    assert sorted(names(made(tmp_path, one=same, two=same))) == ["one", "two"]


def test_steps_do_not_take_the_services_of_each_other(tmp_path: Path) -> None:
    """A registry asks for one model: the first of two steps waited for an hour for services that the second had got."""
    by_model = {**MEET, "stage": "toy-meet-by-model"}
    path = written(tmp_path, one=by_model, two={**by_model, "others": 0}, three={**MEET, "others": 0})
    recipe = load_recipe(path, [f"engine.services={tmp_path}/services"])
    ended = names(recipe)
    assert ended.index("one") < ended.index("two"), "which begins only then"
    (beside := tmp_path / "beside").mkdir()
    assert sorted(names(made(beside, one=by_model, two=by_model))) == ["one", "two"], "models beside each"


def test_only_on_the_local_engine(tmp_path: Path) -> None:
    path = written(tmp_path, one=MEET)
    with pytest.raises(ConfigError, match=r"steps_at_once is 2, and engine\.kind is spark"):
        names(load_recipe(path, ["engine.kind=spark"]))
    with pytest.raises(ConfigError, match="steps_at_once = 0 is not a whole number of at least 1"):
        load_recipe(path, ["steps_at_once=0"])


def test_the_summary_is_in_the_recipes_order_and_no_step_is_alone(tmp_path: Path) -> None:
    alone = {**MEET, "others": 0}
    path = written(tmp_path, one={**MEET, "others": 2}, two=alone, three=alone)
    printed = megahour("run", str(path))
    assert printed.index("2/3 two   ") < printed.index("1/3 one   "), "the third begins after it, and the first waits"
    table = printed[printed.index("This run") :]
    assert table.index("one") < table.index("two")
    place = RunSession(load_recipe(path), [str(path)]).monitor("one").place
    assert place is not None
    assert place.at_once == 2, "bars of several steps would overwrite each other"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[[int], tuple[int, str]]]:
    """A run whose two steps have met and never end: what becomes of it after a signal, and what it prints."""
    never = {**MEET, "ends": "never"}
    path = written(tmp_path, one=never, two=never)
    errors = tmp_path / "errors"  # a pipe would be open as long as a step that outlives the run
    with errors.open("w") as file:
        run = subprocess.Popen(
            command("run", str(path), "--log-format", "json"), stderr=file, text=True, start_new_session=True
        )
    deadline = time.monotonic() + 240
    while len(list((tmp_path / "place").iterdir())) < 2:
        assert time.monotonic() < deadline, "they did not meet"
        time.sleep(0.02)

    def after(number: int) -> tuple[int, str]:
        (os.killpg if number == signal.SIGINT else os.kill)(run.pid, number)
        return run.wait(timeout=240), errors.read_text()

    yield after
    run.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_all_of_it(number: int, tmp_path: Path, running: Callable[[int], tuple[int, str]]) -> None:
    code, errors = running(number)
    assert code == (-9 if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        assert "0 of 2 steps, 1 of 2 shards of one, 1 of 2 shards of two" in errors
        assert "Traceback" not in errors
        for name in ("one", "two"):
            assert Artifact(f"{tmp_path}/run/{name}").wall(), "it ended in order: its time is recorded"
    deadline = time.monotonic() + 60
    while alive(processes(tmp_path)):
        assert time.monotonic() < deadline, "a step outlived its run"
        time.sleep(0.02)
    for path in (tmp_path / "place").iterdir():
        path.unlink()
    printed = megahour("run", str(written(tmp_path, one=MEET, two=MEET)))
    assert "1/2 one: toy-meet, 2 shards\n" in printed, "other parameters: nothing is kept"
    assert "Finished in" in printed
