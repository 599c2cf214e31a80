"""A run of several workers ends like a run of one, however often it is stopped and resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from gloo import run_workers
from made_artifacts import utterances
from trainings import Trained, seen, training_data, until

from megahour.core.errors import StageError
from megahour.core.store import Artifact
from megahour.learn.job import prepare
from megahour.learn.params import TrainParams
from megahour.learn.step import Gradients, Trainer
from megahour.sync.group.torch_group import TorchGroup
from megahour.train.loop import execute
from megahour.train.workers.worker import _new_store

SMALL: dict[str, Any] = {
    **{"hidden": 8, "layers": 1, "batch_frames": 120, "learning_rate": 1e-2, "final_learning_rate": 1e-3, "rows": 4},
    **{"threads": 1, "epochs": 3, "whole_epochs": 1, "tensorboard": False, "checkpoint_s": 0.0, "held_out": 0.2},
}
STILL = {"learning_rate": 1e-12, "final_learning_rate": 1e-12}  # the model stays what it is


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return training_data(tmp_path_factory.mktemp("data"), utterances(60, speakers=6), shards=2)


class Stopped(Exception):
    """Stands for a kill between two steps."""


def execute_here(
    work: str, urls: dict[str, str], values: dict[str, Any], stop_at: int, progress: Callable[..., None] | None = None
) -> Trained:
    """One worker's run; it is stopped once `stop_at` batches are done and a whole checkpoint is there."""

    def stop(done: int, total: int, unit: str, **shown: Any) -> None:
        if stop_at and done >= stop_at:
            until(lambda: list(Path(work).glob("checkpoints/*/checkpoint.json")))
            raise Stopped

    job = prepare(TrainParams(**{**SMALL, **values}), {role: Artifact(url) for role, url in urls.items()})
    group = TorchGroup()
    store = _new_store(group) if dist.is_initialized() else None
    found = execute(job, group, Path(work), progress or stop, store)
    return found.weights, found.curves.rows


def run(folder: Path, inputs: dict[str, Artifact], size: int, stop_at: int = 0, **values: Any) -> list[Any]:
    """What each of `size` workers returns or raises."""
    urls = {role: artifact.url for role, artifact in inputs.items()}
    return run_workers(execute_here, size, str(folder / "work"), urls, values, stop_at)


def test_a_run_that_is_stopped_goes_on_to_the_same_bytes(tmp_path: Path, data: dict[str, Artifact]) -> None:
    """The average of its weights, which begins before it is stopped, included."""
    undisturbed = run(tmp_path / "a", data, 2, average=0.9)
    assert undisturbed[0] == undisturbed[1], "all workers have the same model and the same curves"
    stopped = run(tmp_path / "b", data, 2, stop_at=12, average=0.9)
    assert [type(found) for found in stopped] == [Stopped, Stopped]
    assert run(tmp_path / "b", data, 2, average=0.9) == undisturbed


def test_other_workers_go_on_and_nothing_is_skipped_or_repeated(tmp_path: Path, data: dict[str, Artifact]) -> None:
    (alone,) = run(tmp_path / "alone", data, 1)
    for size, stop_at in ((2, 8), (3, 16)):
        assert {type(found) for found in run(tmp_path / "b", data, size, stop_at)} == {Stopped}
    (found,) = run(tmp_path / "b", data, 1)
    assert seen(found[1]) == seen(alone[1])
    assert len(found[1]) == 4, "rows of the earlier workers stay"


@pytest.mark.parametrize("size", [2, 3])
def test_losses_are_those_of_all_workers_together(tmp_path: Path, data: dict[str, Artifact], size: int) -> None:
    """Each batch is trained on by one of them, and each held-out batch is scored by one of them."""
    (alone,) = run(tmp_path / "alone", data, 1, rows=1, **STILL)
    together = run(tmp_path / "together", data, size, rows=1, **STILL)
    for _, rows in together:
        assert len(rows) == 1
        for figure in ("loss", "accuracy", "held_out_loss", "held_out_accuracy", "pieces", "keys"):
            assert rows[0][figure] == pytest.approx(alone[1][0][figure], rel=1e-4), figure


def test_who_does_not_wait_for_others_sees_its_own_part_until_the_end(
    tmp_path: Path, data: dict[str, Artifact]
) -> None:
    (alone,) = run(tmp_path / "alone", data, 1, rows=1, **STILL)
    first, second = run(tmp_path / "together", data, 2, trainer="gossip", **STILL)
    assert len(first[1]) > 1, "worker 0 draws the curve"
    assert len(second[1]) == 1, "and the others have the last point, which is of all"
    for rows in (first[1], second[1]):
        assert seen(rows) == seen(alone[1])
    assert {round(row["held_out_loss"], 3) for row in first[1]} == {round(alone[1][0]["held_out_loss"], 3)}


def test_each_step_is_shown_and_rows_are_even_in_batches(tmp_path: Path, data: dict[str, Artifact]) -> None:
    shown: list[tuple[int, int, str, dict[str, Any]]] = []
    urls = {role: artifact.url for role, artifact in data.items()}
    _, rows = execute_here(str(tmp_path), urls, {}, 0, lambda *place, **fields: shown.append((*place, fields)))
    total = shown[0][1]
    assert [place[:3] for place in shown] == [(done, total, "batches") for done in range(1, total + 1)]
    assert all(list(fields) == ["loss"] and fields["loss"] == round(fields["loss"], 3) for *_, fields in shown)
    assert [row["step"] for row in rows] == [-(-total * row // 4) for row in (1, 2, 3, 4)]
    assert max(path.name for path in (tmp_path / "checkpoints").iterdir()) == f"{total:010d}", "the end is saved too"
    assert rows[-1]["learning_rate"] == pytest.approx(1e-3, rel=1e-3)
    rates = [1e-2 * 0.1 ** ((row["step"] - 1) / total) for row in rows[:3]]
    assert [row["learning_rate"] for row in rows[:3]] == pytest.approx(rates, rel=1e-3), "of the step before each row"


def test_a_schedule_without_batches_is_refused(tmp_path: Path, data: dict[str, Artifact]) -> None:
    urls = {role: artifact.url for role, artifact in data.items()}
    with pytest.raises(StageError, match="the schedule has no batches"):
        execute_here(str(tmp_path), urls, {"epochs": 0, "whole_epochs": 0}, 0)


def test_fp16_gradients_that_are_never_finite_end_a_run(
    tmp_path: Path, data: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = Trainer.gradients

    def infinite(self: Trainer, *about: Any) -> Gradients:
        found = gradients(self, *about)
        found.values[0][0] = float("inf")
        return found

    monkeypatch.setattr(Trainer, "gradients", infinite)
    urls = {role: artifact.url for role, artifact in data.items()}
    with pytest.raises(StageError, match=r"(?s)at any scale of the loss.*precision: fp32"):
        execute_here(str(tmp_path), urls, {"precision": "fp16", "epochs": 9}, 0)
