"""What a stage is without its own code: a task a shard, no summary, and a clear word where a method is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from megahour.core.config import Params
from megahour.core.receipts import Counts, Manifest
from megahour.core.stage import Context, Input, Stage, Task
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter


class Nothing(Stage[Params]):
    name = "nothing"
    params = Params
    inputs = (Input("numbers"),)


def test_a_stage_has_a_task_for_each_shard_of_its_first_input(tmp_path: Path) -> None:
    artifact, receipts = Artifact(tmp_path), []
    for shard in range(3):
        with ShardWriter(artifact, shard, "f") as out:
            receipts.append(out.commit())
    finish(artifact, receipts, Manifest("made", 1, "f", content_digest(receipts, {}), {}, {}, 3, Counts(), {}))
    tasks = Nothing().plan(Params(), {"numbers": artifact})
    assert [task["shard"] for task in tasks] == [0, 1, 2]
    assert Nothing().finish(Params(), {}, receipts) == {}
    assert Nothing().accelerator(Params(), {}) is None


def test_a_method_that_a_stage_lacks_says_so(tmp_path: Path) -> None:
    stage, p, ctx = Nothing(), Params(), Context(tmp_path)
    ctx.progress(1, 2, "files", loss=0.5)  # nobody listens by default
    with ShardWriter(Artifact(tmp_path), 0, "f") as out:
        with pytest.raises(TypeError, match=r"nothing has no run\(\)"):
            stage.run(p, {}, Task({}), out, ctx)
        with pytest.raises(TypeError, match="nothing is not an exchange stage"):
            stage.merge(p, {}, 0, iter(()), out, ctx)
    with pytest.raises(TypeError, match="nothing is not an exchange stage"):
        stage.partitions(p, {})
    with pytest.raises(TypeError, match="nothing is not an exchange stage"):
        stage.split(p, {}, Task({}))
