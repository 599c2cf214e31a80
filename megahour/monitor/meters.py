"""Per-step meters of a worker: time for data, computing and communication; bytes, norms, rates.

    meter = Meter(folder, group, boards=[Board(folder)], alarm=Alarm(tell))
    for batch in meter.timed(loader):              # data_s: the wait for the next batch
        loss = …; loss.backward()
        worker.step()                              # exposed_s, hidden_s, bytes: from the group's traffic
        meter.step(loss=float(loss), learning_rate=rate, **worker.metrics)
        if …:
            with meter.aside("checkpoint_s"):      # not counted as computing or communication
                saver.save(…)

compute_s is the rest of a step. Every `every` steps, one row is written to `steps-<rank>.jsonl` and to the boards. It
has the mean, p50, p95 and p99 of each quantity since the previous row, or the sum if the quantity is bytes. A run that
resumes from a checkpoint passes its step as `after`; rows of steps that will be repeated are moved out of the file.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import ConfigError
from megahour.core.extras import install
from megahour.monitor.alerts import Alarm
from megahour.monitor.lines import JsonLines
from megahour.sync.group.base import Group, Traffic

LOG = logging.getLogger(__name__)
QUANTILES = {"p50": 50, "p95": 95, "p99": 99}
SUMMED = ("sent_bytes", "received_bytes")
Aside = Literal["checkpoint_s", "evaluation_s"]
T = TypeVar("T")


class Board(Protocol):
    """A destination of rows besides the file."""

    def add(self, row: dict[str, float], step: int) -> None:
        """Add a row. Raises OSError on failure; training continues without it."""

    def sound(self, name: str, samples: NDArray[np.float32], rate_hz: int, step: int) -> None:
        """Add audio samples (N,) in -1 … 1, if the board supports audio. Raises OSError on failure."""

    def close(self) -> None:
        """Close the board. Raises OSError if the last rows may be missing."""


class TensorBoard:
    """Writes rows as TensorBoard scalars in `folder`/tensorboard. Hides existing rows of steps later than `after`."""

    def __init__(self, folder: Path, *, after: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        purge_step = None if after is None else after + 1
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge_step)

    def add(self, row: dict[str, float], step: int) -> None:
        for name, value in row.items():
            self._writer.add_scalar(name.replace(".", "/"), value, step)

    def sound(self, name: str, samples: NDArray[np.float32], rate_hz: int, step: int) -> None:
        self._writer.add_audio(name, samples[None], step, rate_hz)

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """Sends rows as metrics of a new MLflow run (extra `mlflow`), to the server in MLflow's own settings.

    MLflow sends them in its own thread. Training waits only if the server is more than `MAX_PENDING` rows behind.

    Raises
    ------
    ConfigError: mlflow is not installed.
    OSError: the server refuses the run or rows, or does not answer.
    """

    MAX_PENDING = 100

    def __init__(self, experiment: str) -> None:
        try:
            import mlflow
        except ImportError:
            raise ConfigError("mlflow is not installed", remedy=install("mlflow")) from None
        self._mlflow = mlflow
        self._pending: deque[Any] = deque()
        with self._failures_as_oserror():
            mlflow.set_experiment(experiment)
            self._run = mlflow.start_run()

    def add(self, row: dict[str, float], step: int) -> None:
        with self._failures_as_oserror():
            # Not `log_metrics`: it reads the run's rows back, which may be half written.
            now_ms = time.time_ns() // 1_000_000
            metrics = [self._mlflow.entities.Metric(name, value, now_ms, step) for name, value in row.items()]
            client = self._mlflow.MlflowClient()
            self._pending.append(client.log_batch(self._run.info.run_id, metrics, synchronous=False))
            while len(self._pending) > self.MAX_PENDING:
                self._pending.popleft().wait()

    def sound(self, name: str, samples: NDArray[np.float32], rate_hz: int, step: int) -> None:
        """Ignored: MLflow gets no audio; use TensorBoard."""

    def close(self) -> None:
        with self._failures_as_oserror():
            try:
                while self._pending:
                    self._pending.popleft().wait()
                self._mlflow.flush_async_logging()  # without this, rows were seen half written after the waits
            finally:
                self._mlflow.end_run()

    @contextmanager
    def _failures_as_oserror(self) -> Iterator[None]:
        try:
            yield
        except self._mlflow.exceptions.MlflowException as error:
            raise OSError(f"MLflow at {self._mlflow.get_tracking_uri()}: {error}") from error


class Meter:
    """Measures one worker's steps. Rows omit the first step of a process, since it loads and compiles.

    Parameters
    ----------
    folder: holds `steps-<rank>.jsonl`, to which rows are appended.
    group: whose traffic is counted; None: no communication.
    every: steps per row.
    after: the last step before this run, 0 for a new one; None: existing rows are left alone. See `cut`.
    """

    def __init__(
        self,
        folder: Path,
        group: Group | None = None,
        *,
        every: int = 50,
        boards: Sequence[Board] = (),
        alarm: Alarm | None = None,
        after: int | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.every, self.boards, self.alarm = every, boards, alarm
        self._traffic = Traffic() if group is None else group.traffic
        rank = 0 if group is None else group.rank
        path = folder / f"steps-{rank:05d}.jsonl"
        cut(path, after)
        self._file = JsonLines(path)
        self._before, self._step_began_s = self._now(), time.perf_counter()
        self._data_s, self._steps = 0.0, 0
        self._aside: dict[Aside, float] = {"checkpoint_s": 0.0, "evaluation_s": 0.0}
        self._values: dict[str, list[float]] = {}

    def timed(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches, counting the wait for each as data_s of its step."""
        source = iter(batches)
        while True:
            began_s = time.perf_counter()
            try:
                batch = next(source)
            except StopIteration:
                return
            self._data_s += time.perf_counter() - began_s
            yield batch

    def alive(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches, e.g. of an evaluation, reporting each to the alarm so that a long step is not a stall."""
        for batch in batches:
            if self.alarm is not None:
                self.alarm.alive()
            yield batch

    @contextmanager
    def aside(self, column: Aside) -> Iterator[None]:
        """Count the block's time in `column` of the current step; exposed communication is still counted separately."""
        began_s, exposed_s = time.perf_counter(), self._traffic.exposed_s
        try:
            yield
        finally:
            self._aside[column] += time.perf_counter() - began_s - (self._traffic.exposed_s - exposed_s)

    def step(self, *, step: int | None = None, kind: str = "", **values: float) -> None:
        """End a step. `values`: loss, learning_rate, gradient_norm, density, …; `step`: its number, by default counted.

        The alarm compares losses of the same `kind`: name one for data whose losses have a different scale.
        """
        now_s, now = time.perf_counter(), self._now()
        spent = {name: now[name] - self._before[name] for name in now}
        whole_s = now_s - self._step_began_s
        compute_s = max(0.0, whole_s - self._data_s - spent["exposed_s"] - sum(self._aside.values()))
        first = self._steps == 0
        self._steps = self._steps + 1 if step is None else step
        if not first:
            row = {"step_s": whole_s, "data_s": self._data_s, "compute_s": compute_s, **self._aside, **spent}
            for name, value in (row | values).items():
                self._values.setdefault(name, []).append(float(value))
        self._before, self._step_began_s, self._data_s = now, now_s, 0.0
        self._aside = dict.fromkeys(self._aside, 0.0)
        if self.alarm is not None:
            self.alarm.step(self._steps, values.get("loss"), kind)
        if self._steps % self.every == 0:
            self.flush()

    def flush(self) -> None:
        """Write a row for the steps since the last one, if any."""
        if not self._values:
            return
        row: dict[str, float] = {}
        for name, values in self._values.items():
            if name in SUMMED:
                row[name] = sum(values)
                continue
            row[f"{name}.mean"] = float(np.mean(values))
            with np.errstate(invalid="ignore"):  # fp16 gradients overflow now and then: between infinities is NaN
                row.update({f"{name}.{q}": float(np.percentile(values, at)) for q, at in QUANTILES.items()})
        steps = max(len(values) for values in self._values.values())
        self._file.add({"step": self._steps, "steps": steps, **row})
        add_row(self.boards, row, self._steps)
        self._values.clear()

    def close(self) -> None:
        """Write the remaining steps, and close the boards and the alarm."""
        self.flush()
        self._file.close()
        for board in self.boards:
            try:
                board.close()
            except OSError as error:
                LOG.warning("the last rows may be missing in %s: %s", type(board).__name__, error)
        if self.alarm is not None:
            self.alarm.close()

    def _now(self) -> dict[str, float]:
        return {name: float(value) for name, value in vars(self._traffic).items()}


def cut(path: Path, after: int | None) -> None:
    """Prepare a file of rows for appending: it will end with a complete row of step `after` or earlier.

    The rest is moved to `<name>.undone.jsonl`: steps since the last checkpoint, which will be repeated but may show why
    the run failed, and a partial row left by a kill. If the disk is full, this is logged and the file stays as it is.
    """
    end = 0
    try:
        with path.open("rb+") as file:
            for line in file:
                if not line.endswith(b"\n") or (after is not None and _step(line) > after):
                    break
                end += len(line)
            file.seek(end)
            if undone := file.read():
                with path.with_suffix(".undone.jsonl").open("ab") as kept:
                    kept.write(undone if undone.endswith(b"\n") else undone + b"\n")
                file.truncate(end)
    except FileNotFoundError:
        return
    except OSError as error:
        LOG.warning("%s may have rows of the same steps twice: %s", path, error)


def _step(line: bytes) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return -1  # not one of our rows


def add_row(boards: Sequence[Board], row: dict[str, float], step: int) -> None:
    """Add the row to each board; a failing board is named in the log."""
    for board in boards:
        try:
            board.add(row, step)
        except OSError as error:  # full disk or lost server: plots must not stop training
            LOG.warning("a row is left out of %s: %s", type(board).__name__, error)
