"""A stage that waits after three shards for a file, so a test decides how long a run takes."""

from __future__ import annotations

import os
import time
from pathlib import Path

from toy_stages import Count, CountParams

from megahour.core.stage import Context, Inputs, Task
from megahour.core.writer import ShardWriter

OPEN = 3  # shards that do not wait


class Gated(Count):
    name = "toy-gated"

    def run(self, p: CountParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        while out.shard >= OPEN and not Path(os.environ["GATE"]).exists():
            time.sleep(0.02)
        super().run(p, inputs, task, out, ctx)


GATED = {"toy-gated": ("gated:Gated", "Numbers, a few a shard, when a file is there.")}
