"""Results of a training: sums, curves, the model or an error, and the audit of what was trained on."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors.torch
import torch
from made_artifacts import write_artifact

from megahour.core.errors import ConfigError, MegahourError, StageError
from megahour.core.receipts import Counts, Receipt
from megahour.learn.params import TrainParams
from megahour.learn.schedule import Phase
from megahour.learn.step_totals import MODULUS, Audit
from megahour.sync.group.base import Traffic
from megahour.train import result
from megahour.train.meters import Curves, Log, RunMeters, Sums, boards_of
from megahour.train.result import Result
from megahour.train.stage import Train
from megahour.train.workers import worker as repeats


def test_sums_are_means_over_their_weight() -> None:
    sums = Sums()
    assert (sums.mean_loss, sums.accuracy) == (0.0, 0.0)
    sums.add(6.0, 4, 1)
    sums.add(3.0, 2, 2)
    assert (sums.loss, sums.weight, sums.correct) == (9.0, 6, 3)
    assert (sums.mean_loss, sums.accuracy) == (1.5, 0.5)


def test_curves_are_rounded_lines_with_sorted_names() -> None:
    curves = Curves()
    assert curves.add(step=3, loss=0.12345678) == {"step": 3, "loss": 0.123457}
    assert curves.jsonl() == '{"loss": 0.123457, "step": 3}\n'
    assert Curves(curves.rows).rows == curves.rows


def test_the_log_knows_the_time_and_the_speed_that_curves_must_not(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.frames(100)
    log.frames(50)
    assert log.frames_per_s > 0
    log.row({"step": 1, "loss": 2.0})
    log.close()
    (row,) = [json.loads(line) for line in (tmp_path / "log" / "train.log.jsonl").read_text().splitlines()]
    assert (row["step"], row["loss"]) == (1, 2.0)
    assert row["unix_s"] > 1e9
    assert row["frames_per_s"] > 0


class Listed:
    """A board that records its rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[dict[str, float], int]] = []

    def add(self, row: dict[str, float], step: int) -> None:
        self.rows.append((row, step))

    def close(self) -> None: ...


def test_boards_get_the_numbers_of_a_row_and_their_step(tmp_path: Path) -> None:
    board = Listed()
    log = Log(tmp_path, [board])
    log.frames(10)
    log._started -= 100.0
    log.row({"step": 7, "loss": 2, "data": "labelled", "held_out_loss": None})
    log.close()
    ((row, step),) = board.rows
    assert step == 7
    assert set(row) == {"curve/step", "curve/loss", "curve/unix_s", "curve/frames_per_s"}
    assert row["curve/frames_per_s"] == 0.1


def test_a_board_that_is_not_there_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(error: Exception) -> Any:
        def make(*arguments: Any, **options: Any) -> Any:
            raise error

        return make

    assert boards_of(TrainParams(tensorboard=False), tmp_path, after=0) == []
    made = Listed()
    monkeypatch.setattr("megahour.train.meters.TensorBoard", failing(ImportError("no tensorboard")))
    monkeypatch.setattr("megahour.train.meters.MLflow", lambda experiment: made)
    with caplog.at_level("INFO"):
        assert boards_of(TrainParams(mlflow="m"), tmp_path, after=0) == [made]
    monkeypatch.setattr("megahour.train.meters.MLflow", failing(OSError("no server")))
    assert boards_of(TrainParams(mlflow="m", tensorboard=False), tmp_path, after=0) == []
    assert "no tensorboard" in caplog.text
    assert "rows of the training curve are not sent: no server" in caplog.text


@pytest.mark.parametrize(("rank", "names"), [(0, {"train.log.jsonl", "steps-00000.jsonl"}), (1, {"steps-00001.jsonl"})])
def test_worker_0_writes_the_log_and_the_boards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, names: set[str]
) -> None:
    board, shown = Listed(), list[Any]()
    monkeypatch.setattr("megahour.train.meters.boards_of", lambda p, work, after: [board])
    group: Any = SimpleNamespace(rank=rank, size=2, traffic=Traffic())
    meters = RunMeters(
        TrainParams(), group, tmp_path, lambda *place, **fields: shown.append((place, fields)), None, after=0
    )
    meters.step(1, 2, 9, Phase("labelled", 0, 0, 9, 0, 32), 60, 0.12345, {"learning_rate": 1e-3})
    meters.step(2, 4, 9, Phase("labelled", 0, 0, 9, 0, 32), 0, None, {"learning_rate": 1e-3})
    meters.row({"step": 2, "loss": 0.5})
    meters.close()
    assert shown == [((2, 9, "batches"), {"loss": 0.123}), ((4, 9, "batches"), {})]
    assert {path.name for path in (tmp_path / "meters").iterdir()} == names
    assert any("curve/loss" in row for row, _ in board.rows) == (rank == 0)


