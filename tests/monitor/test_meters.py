"""Meters and the alarm: rows of step times to plot, and a call when something is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from trainings import until

from megahour.core.errors import ConfigError
from megahour.monitor.alerts import MAX_UNTOLD, Alarm, check_command, command_hook
from megahour.monitor.meters import Meter, MLflow, TensorBoard
from megahour.sync.group.base import Traffic


class Loopback:
    """The traffic of a group, moved by hand."""

    rank, size = 3, 4

    def __init__(self) -> None:
        self.traffic = Traffic()


def rows(folder: Path, rank: int = 0) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / f"steps-{rank:05d}.jsonl").read_text().splitlines()]


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Seconds that pass by the clock of the meter; a machine under load would sleep longer."""
    now_s = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now_s[0], time_ns=time.time_ns)
    monkeypatch.setattr("megahour.monitor.meters.time", clock)

    def pass_by(seconds: float) -> None:
        now_s[0] += seconds

    return pass_by


def test_a_step_is_split_into_data_compute_and_exposed_communication(
    tmp_path: Path, sleep: Callable[[float], None]
) -> None:
    group = Loopback()
    meter = Meter(tmp_path, group, every=5)  # type: ignore[arg-type]

    def slow_batches():
        for number in range(11):
            sleep(0.02)
            yield number

    for _ in meter.timed(slow_batches()):
        sleep(0.01)
        group.traffic.exposed_s += 0.004
        group.traffic.hidden_s += 0.5
        group.traffic.sent_bytes += 100
        meter.step(loss=1.0, density=0.25)
    meter.close()
    first, second, rest = rows(tmp_path, rank=3)
    assert (first["step"], second["step"], rest["step"]) == (5, 10, 11)
    assert (first["steps"], second["steps"]) == (4, 5), "the first step of all is left out"
    assert second["data_s.p50"] == pytest.approx(0.02)
    assert second["step_s.mean"] == pytest.approx(0.03)
    assert second["exposed_s.mean"] == pytest.approx(0.004)
    assert second["hidden_s.mean"] == pytest.approx(0.5)
    assert second["step_s.mean"] == pytest.approx(
        second["data_s.mean"] + second["compute_s.mean"] + second["exposed_s.mean"], rel=1e-3
    )
    assert second["sent_bytes"] == 500
    assert second["density.p99"] == 0.25


def test_checkpoints_and_evaluations_are_not_compute(tmp_path: Path, sleep: Callable[[float], None]) -> None:
    group = Loopback()
    meter = Meter(tmp_path, group, every=3)  # type: ignore[arg-type]
    for step in range(6):
        sleep(0.01)
        meter.step()
        with meter.aside("checkpoint_s"):
            sleep(0.1 if step == 3 else 0.0)
            group.traffic.exposed_s += 0.05 if step == 3 else 0.0  # waits for other workers are theirs
        with meter.aside("evaluation_s"):
            sleep(0.03 if step == 2 else 0.0)
    meter.close()
    _, second = rows(tmp_path, rank=3)
    assert second["checkpoint_s.mean"] * 3 == pytest.approx(0.05)
    assert second["exposed_s.mean"] * 3 == pytest.approx(0.05)
    assert second["evaluation_s.mean"] * 3 == pytest.approx(0.03)
    parts = ("data_s", "compute_s", "exposed_s", "checkpoint_s", "evaluation_s")
    assert second["step_s.mean"] == pytest.approx(sum(second[f"{part}.mean"] for part in parts), rel=1e-3)
    assert second["compute_s.p99"] == pytest.approx(0.01), (
        "no step computes longer because a checkpoint was written before it"
    )


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


@pytest.mark.filterwarnings("error")
def test_overflows_in_half_precision_bring_no_warnings(tmp_path: Path) -> None:
    meter = Meter(tmp_path, every=3)
    for value in (1.0, np.inf, np.inf):
        meter.step(gradient=value)
    meter.close()
    assert rows(tmp_path)[0]["gradient.mean"] == np.inf


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

    second = int(time.time())
    while int(time.time()) == second:
        time.sleep(0.05)  # files are read by name: of one second, the tenth of a process comes before its ninth
    again = Meter(tmp_path, every=2, boards=[TensorBoard(tmp_path, after=3)])
    for step in (4, 5, 6):
        again.step(step=step, loss=1.0)
    again.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss/p50")] == [(2, 2.0), (6, 1.0)]


