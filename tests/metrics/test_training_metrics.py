"""Metrics of a training, read from files that its workers always write."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from made_artifacts import utterances
from trainings import training_data

from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.learn.params import TrainParams
from megahour.metrics.names import METRICS
from megahour.metrics.training import CHECKPOINT, METERS, Training, last_row
from megahour.sync.checkpoint import MARK
from megahour.train import meters
from megahour.train.session import train

Values = dict[tuple[str, ...], float]


def scrape(source: Training) -> Values:
    return {(name, *(labels[label] for label in METRICS[name].labels)): value for name, value, labels in source()}


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Values, dict[str, Any]]:
    """Metrics of a training at its last step, and the row of worker 0's meters that they are from."""
    folder = tmp_path_factory.mktemp("training")
    inputs = training_data(folder, utterances(24), shards=1)
    settings = {"epochs": 120, "hidden": 8, "layers": 1, "checkpoint_s": 0.1, "tensorboard": False, "held_out": 0.2}
    source = Training(folder / "work", f"{folder}/work/checkpoints", 0.1)
    found: list[Values] = []

    def look(done: float, total: float, unit: str, **fields: Any) -> None:
        if done == total:
            ends_s = time.monotonic() + 240
            while ("megahour_training_checkpoint_timestamp_seconds",) not in (seen := scrape(source)):
                assert time.monotonic() < ends_s, seen
                time.sleep(0.05)
            found.append(seen)

    context = Context(work=folder / "work")
    context.progress = look
    with ShardWriter(Artifact(folder / "model"), 0, "made") as out:
        train(TrainParams(**settings), inputs, out, context)
    source.close()
    rows = map(json.loads, (folder / "work" / "meters" / "steps-00000.jsonl").read_text().splitlines())
    return found[-1], {row["step"]: row for row in rows}[found[-1]["megahour_training_step", "0"]]


def test_the_parts_and_quantiles_of_a_step_are_those_of_the_meters(scraped: tuple[Values, dict[str, Any]]) -> None:
    found, row = scraped
    for key, quantile in (("p50", "0.5"), ("p95", "0.95"), ("p99", "0.99")):
        assert found["megahour_training_step_seconds", "0", quantile] == row[f"step_s.{key}"]
        assert found["megahour_training_batch_load_seconds", "0", quantile] == row[f"data_s.{key}"]
    parts = ("data", "compute", "communication", "checkpoint", "evaluation")
    assert sum(found["megahour_training_part_seconds", "0", part] for part in parts) == pytest.approx(
        row["step_s.mean"], rel=0.01
    )
    assert found["megahour_training_loss", "train"] == row["loss.mean"]
    assert found["megahour_training_learning_rate",] == row["learning_rate.mean"]
    assert found["megahour_training_gradient_norm",] == row["gradient_norm.mean"]


def test_losses_of_the_curves_and_the_age_of_the_checkpoint(scraped: tuple[Values, dict[str, Any]]) -> None:
    found, _ = scraped
    assert found["megahour_training_loss", "held_out"] > 0
    assert found["megahour_training_frames_per_second",] > 0
    assert 0 <= time.time() - found["megahour_training_checkpoint_timestamp_seconds",] < 300
    assert found["megahour_training_checkpoint_interval_seconds",] == 0.1


def test_names_of_files_are_those_of_the_trainer() -> None:
    assert (METERS, CHECKPOINT) == (meters.METERS, MARK)


def test_error_rates_of_a_model_of_tokens(tmp_path: Path) -> None:
    row = {"step": 7, "held_out_loss": None, "held_out_wer": 0.25, "held_out_cer": 0.1, "frames_per_s": 5.0}
    (tmp_path / "train.log.jsonl").write_text(json.dumps(row) + "\n")
    assert scrape(Training(tmp_path)) == {
        ("megahour_training_error_rate", "wer"): 0.25,
        ("megahour_training_error_rate", "cer"): 0.1,
        ("megahour_training_frames_per_second",): 5.0,
    }


def test_the_last_scores_of_speech_stay_until_the_next(tmp_path: Path) -> None:
    rows = [{"held_out_mcd_db": 6.0, "held_out_pesq": 1.5, "held_out_mos": None}, {"held_out_mcd_db": 5.0}]
    (tmp_path / "train.log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert scrape(Training(tmp_path)) == {
        ("megahour_training_speech", "mcd_db"): 5.0,
        ("megahour_training_speech", "pesq"): 1.5,
    }


def test_each_worker_has_its_row_and_undone_steps_are_none(tmp_path: Path) -> None:
    for rank in (0, 11):
        (tmp_path / f"steps-{rank:05d}.jsonl").write_text(json.dumps({"step": rank + 1, "loss.mean": 2.0}) + "\n")
    (tmp_path / "steps-00000.undone.jsonl").write_text('{"step": 99}\n')
    assert scrape(Training(tmp_path)) == {
        ("megahour_training_step", "0"): 1,
        ("megahour_training_step", "11"): 12,
        ("megahour_training_loss", "train"): 2.0,
    }


@pytest.mark.parametrize(
    ("text", "step"),
    [("", None), ('{"step": 1}\n{"step": 2}\n', 2), ('{"step": 1}\n{"st', 1), ('{"step": 1}\nx\n', 1), ("[1]\n", None)],
)
def test_the_last_whole_row_counts(tmp_path: Path, text: str, step: int | None) -> None:
    path = tmp_path / "rows"
    path.write_text("x" * 100_000 + "\n" + text)
    assert last_row(path).get("step") == step
    assert last_row(tmp_path / "none") == {}


def test_a_checkpoint_that_is_not_whole_is_none(tmp_path: Path) -> None:
    for name, whole in (("0000000003", True), ("0000000007", False), ("5.aside", True)):
        (tmp_path / name).mkdir()
        if whole:
            (tmp_path / name / MARK).touch()
    source = Training(tmp_path, str(tmp_path))
    assert source._newest_checkpoint() == pytest.approx((tmp_path / "0000000003" / MARK).stat().st_mtime)
    assert Training(tmp_path, str(tmp_path / "none"))._newest_checkpoint() == 0.0
