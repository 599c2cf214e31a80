"""Many shards in a store with a latency of 20 ms: a resumed run and `verify` send many requests at a time."""

from __future__ import annotations

import time
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


def seconds_to_the_first_task(shards: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    """Wall and CPU time of a run that resumes with one missing shard."""
    output = Artifact(f"slow://counting-{shards}")
    with monkeypatch.context() as patch:
        patch.setattr("slow_store.DELAY_S", 0.0)
        patch.setattr("megahour.runner.runner.close", stopped)
        with pytest.raises(Stopped):
            run_stage(Counting(), CountingParams(shards=shards), {}, output, EngineHere(), work=folder)
        assert output.committed() == set(range(shards))
        output.fs.rm_file(output.path("receipts/00003.json"))
    engine, started, cpu_s = EngineHere(), time.monotonic(), time.process_time()
    manifest = run_stage(Counting(), CountingParams(shards=shards), {}, output, engine, work=folder)
    assert manifest.shards == shards
    return engine.first_s - started, engine.first_cpu_s - cpu_s


def test_a_run_goes_on_at_the_rate_that_many_shards_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, *many = (seconds_to_the_first_task(shards, tmp_path, monkeypatch)[0] for shards in (8, 208, 209, 210))
    assert few > 2 * DELAY_S
    assert min(many) - few < 200 * FIRST_TASK_S / FOR_SHARDS, "two may meet a busy moment of the machine"


def test_verify_reads_many_files_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("slow_store.DELAY_S", 0.0)
        output = Artifact("slow://verified")
        run_stage(Counting(), CountingParams(shards=60), {}, output, EngineHere(), work=tmp_path)
    SlowStore.requests.clear()
    started = time.monotonic()
    assert verify(output) == []
    assert SlowStore.requests.total() > 2 * 60
    assert time.monotonic() - started < SlowStore.requests.total() * DELAY_S / 2


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
