"""Small real stages for tests of the runner, the recipe and the command line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import Field

from megahour.core.config import Params
from megahour.core.errors import BadRecord, StageError
from megahour.core.receipts import Receipt
from megahour.core.stage import Batches, Context, Input, Inputs, Stage, Task
from megahour.core.writer import ShardWriter


def note(what: str) -> None:
    """Add a line to the file TOY_LOG, so that a test can count what ran in all processes."""
    if log := os.environ.get("TOY_LOG"):
        with Path(log).open("a") as file:
            file.write(f"{what}\n")


class CountParams(Params):
    """Numbers, a few per shard."""

    shards: int = Field(4, ge=1, description="shards to make")
    rows: int = Field(5, ge=1, description="rows in a shard")
    bad_every: int = Field(0, ge=0, description="every how many-th number is bad; 0 = none")
    seed: int = Field(0, description="first number")
    kind: str = Field("plain", description="a word that is copied")
    threads: int = Field(1, description="a number that is only kept")
    weights: list[float] = Field([1.0, 2.0], description="a list")


class Count(Stage[CountParams]):
    name = "toy-count"
    params = CountParams

    def plan(self, p: CountParams, inputs: Inputs) -> list[Task]:
        return [Task({"first": p.seed + shard * p.rows}) for shard in range(p.shards)]

    def run(self, p: CountParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        note(f"count {out.shard}")
        numbers = []
        for number in range(task["first"], task["first"] + p.rows):
            out.came_in()
            try:
                if p.bad_every and number % p.bad_every == 0:
                    raise BadRecord("bad-number", f"{number} is a multiple of {p.bad_every}", record=str(number))
                numbers.append(number + int(os.environ.get("TOY_TWIST", "0")))
                out.kept()
            except BadRecord as bad:
                out.quarantine(bad.record, bad.reason, bad.detail)
        out.table(pa.table({"number": pa.array(numbers, pa.int64())}))
        out.stat("audio_s", 3600.0 + float(os.environ.get("TOY_STAT", "0")))


class ParityParams(Params):
    """Numbers regrouped by their remainder."""

    modulus: int = Field(3, ge=1, description="partitions")


class Parity(Stage[ParityParams]):
    name = "toy-parity"
    params = ParityParams
    inputs = (Input("numbers"), Input("extra", optional=True))
    exchange = True

    def partitions(self, p: ParityParams, inputs: Inputs) -> int:
        return p.modulus

    def split(self, p: ParityParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        numbers = inputs["numbers"].read_table(task["shard"])["number"].to_pylist()
        for number in numbers:
            yield number % p.modulus, pa.record_batch({"number": pa.array([number], pa.int64())})

    def merge(
        self, p: ParityParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        note(f"merge {partition}")
        twist = int(os.environ.get("TOY_TWIST", "0"))  # stands for a change of the code
        numbers = [n + twist for batch in batches for n in batch["number"].to_pylist()]
        out.came_in(len(numbers))
        out.kept(len(numbers))
        out.stat("total", sum(numbers))
        out.table(pa.table({"number": pa.array(numbers, pa.int64())}))

    def finish(self, p: ParityParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        return {"total": sum(receipt.stats["total"] for receipt in receipts)}


class MeetParams(Params):
    """Waits for others, as a training does that takes long."""

    name: str = Field("first", description="its name in `place`")
    place: str = Field("", description="folder where a file of each shows that it runs")
    others: int = Field(1, description="how many others it waits for")
    ends: str = Field("well", description="well, in an error, in a bug or never")


class Meet(Stage[MeetParams]):
    name = "toy-meet"
    params = MeetParams
    inputs = (Input("numbers", optional=True),)
    local = True

    def plan(self, p: MeetParams, inputs: Inputs) -> list[Task]:
        return [Task({"shard": shard}) for shard in range(2)]

    def run(self, p: MeetParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        if task["shard"] == 1:
            (Path(p.place) / f"{p.name}.{os.getpid()}").touch()
            self._wait_for(lambda: len(list(Path(p.place).iterdir())) > p.others)
            if p.ends == "in an error":
                raise StageError("the remedy is known", remedy="try another")
            if p.ends == "in a bug":
                raise ZeroDivisionError("seven by nothing")
            self._wait_for(lambda: p.ends == "well")
        out.came_in()
        out.kept()
        out.table(pa.table({"number": pa.array([len(p.name)], pa.int64())}))

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, "the other step did not start"
            time.sleep(0.01)


class MeetInPool(Meet):
    name = "toy-meet-in-pool"
    local = False


class MeetByModel(Meet):
    name = "toy-meet-by-model"

    def accelerator(self, p: MeetParams, inputs: Inputs) -> None:
        """As a stage has it that needs a model with some inputs, and not with these."""


TOY_STAGES = {
    "toy-count": ("toy_stages:Count", "Numbers, a few a shard."),
    "toy-meet": ("toy_stages:Meet", "Waits for others."),
    "toy-meet-in-pool": ("toy_stages:MeetInPool", "The same in a worker of the engine."),
    "toy-meet-by-model": ("toy_stages:MeetByModel", "The same with a model."),
    "toy-parity": ("toy_stages:Parity", "Numbers regrouped by their remainder."),
}

RECIPE = """
run: {run}
seed: 10
engine: {{workers: 1}}
vars: {{word: plain}}
steps:
  grouped:
    stage: toy-parity
    inputs: {{numbers: numbers}}
  numbers:
    stage: toy-count
    shards: 3
    kind: ${{word}}
"""


def write_recipe(folder: Path, text: str = RECIPE) -> Path:
    path = folder / "toy.yaml"
    path.write_text(text.format(run=folder / "run"), "utf-8")
    return path
