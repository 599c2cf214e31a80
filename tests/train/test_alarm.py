"""What a training run tells who watches it: its alarm hears of the error that ends it, its meters of checkpoints."""

import json
from pathlib import Path

import numpy as np
import pytest
from made_artifacts import utterances
from trainings import trained, training_data, until

from megahour.core.errors import StageError

SMALL = {"hidden": 16, "layers": 1, "batch_frames": 120, "learning_rate": 1e-2, "final_learning_rate": 1e-3, "rows": 4}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_command_hears_of_the_error_that_ends_the_run_whoever_has_it(tmp_path: Path, workers: int) -> None:
    made = utterances(20, speakers=4)
    made[2]["features"][5, 1] = np.nan
    script, told = tmp_path / "page-me", tmp_path / "told"
    script.write_text(f'#!/bin/sh\necho "$1" >> {told}\n')
    script.chmod(0o755)
    settings = SMALL | {"alarm": str(script), "held_out": 0.0, "workers": workers}
    with pytest.raises(StageError, match="loss nan"):
        trained(tmp_path, training_data(tmp_path, made, 1), settings)
    until(lambda: told.exists() and "lower learning_rate" in told.read_text(), 20)
    assert "training ended after step" in told.read_text()
    assert "loss nan at step" in told.read_text()


def test_checkpoints_and_evaluations_have_columns_of_their_own(tmp_path: Path) -> None:
    inputs = training_data(tmp_path, utterances(40, speakers=4), 1)
    trained(tmp_path, inputs, SMALL | {"checkpoint_s": 0.0, "held_out": 0.25, "epochs": 4, "tensorboard": False})
    (row,) = [json.loads(line) for line in (tmp_path / "work" / "steps-00000.jsonl").read_text().splitlines()]
    assert row["checkpoint_s.p50"] > 0, "one after every step"
    assert row["evaluation_s.p99"] > row["evaluation_s.p50"] == 0, "four in the run"
    parts = ("data_s", "compute_s", "exposed_s", "checkpoint_s", "evaluation_s")
    assert row["step_s.mean"] == pytest.approx(sum(row[f"{part}.mean"] for part in parts), rel=1e-3)
