"""Monitoring of a training: its alarm reports the error that ends it, its meters the checkpoints."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_artifacts import utterances
from trainings import page_me, trained, training_data, until

from megahour.core.errors import ConfigError, StageError
from megahour.learn.params import TrainParams
from megahour.monitor.alerts import Alarm
from megahour.train import loop
from megahour.train.loop import alarm_of

SMALL = {"hidden": 16, "layers": 1, "batch_frames": 120, "learning_rate": 1e-2, "final_learning_rate": 1e-3, "rows": 4}


def test_the_command_hears_of_the_error_that_ends_the_run(tmp_path: Path) -> None:
    """With one worker; for several see test_workers.py."""
    made = utterances(20, speakers=4)
    made[2]["features"][5, 1] = np.nan
    command, told = page_me(tmp_path)
    settings = SMALL | {"alarm": command, "held_out": 0.0}
    with pytest.raises(StageError, match="loss nan"):
        trained(tmp_path, training_data(tmp_path, made, 1), settings)
    until(lambda: told.exists() and "check its audio" in told.read_text())
    assert told.read_text().count("training ended") == 1
    assert re.search(r"loss nan at step .*features of utterance \d+ are not finite", told.read_text())


@pytest.mark.parametrize(("workers", "tells"), [(1, True), (2, False)])
def test_a_worker_reports_its_end_only_if_it_is_not_restarted(tmp_path: Path, workers: int, tells: bool) -> None:
    """With others, a worker ends whenever one of them is lost; the agent knows whether restarts are used up."""
    command, told = page_me(tmp_path)
    with pytest.raises(StageError), alarm_of(TrainParams(workers=workers, alarm=command), 0) as alarm:
        raise StageError("rank 1 does not answer")
    assert alarm is not None
    assert alarm.wait(120)
    assert told.exists() == tells


def test_chunks_and_whole_utterances_are_kinds_of_their_own_to_the_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[str] = []

    class Listening(Alarm):
        def step(self, step: int, loss: float | None, kind: str = "") -> None:
            kinds.append(kind)
            super().step(step, loss, kind)

    monkeypatch.setattr(loop, "Alarm", Listening)
    inputs = training_data(tmp_path, utterances(20, speakers=4), 1)
    trained(tmp_path, inputs, SMALL | {"epochs": 2, "whole_epochs": 1, "tensorboard": False})
    assert list(dict.fromkeys(kinds)) == ["labelled, in chunks", "labelled, whole utterances"]


def test_a_command_that_is_not_there_is_refused_before_the_first_step(tmp_path: Path) -> None:
    inputs = training_data(tmp_path, utterances(8), 1)
    with pytest.raises(ConfigError, match="pgae-me does not exist"):
        trained(tmp_path, inputs, SMALL | {"alarm": str(tmp_path / "pgae-me")})
    assert not (tmp_path / "work" / "meters" / "train.log.jsonl").exists()


def test_checkpoints_that_cannot_be_written_are_reported_once_and_the_model_is_not_lost(tmp_path: Path) -> None:
    command, told = page_me(tmp_path)
    inputs = training_data(tmp_path, utterances(20, speakers=4), 1)
    settings = SMALL | {"epochs": 4, "checkpoint_s": 0.0, "held_out": 0.0, "tensorboard": False}
    undisturbed = trained(tmp_path / "undisturbed", inputs, settings)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "checkpoints").touch()  # a file where the folder should be: nothing can be written below
    shown: list[dict[str, Any]] = []
    ended = trained(
        tmp_path, inputs, settings | {"alarm": command}, progress=lambda *place, **fields: shown.append(fields)
    )
    assert ended == undisturbed
    until(told.exists)
    assert told.read_text().count("not written") == 1
    assert "checkpoints_not_written" not in shown[0]
    assert shown[-1]["checkpoints_not_written"] > 1


def test_checkpoints_and_evaluations_have_columns_of_their_own(tmp_path: Path) -> None:
    inputs = training_data(tmp_path, utterances(40, speakers=4), 1)
    trained(tmp_path, inputs, SMALL | {"checkpoint_s": 0.0, "held_out": 0.25, "epochs": 4, "tensorboard": False})
    (row,) = [
        json.loads(line) for line in (tmp_path / "work" / "meters" / "steps-00000.jsonl").read_text().splitlines()
    ]
    assert row["checkpoint_s.p50"] > 0, "one after every step"
    assert row["evaluation_s.p99"] > row["evaluation_s.p50"] == 0, "four in the run"
    parts = ("data_s", "compute_s", "exposed_s", "checkpoint_s", "evaluation_s")
    assert row["step_s.mean"] == pytest.approx(sum(row[f"{part}.mean"] for part in parts), rel=1e-3)
