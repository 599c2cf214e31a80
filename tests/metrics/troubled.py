"""A stage in trouble: its first worker dies, then it stalls and its model idles, until a file appears."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pyarrow as pa
from pydantic import Field

from megahour.core.config import Params
from megahour.core.stage import Context, Inputs, Stage, Task
from megahour.core.writer import ShardWriter
from megahour.serve.spec import ModelSpec

STAGES = {"troubled": ("troubled:Troubled", "Shards that wait.")}
LIMIT_S = 300.0


class TroubledParams(Params):
    """Shards that wait."""

    folder: str = Field(description="where the files `die` and `go` are waited for")


class Troubled(Stage[TroubledParams]):
    name = "troubled"
    params = TroubledParams

    def accelerator(self, p: TroubledParams, inputs: Inputs) -> ModelSpec:
        return ModelSpec("accelerator_models:sums", max_batch_frames=512)

    def plan(self, p: TroubledParams, inputs: Inputs) -> list[Task]:
        return [Task({"shard": shard}) for shard in range(2)]

    def run(self, p: TroubledParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        folder = Path(p.folder)
        if task["shard"] == 0 and not (folder / "died").exists():
            wait_for(folder / "die")
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        wait_for(folder / "go")
        out.came_in()
        out.kept()
        out.table(pa.table({"n": [task["shard"]]}))


def wait_for(path: Path) -> None:
    ends_s = time.monotonic() + LIMIT_S
    while not path.exists():
        if time.monotonic() > ends_s:
            raise TimeoutError(f"{path} did not come")
        time.sleep(0.02)