def test_the_alarm_compares_losses_of_the_same_kind(tmp_path: Path) -> None:
    told: list[str] = []
    alarm = Alarm(told.append)
    meter = Meter(tmp_path, alarm=alarm)
    for _ in range(3):
        for kind, loss in (("soft", 0.1), ("hard", 1.0)):
            for _ in range(15):
                meter.step(kind=kind, loss=loss)
    assert alarm.wait(60)
    assert not told
    for _ in range(10):
        meter.step(kind="soft", loss=1.0)
    meter.close()
    assert alarm.wait(60)
    assert len(told) == 1
    assert told[0].startswith("step 96 (soft): the loss diverges: 1 ")


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time by the alarm's clock; it looks at it all the time."""
    now_s = [0.0]
    monkeypatch.setattr("megahour.monitor.alerts.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    return now_s


def test_an_evaluation_that_gets_on_is_no_stall(tmp_path: Path, now_s: list[float]) -> None:
    told: list[str] = []
    meter = Meter(tmp_path, alarm=Alarm(told.append, stall_s=0.2, stall_factor=0.0))
    meter.step(loss=1.0)
    for _ in meter.alive(range(12)):
        now_s[0] += 0.15
        time.sleep(0.1)
    assert not told
    now_s[0] += 0.25
    until(lambda: told)  # what comes behind takes too long
    meter.close()


def test_a_stall_is_told_while_it_lasts(now_s: list[float]) -> None:
    told: list[str] = []
    alarm = Alarm(told.append, stall_s=0.2, stall_factor=5.0)
    for step in range(5):
        now_s[0] += 0.1
        alarm.step(step, None)
    now_s[0] += 0.45
    time.sleep(0.2)
    assert not told, "five times the usual 0.1 s are not over"
    now_s[0] += 0.1
    until(lambda: told)
    alarm.close()
    assert "after step 4" in told[0]


def test_a_hook_that_fails_does_not_stop_the_training(caplog: pytest.LogCaptureFixture) -> None:
    alarm = Alarm(command_hook(f"{sys.executable} -c 'raise SystemExit(3)'"))
    alarm.step(1, float("inf"))
    alarm.close()
    assert alarm.wait()
    assert "the loss is inf" in caplog.text


def test_training_does_not_wait_for_a_slow_hook_and_later_messages_are_told(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    never = threading.Event()

    def hangs_once(message: str) -> None:
        told.append(message)
        if len(told) == 1:
            never.wait()

    alarm = Alarm(hangs_once, hook_timeout_s=1.0)
    alarm.call("first")
    alarm.call("second")
    assert alarm.wait(240)
    alarm.close()
    assert told == ["first", "second"]
    assert "has not returned after 1 s; message: first" in caplog.text
    never.set()


def test_messages_do_not_pile_up_behind_a_slow_hook(caplog: pytest.LogCaptureFixture) -> None:
    go_on, told = threading.Event(), []

    def tell(message: str) -> None:
        go_on.wait()
        told.append(message)

    alarm = Alarm(tell)
    for number in range(MAX_UNTOLD + 2):
        alarm.call(f"trouble {number}")
    assert not alarm.wait(0), "the calls returned before the hook ended"
    go_on.set()
    assert alarm.wait(60)
    alarm.close()
    assert told == [f"trouble {number}" for number in range(MAX_UNTOLD)]
    assert f"too slow; message not delivered: trouble {MAX_UNTOLD + 1}" in caplog.text


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "hook.py"
    script.write_text(f"import time, pathlib; time.sleep(240); pathlib.Path({str(tmp_path / 'told')!r}).touch()")
    began_s = time.monotonic()
    with pytest.raises(TimeoutError, match="was killed after"):
        command_hook(f"{sys.executable} {script}", timeout_s=0.2)("trouble")
    assert time.monotonic() - began_s < 200
    assert not (tmp_path / "told").exists()


def test_what_a_failing_command_was_given_is_not_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    alarm = Alarm(command_hook(f"{sys.executable} -c 'raise SystemExit(3)' --token hunter2"))
    alarm.call("trouble")
    assert alarm.wait()
    alarm.close()
    assert "failed with exit code 3" in caplog.text
    assert "trouble" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_command_that_could_not_be_run_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "page-me"
    script.touch(mode=0o644)
    for command, message in (
        (str(script), "not executable"),
        (f"{tmp_path}/pgae-me now", "pgae-me does not exist"),
        ("mail 'me", "No closing quotation"),
        ("  ", "is empty"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_command(command)
    script.chmod(0o755)
    check_command(f"{script} now")


def test_rows_of_steps_that_are_done_again_leave_the_file(tmp_path: Path) -> None:
    """A worker that was killed at step 9 goes on from the checkpoint after step 5."""
    killed = Meter(tmp_path, every=2, after=0)
    for _ in range(9):
        killed.step(loss=1.0)
    killed.close()
    with (tmp_path / "steps-00000.jsonl").open("a") as file:
        file.write('{"step": 10, "lo')
    again = Meter(tmp_path, every=2, after=5)
    for step in range(6, 11):
        again.step(step=step, loss=2.0)
    again.close()
    assert [row["step"] for row in rows(tmp_path)] == [2, 4, 8, 10]
    assert [row["loss.mean"] for row in rows(tmp_path)] == [1.0, 1.0, 2.0, 2.0]
    *undone, half = (tmp_path / "steps-00000.undone.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in undone] == [6, 8, 9]
    assert half == '{"step": 10, "lo'


def test_half_a_row_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    """A script that gives no resume position keeps all complete rows."""
    path = tmp_path / "steps-00000.jsonl"
    path.write_text('{"step": 7}\n{"st')
    meter = Meter(tmp_path, every=1)
    for _ in range(2):
        meter.step(loss=1.0)
    meter.close()
    assert [row["step"] for row in rows(tmp_path)] == [7, 2]


def test_rows_that_cannot_be_moved_stay_and_the_meter_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "steps-00000.jsonl").write_text('{"step": 7}\n')
    (tmp_path / "steps-00000.undone.jsonl").mkdir()
    meter = Meter(tmp_path, every=1, after=3)
    for step in (4, 5):
        meter.step(step=step)
    meter.close()
    assert [row["step"] for row in rows(tmp_path)] == [7, 5]
    assert "rows of the same steps twice" in caplog.text


def test_an_error_that_ends_the_training_is_told_and_an_interrupt_is_not() -> None:
    told: list[str] = []

    def train(error: BaseException) -> None:
        with Alarm(told.append) as alarm:
            alarm.step(7, 1.0)
            raise error

    for error in (ValueError("no such set"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            train(error)
    until(lambda: told)
    assert told == ["training ended after step 7: ValueError: no such set"]


ENDS = """
import pathlib, sys, time
from megahour.monitor.alerts import Alarm

def tell(message):
    time.sleep(0.5)
    pathlib.Path(sys.argv[1]).write_text(message)

with Alarm(tell):
    raise RuntimeError("the end")
"""


def test_a_process_that_ends_waits_for_its_last_message(tmp_path: Path) -> None:
    found = subprocess.run([sys.executable, "-c", ENDS, str(tmp_path / "told")], capture_output=True, text=True)
    assert "RuntimeError: the end" in found.stderr
    assert (tmp_path / "told").read_text() == "training ended after step 0: RuntimeError: the end"


def test_a_command_gets_the_message_as_one_argument(tmp_path: Path) -> None:
    script = tmp_path / "hook.py"
    script.write_text("import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])")
    command_hook(f"{sys.executable} {script} {tmp_path / 'told'}")("loss; $(date)")
    assert (tmp_path / "told").read_text() == "loss; $(date)"
