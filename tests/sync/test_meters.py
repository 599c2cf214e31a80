"""Meters and the alarm: where time goes, in rows that one can plot, and a call when something is wrong."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from pathlib import Path

import pytest

from megahour.sync.alarm import Alarm, command_hook
from megahour.sync.group import Traffic
from megahour.sync.meters import Meter, MLflow, TensorBoard


class Loopback:
    """The traffic of a group, moved by hand."""

    rank, size = 3, 4

    def __init__(self) -> None:
        self.traffic = Traffic()


def rows(folder: Path, rank: int = 0) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / f"steps-{rank:05d}.jsonl").read_text().splitlines()]


def test_a_step_is_split_into_data_compute_and_exposed_communication(tmp_path: Path) -> None:
    group = Loopback()
    meter = Meter(tmp_path, group, every=5)  # type: ignore[arg-type]

    def slow_batches():
        for number in range(11):
            time.sleep(0.02)
            yield number

    for _ in meter.timed(slow_batches()):
        time.sleep(0.01)
        group.traffic.exposed_s += 0.004
        group.traffic.hidden_s += 0.5
        group.traffic.sent_bytes += 100
        meter.step(loss=1.0, density=0.25)
    meter.close()
    first, second, rest = rows(tmp_path, rank=3)
    assert (first["step"], second["step"], rest["step"]) == (5, 10, 11)
    assert (first["steps"], second["steps"]) == (4, 5), "the first step of all is left out"
    assert 0.02 <= second["data_s.p50"] < 0.2
    assert second["exposed_s.mean"] == pytest.approx(0.004)
    assert second["hidden_s.mean"] == pytest.approx(0.5)
    assert second["step_s.mean"] == pytest.approx(
        second["data_s.mean"] + second["compute_s.mean"] + second["exposed_s.mean"], rel=1e-3
    )
    assert second["sent_bytes"] == 500
    assert second["density.p99"] == 0.25


def test_percentiles_are_of_the_steps_of_the_row(tmp_path: Path) -> None:
    meter = Meter(tmp_path, every=101)
    for number in range(101):
        meter.step(loss=float(number))
    meter.close()
    (row,) = rows(tmp_path)
    assert row["loss.mean"] == pytest.approx(50.5)
    assert row["loss.p50"] == pytest.approx(50.5)
    assert row["loss.p95"] == pytest.approx(95.05)
    assert row["loss.p99"] == pytest.approx(99.01)


def test_rows_go_to_mlflow_and_a_server_that_is_gone_does_not_stop_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    mlflow.set_tracking_uri(f"file://{tmp_path}/runs")
    meter = Meter(tmp_path, every=2, boards=[MLflow("speech")])
    for number in range(5):
        meter.step(loss=float(number))
    meter.close()
    (found,) = mlflow.search_runs(experiment_names=["speech"], output_format="list")
    history = mlflow.MlflowClient().get_metric_history(found.info.run_id, "loss.mean")
    assert {point.step: point.value for point in history} == {2: 1.0, 4: 2.5, 5: 4.0}
    assert found.info.status == "FINISHED"

    meter = Meter(tmp_path, every=2, boards=[MLflow("speech")])
    mlflow.MlflowClient().delete_run(mlflow.active_run().info.run_id)
    for number in range(5):
        meter.step(loss=float(number))
    meter.close()
    assert "the last rows may be missing in MLflow" in caplog.text

    mlflow.set_tracking_uri("http://127.0.0.1:9")
    with pytest.raises(OSError, match=re.escape("MLflow at http://127.0.0.1:9")):
        MLflow("speech")


def test_rows_go_to_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    meter = Meter(tmp_path, every=2, boards=[TensorBoard(tmp_path)])
    for _ in range(4):
        meter.step(loss=2.0)
    meter.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss/p50")] == [(2, 2.0), (4, 2.0)]


def test_a_diverging_loss_is_told_once_until_it_is_over() -> None:
    told: list[str] = []
    alarm = Alarm(told.append)
    for step in range(20):
        alarm.step(step, 1.0 + step % 2 / 10)
    assert not told
    for loss in (9.0, 9.5, 1.0, float("nan")):
        step += 1
        alarm.step(step, loss)
    alarm.close()
    assert len(told) == 2
    assert "step 20: the loss is 9" in told[0]
    assert "nan" in told[1]


def test_a_stall_is_told_while_it_lasts() -> None:
    told, called = [], threading.Event()

    def tell(message: str) -> None:
        told.append(message)
        called.set()

    alarm = Alarm(tell, stall_s=0.2, stall_factor=5.0)
    for step in range(5):
        alarm.step(step, None)
        time.sleep(0.01)
    assert not told
    assert called.wait(5), "nothing was told"
    alarm.close()
    assert "after step 4" in told[0]


def test_a_hook_that_fails_does_not_stop_the_training(caplog: pytest.LogCaptureFixture) -> None:
    alarm = Alarm(command_hook(f"{sys.executable} -c 'raise SystemExit(3)'"))
    alarm.step(1, float("inf"))
    alarm.close()
    assert "the loss is inf" in caplog.text


def test_a_command_gets_the_message_as_one_argument(tmp_path: Path) -> None:
    script = tmp_path / "hook.py"
    script.write_text("import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])")
    command_hook(f"{sys.executable} {script} {tmp_path / 'told'}")("loss; $(date)")
    assert (tmp_path / "told").read_text() == "loss; $(date)"
