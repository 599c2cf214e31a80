"""Going back as in docs/runbooks.md: without its newest checkpoints a training resumes from an earlier one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from made_artifacts import utterances
from trainings import training_data, until

from megahour.learn.job import prepare
from megahour.learn.params import TrainParams
from megahour.sync.group.torch_group import TorchGroup
from megahour.train.loop import execute

P = TrainParams(
    hidden=8, layers=1, batch_frames=120, rows=4, threads=1, epochs=3, tensorboard=False, checkpoint_s=0.0
)  # fmt: skip


class Stopped(Exception):
    """Stands for a kill between two steps."""


def test_without_its_newest_checkpoint_a_training_resumes_from_the_previous_one(tmp_path: Path) -> None:
    data = training_data(tmp_path / "data", utterances(40, speakers=4), shards=1)
    checkpoints = tmp_path / "work" / "checkpoints"
    begun: list[float] = []

    def stop(done: float, total: float, unit: str, **shown: Any) -> None:
        if done >= total / 2:
            until(lambda: len(list(checkpoints.glob("*/checkpoint.json"))) > 1)
            raise Stopped

    def note(done: float, total: float, unit: str, **shown: Any) -> None:
        begun.append(done)

    undisturbed = execute(prepare(P, data), TorchGroup(), tmp_path / "other", lambda *done, **shown: None)
    with pytest.raises(Stopped):
        execute(prepare(P, data), TorchGroup(), tmp_path / "work", stop)
    *_, before, newest = sorted(path.parent for path in checkpoints.glob("*/checkpoint.json"))
    shutil.rmtree(newest)
    found = execute(prepare(P, data), TorchGroup(), tmp_path / "work", note)
    assert begun[0] == int(before.name) + 1 <= int(newest.name)
    assert found.weights == undisturbed.weights
    assert found.curves.rows == undisturbed.curves.rows
