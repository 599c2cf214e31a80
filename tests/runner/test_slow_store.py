"""Many shards in a store with a latency of 20 ms: a resumed run and `verify` send many requests at a time."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NoReturn

import pytest
from engine_here import EngineHere
from slow_store import DELAY_S, SlowStore

from megahour.core.config import Params
from megahour.core.stage import Context, Inputs, Stage, Task
from megahour.core.store import Artifact
from megahour.core.verify import verify
from megahour.core.writer import ShardWriter
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage

FIRST_TASK_S, FOR_SHARDS = 15.0, 10_000  # what resuming may take
ENOUGH = 32  # requests at a time


class CountingParams(Params):
    """Some numbers."""

    shards: int = 8


class Counting(Stage[CountingParams]):
    """A small file for each number."""

    name = "counting"
    params = CountingParams

    def plan(self, p: CountingParams, inputs: Inputs) -> list[Task]:
        return [Task({"shard": shard}) for shard in range(p.shards)]

    def run(self, p: CountingParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        out.text(str(task["shard"]), ".txt")


class Stopped(Exception):
    """Ends a run before it has written its manifest."""


def stopped(*_: object) -> NoReturn:
    raise Stopped


class Meeting:
    """Requests for files whose path has `part` wait until `together` are under way; `most` is how many have been.

    A machine that is slow to make them does not change that, while it would need more time.
    """

    def __init__(self, part: str, together: int, patch: pytest.MonkeyPatch) -> None:
        self.most, self._here, self._changed, whole = 0, 0, threading.Condition(), SlowStore._wait

        def wait(store: SlowStore, request: str, path: str = "") -> None:
            whole(store, request, path)
            if part not in path:
                return
            with self._changed:
                self._here += 1
                self.most = max(self.most, self._here)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self.most >= together, 60.0)
                self._here -= 1

        patch.setattr(SlowStore, "_wait", wait)
        patch.setattr("slow_store.DELAY_S", 0.0)


def resumed(shards: int, folder: Path, patch: pytest.MonkeyPatch, together: int) -> tuple[int, int]:
    """How many requests a run makes that resumes with one missing shard, and for how many receipts at a time."""
    output = Artifact(f"slow://counting-{shards}")
    with pytest.MonkeyPatch.context() as interrupted:
        interrupted.setattr("slow_store.DELAY_S", 0.0)
        interrupted.setattr("megahour.runner.runner.close", stopped)
        with pytest.raises(Stopped):
            run_stage(Counting(), CountingParams(shards=shards), {}, output, EngineHere(), work=folder)
    assert output.committed() == set(range(shards))
    output.fs.rm_file(output.path("receipts/00003.json"))
    meeting = Meeting("/receipts/", together, patch)
    SlowStore.requests.clear()
    manifest = run_stage(Counting(), CountingParams(shards=shards), {}, output, EngineHere(), work=folder)
    assert manifest.shards == shards
    return SlowStore.requests.total(), meeting.most


def test_a_run_goes_on_at_the_rate_that_many_shards_need(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        few, _ = resumed(8, tmp_path, patch, together=1)
    with pytest.MonkeyPatch.context() as patch:
        many, at_once = resumed(208, tmp_path, patch, together=ENOUGH)
    assert (many - few) / 200 * DELAY_S / at_once < FIRST_TASK_S / FOR_SHARDS


def test_verify_reads_many_files_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slow_store.DELAY_S", 0.0)
    output = Artifact("slow://verified")
    run_stage(Counting(), CountingParams(shards=60), {}, output, EngineHere(), work=tmp_path)
    SlowStore.requests.clear()
    meeting = Meeting("/shards/", ENOUGH, monkeypatch)
    assert verify(output) == []
    assert SlowStore.requests.total() > 2 * 60
    assert meeting.most >= ENOUGH


def test_verify_by_an_engine_finds_what_this_process_finds(
    tmp_path: Path, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Artifact(tmp_path / "out")
    run_stage(Counting(), CountingParams(shards=7), {}, output, engine, work=tmp_path / "work")
    (tmp_path / "out/shards/00002.txt").write_text("9")
    (tmp_path / "out/shards/00004.txt").unlink()
    (tmp_path / "out/receipts/00006.json").write_text("{}")
    monkeypatch.setattr("megahour.core.verify.PART", 2)
    problems = verify(output)
    assert [name for problem in problems for name in ("00002.txt", "00004.txt", "00006.json") if name in problem] == [
        "00002.txt",
        "00004.txt",
        "00006.json",
    ]
    assert verify(output, engine) == problems
