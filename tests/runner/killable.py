"""A driver to be killed: two stages of many shards, in rounds until a file stops it.

Run as `python -c "import killable; killable.main('local', folder)"`; prints `ready` when its engine has started.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
from pydantic import Field

from megahour.core.config import Params
from megahour.core.stage import Batches, Context, Input, Inputs, Stage, Task
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.engine.base import Engine
from megahour.runner.runner import run_stage

PAUSE_S = 0.02


class MakeParams(Params):
    """Shards with a table, a binary file, and a quarantined record each."""

    shards: int = Field(14, ge=1, description="shards")


class Make(Stage[MakeParams]):
    name = "make"
    params = MakeParams

    def plan(self, p: MakeParams, inputs: Inputs) -> list[Task]:
        return [Task({"shard": shard}) for shard in range(p.shards)]

    def run(self, p: MakeParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        shard = task["shard"]
        out.came_in(101)
        time.sleep(PAUSE_S)
        out.table(pa.table({"n": range(100 * shard, 100 * shard + 100)}))
        time.sleep(PAUSE_S)
        with out.open(".bin") as file:
            file.write(bytes([shard]) * 1000)
            time.sleep(PAUSE_S)
            file.write(bytes([shard]) * 1000)
        out.kept(100)
        out.quarantine(f"bad-{shard}", "made-bad")


class RegroupParams(Params):
    """Numbers by their remainder."""

    partitions: int = Field(6, ge=1, description="partitions")


class Regroup(Stage[RegroupParams]):
    name = "regroup"
    params = RegroupParams
    inputs = (Input("numbers"),)
    exchange = True

    def partitions(self, p: RegroupParams, inputs: Inputs) -> int:
        return p.partitions

    def split(self, p: RegroupParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        numbers = inputs["numbers"].read_table(task["shard"])["n"].to_pylist()
        for partition in range(p.partitions):
            time.sleep(PAUSE_S / 4)
            yield partition, pa.record_batch({"n": [n for n in numbers if n % p.partitions == partition]})

    def merge(
        self, p: RegroupParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        table = pa.Table.from_batches(list(batches))
        time.sleep(2 * PAUSE_S)
        out.came_in(table.num_rows)
        out.table(table)
        out.kept(table.num_rows)


def import_all(_: int) -> None:
    """Found in this module: a worker that runs it has imported what the stages need."""
    time.sleep(PAUSE_S)


def run_round(engine: Engine, folder: Path) -> None:
    numbers, groups = Artifact(folder / "numbers"), Artifact(folder / "groups")
    run_stage(Make(), MakeParams(), {}, numbers, engine, work=folder.parent / "work")
    run_stage(Regroup(), RegroupParams(), {"numbers": numbers}, groups, engine, work=folder.parent / "work")


def main(engine_name: str, folder: str) -> None:
    """Rounds 0, 1, 2 … into `folder`, those that exist resumed, until `folder`/stop exists."""
    engine: Engine
    if engine_name == "local":
        from megahour.engine.local import LocalEngine

        engine = LocalEngine(workers=2)
    else:
        from megahour.engine.spark import SparkEngine

        engine = SparkEngine("local[2]", retries=100)
    with engine:
        list(engine.map(import_all, range(4)))
        print("ready", flush=True)
        for number in count():
            folder_of_round = Path(folder) / f"round-{number:02d}"
            if number and (Path(folder) / "stop").exists() and not folder_of_round.exists():
                return
            run_round(engine, folder_of_round)
