"""A training whose output is on an object store keeps its checkpoints there: it outlives its machine's disks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest
from made_artifacts import utterances
from trainings import training_data

from megahour.core.store import SCRATCH, Artifact
from megahour.engine.local import LocalEngine
from megahour.learn.params import TrainParams
from megahour.runner.monitor import Monitor
from megahour.runner.runner import run_stage
from megahour.sync.checkpoint import set_aside
from megahour.train.stage import Train

PARAMS = TrainParams(
    **{"hidden": 8, "layers": 1, "batch_frames": 120, "learning_rate": 1e-2, "final_learning_rate": 1e-3, "rows": 4},
    **{"threads": 1, "epochs": 3, "whole_epochs": 1, "tensorboard": False, "checkpoint_s": 0.0, "device": "cpu"},
)


class Vanishes(BaseException):
    """Stands for a machine that is taken away."""


class Machine(Monitor):
    """Counts a training's steps; it vanishes once a checkpoint of `output` is whole, if it is to."""

    def __init__(self, output: Artifact, vanishes: bool) -> None:
        self.output, self.vanishes, self.steps = output, vanishes, 0

    def progress(self, done: float, total: float, unit: str, **fields: Any) -> None:
        self.steps += 1
        self.output.fs.invalidate_cache()
        if self.vanishes and done >= 10 and self.output.fs.glob(self.output.path(f"{SCRATCH}/*/*/checkpoint.json")):
            raise Vanishes


def test_another_machine_goes_on_when_the_first_is_gone_with_its_disks(tmp_path: Path, s3_url: str) -> None:
    inputs = training_data(tmp_path / "data", utterances(60, speakers=6), shards=2)

    def train(output: Artifact, name: str, vanishes: bool = False) -> int:
        machine = Machine(output, vanishes)
        with LocalEngine(workers=1) as engine:
            run_stage(Train(), PARAMS, inputs, output, engine, work=tmp_path / name, monitor=machine)
        return machine.steps

    whole, broken = Artifact(tmp_path / "whole"), Artifact(f"{s3_url}/durable/model")
    steps = train(whole, "undisturbed")
    with pytest.raises(Vanishes):
        train(broken, "first", vanishes=True)
    shutil.rmtree(tmp_path / "first")
    assert train(broken, "second") < steps, "it did not begin again"
    assert broken.manifest.digest == whole.manifest.digest
    assert not broken.fs.exists(broken.path(SCRATCH)), "checkpoints go when the model is there"


def test_what_a_kill_left_unfinished_on_an_object_store_is_set_aside(s3_url: str) -> None:
    fs, root = fsspec.core.url_to_fs(f"{s3_url}/unfinished/checkpoints")
    for step in (3, 7):
        fs.pipe_file(f"{root}/{step:010d}/rank-00000.json", b"{}")
    set_aside(f"{s3_url}/unfinished/checkpoints", 3)
    assert [path.removeprefix(root) for path in fs.find(root, refresh=True)] == [
        "/0000000003/rank-00000.json",
        "/0000000007.aside/rank-00000.json",
    ]