def test_the_stage_is_one_task_that_stays_with_the_driver(tmp_path: Path) -> None:
    stage, receipt = Train(), Receipt(0, "f", Counts(), {}, {"loss": 0.5, "audio_s": 7.0}, {})
    assert stage.local, "workers of a training are processes of its own"
    features = write_artifact(tmp_path, [({"set": "labelled"}, {})] * 2, {})
    assert [task["shard"] for task in stage.plan(TrainParams(), {"features": features})] == [0]
    assert list(stage.finish(TrainParams(), {}, [receipt]).items()) == [("audio_s", 7.0), ("loss", 0.5)]
    with pytest.raises(ConfigError, match="needs `units`"):
        stage.check(TrainParams(), ["features"])


def result_of(rows: list[dict[str, Any]]) -> Result:
    weights = safetensors.torch.save({"weight": torch.ones(3, 2)})
    return Result(weights, Curves(rows), {"kind": "lstm"}, 7, {"too-long": 2}, {"parameters": 6, "outputs": 3}, 12.5)


def test_a_result_is_read_back_and_cleared(tmp_path: Path) -> None:
    found = result_of([{"step": 1}])
    found.curves.speech = b"said"
    assert not result.ended(tmp_path)
    result.write(tmp_path, found)
    assert result.ended(tmp_path)
    assert not result.failed(tmp_path)
    again = result.read(tmp_path)
    assert again.curves.rows == [{"step": 1}]
    assert again.curves.speech == b"said"
    assert replace(again, curves=found.curves) == found
    names = {result.WEIGHTS, result.CURVES, result.SPEECH, result.MODEL}
    assert {path.name for path in (tmp_path / result.FOLDER).iterdir()} == names
    result.clear(tmp_path)
    result.clear(tmp_path)
    assert not list((tmp_path / result.FOLDER).iterdir())
    with pytest.raises(StageError, match="ended without a model"):
        result.read(tmp_path)
    assert result.ended(tmp_path / "gone")  # its folder was taken away: nobody waits for it any more


@pytest.mark.parametrize("kind", [StageError, ConfigError])
def test_an_error_of_the_workers_is_raised_as_they_put_it(tmp_path: Path, kind: type[MegahourError]) -> None:
    result.write(tmp_path, result_of([]))
    result.write_error(tmp_path, kind("the loss is NaN", where="step 7", remedy="lower the learning rate"))
    assert result.failed(tmp_path)
    assert result.ended(tmp_path)
    with pytest.raises(kind) as caught:
        result.read(tmp_path)
    assert str(caught.value) == "step 7: the loss is NaN\nRemedy: lower the learning rate"


def test_workers_may_write_their_errors_at_the_same_time(tmp_path: Path) -> None:
    """A loss of NaN is every worker's. One took the other's scratch file away, failed, and all were started again."""
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: result.write_error(tmp_path, StageError(f"of {n}")), range(200)))
    with pytest.raises(StageError, match=r"of \d+"):
        result.read(tmp_path)
    assert [path.name for path in (tmp_path / result.FOLDER).iterdir()] == [result.ERROR]


def test_the_third_start_that_ends_with_the_same_words_is_the_last(tmp_path: Path) -> None:
    counts, checkpoints = tmp_path / "count.json", tmp_path / "checkpoints"

    def ends(start: int, words: str = "boom") -> bool:
        return repeats.comes_again(ValueError(words), counts, start, checkpoints)

    assert [ends(1), ends(2), ends(3)] == [False, False, True]
    assert not ends(4, "another")
    assert [ends(5), ends(5), ends(5)] == [False, False, False]  # two workers of one start are one
    assert ends(6) is False
    checkpoints.mkdir()
    (checkpoints / "000010").touch()
    assert ends(7) is False  # a new checkpoint: the run has got on
    (checkpoints / "000002").touch()  # an older one is none
    assert [ends(8), ends(9)] == [False, True]
    counts.write_text("{")
    assert ends(10) is False


def test_only_checkpoints_show_that_a_run_gets_on(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()  # or the folder itself, which object stores may list
    for start in range(1, 5):
        (tmp_path / f"{start:010d}").touch()
        assert not repeats.comes_again(ValueError("boom"), tmp_path / "count.json", start, tmp_path)


def test_the_audit_does_not_depend_on_who_did_what() -> None:
    alone, ann, bob = Audit(), Audit(), Audit()
    keys = [MODULUS - 1, 5, 7, 7]
    alone.add(keys)
    ann.add(keys[:1])
    bob.add(keys[1:])
    assert alone == Audit(4, 18) == Audit.sum([ann.tensor(), bob.tensor()])
    assert Audit.sum([torch.tensor([1, MODULUS - 1]), torch.tensor([2, 3])]) == Audit(3, 2)
