"""Training curves: measurements by step, and separately the speed.

The curves are part of the *model* artifact and do not depend on the clock, so that equal runs give equal bytes; frames
per second go to a log in the work directory.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.learn.params import TrainParams
from megahour.learn.schedule import Phase
from megahour.monitor.alerts import Alarm
from megahour.monitor.lines import JsonLines
from megahour.monitor.meters import Board, Meter, MLflow, TensorBoard, add_row, cut
from megahour.sync.group.base import Group

LOG = logging.getLogger(__name__)
METERS = "meters"  # folder of rows in a training's work folder, which stays after the training


class Sums:
    """Running sums since the last row: loss, weight (frames, or symbols for CTC), correct frames, and utterances that
    sequence training could not learn from, since their labels have no path."""

    def __init__(self, loss: float = 0.0, weight: int = 0, correct: int = 0, without_path: int = 0) -> None:
        self.loss, self.weight, self.correct, self.without_path = loss, weight, correct, without_path

    def add(self, loss: float, weight: int, correct: int, without_path: int = 0) -> None:
        self.loss += loss
        self.weight += weight
        self.correct += correct
        self.without_path += without_path

    @property
    def mean_loss(self) -> float:
        return self.loss / max(1, self.weight)

    @property
    def accuracy(self) -> float:
        return self.correct / max(1, self.weight)


class Curves:
    """Rows of the training curve, one JSON object per line in the artifact.

    speech: what a voice said at the last row, as Parquet; b"" if it was not scored.
    """

    speech = b""

    def __init__(self, rows: list[dict[str, Any]] | None = None) -> None:
        self.rows = rows if rows is not None else []

    def add(self, **fields: Any) -> dict[str, Any]:
        row = {name: round(value, 6) if isinstance(value, float) else value for name, value in fields.items()}
        self.rows.append(row)
        return row

    def jsonl(self) -> str:
        return "".join(json.dumps(row, sort_keys=True) + "\n" for row in self.rows)


class Log:
    """Rows with the time, appended to `folder`/train.log.jsonl and to the boards (TensorBoard, MLflow).

    after: the step after which the run starts; later rows are moved away (`monitor.meters.cut`).
    """

    def __init__(self, folder: Path, boards: Sequence[Board] = (), *, after: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        cut(folder / "train.log.jsonl", after)
        self._file = JsonLines(folder / "train.log.jsonl")
        self._started = time.monotonic()
        self._frames = 0
        self._boards = boards

    def frames(self, n: int) -> None:
        self._frames += n

    @property
    def frames_per_s(self) -> float:
        return self._frames / max(1e-9, time.monotonic() - self._started)

    def row(self, row: dict[str, Any]) -> None:
        timed = {**row, "unix_s": round(time.time(), 1), "frames_per_s": round(self.frames_per_s, 1)}
        self._file.add(timed)
        numbers = {f"curve/{name}": float(v) for name, v in timed.items() if isinstance(v, int | float)}
        add_row(self._boards, numbers, row["step"])

    def close(self) -> None:
        self._file.close()


class RunMeters:
    """One worker's measurements, step by step; worker 0 also writes the log and the boards.

    after: the step after which the run starts. progress: called after each step.
    """

    def __init__(
        self,
        p: TrainParams,
        group: Group,
        work: Path,
        progress: Callable[..., None],
        alarm: Alarm | None,
        *,
        after: int,
    ) -> None:
        self._boards = boards = boards_of(p, work, after=after) if group.rank == 0 else []
        self._meter = Meter(work / METERS, group, boards=boards, alarm=alarm, after=after)
        self._log = Log(work / METERS, boards, after=after) if group.rank == 0 else None
        self._workers, self._progress = group.size, progress
        self.timed, self.aside, self.alive = self._meter.timed, self._meter.aside, self._meter.alive

    def step(
        self,
        step: int,
        done: int,
        total: int,
        phase: Phase,
        frames: int,
        loss: float | None,
        values: Mapping[str, float],
        unwritten: int = 0,
    ) -> None:
        """Record a step, after which `done` of `total` batches are done.

        loss: None: this worker had no batch. unwritten: checkpoints that could not be written since the last one.
        """
        kind = f"{phase.data}, {'in chunks' if phase.chunk else 'whole utterances'}"
        known = {} if loss is None else {"loss": loss}
        self._meter.step(step=step, kind=kind, frames=float(frames), **values, **known)
        if self._log is not None:
            self._log.frames(frames * self._workers)
        shown: dict[str, float] = {name: round(value, 3) for name, value in known.items()}
        shown |= {"checkpoints_not_written": unwritten} if unwritten else {}
        self._progress(done, total, "batches", **shown)

    def row(self, row: dict[str, Any]) -> None:
        """Record a row of the curves."""
        if self._log is not None:
            self._log.row(row)

    def sounds(self, sounds: Mapping[str, NDArray[np.float32]], rate_hz: int, step: int) -> None:
        """Send sounds (N,) by name to the boards."""
        for board in self._boards:
            try:
                for name, samples in sounds.items():
                    board.sound(name, samples, rate_hz, step)
            except OSError as error:
                LOG.warning("sounds of step %d are not shown: %s", step, error)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
        self._meter.close()


def boards_of(p: TrainParams, work: Path, *, after: int) -> list[Board]:
    """TensorBoard if it is installed, MLflow if it is configured. A board that fails is left out with a message."""
    wanted: list[Callable[[], Board]] = [partial(TensorBoard, work, after=after)] if p.tensorboard else []
    wanted += [partial(MLflow, p.mlflow)] if p.mlflow else []
    boards = []
    for make in wanted:
        try:
            boards.append(make())
        except ImportError as error:
            LOG.info("the curves are in %s only: %s", work, error)
        except OSError as error:
            LOG.error("rows of the training curve are not sent: %s", error)
    return boards
