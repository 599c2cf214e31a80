"""Metrics of a training run, read from files that its workers write anyway; they cost the workers nothing.

The folder is the training's work folder, or that of your own loop with a `megahour.monitor.meters.Meter`:

    with serving(9464, {"training": Training(folder)}):
        …
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec

from megahour.metrics.background import Fetched
from megahour.metrics.names import MetricSample

METERS = "meters"  # in a training's work folder
CHECKPOINT = "checkpoint.json"  # the last file written for a checkpoint
LAST_BYTES = 1 << 16  # read from the end of a file; longer than any row
QUANTILES = {"p50": "0.5", "p95": "0.95", "p99": "0.99"}
PARTS = {
    "data_s": "data",
    "compute_s": "compute",
    "exposed_s": "communication",
    "checkpoint_s": "checkpoint",
    "evaluation_s": "evaluation",
}
SPEECH = ("mcd_db", "pitch_cents", "voicing", "pesq", "stoi", "mos", "words_misheard")
OF_ALL = {
    "learning_rate.mean": "megahour_training_learning_rate",
    "gradient_norm.mean": "megahour_training_gradient_norm",
}


class Training:
    """The last row of each worker, the last row of the curves, and the age of the newest checkpoint.

    Parameters
    ----------
    work: the work folder, with the rows in its subfolder `meters`; or a folder that has them itself.
    checkpoints: path or URL of the folder of checkpoints; "" for none.
    interval_s: expected seconds between checkpoints; 0: unknown.
    """

    def __init__(self, work: str | Path, checkpoints: str = "", interval_s: float = 0.0) -> None:
        self._work, self._checkpoints, self._interval_s = Path(work), checkpoints, interval_s
        self._newest = Fetched(self._newest_checkpoint)

    def __call__(self) -> Iterator[MetricSample]:
        meters = self._work / METERS
        folder = meters if meters.is_dir() else self._work
        for path in sorted(folder.glob("steps-?????.jsonl")):
            if row := last_row(path):
                yield from _of_worker(str(int(path.stem.removeprefix("steps-"))), row)
        rows = list(rows_backwards(folder / "train.log.jsonl"))
        if rows:
            yield from _of_curves(rows[0])
        for measure in SPEECH:  # not every row has all of them
            values = (row.get(f"held_out_{measure}") for row in rows)
            if (value := next((each for each in values if each is not None), None)) is not None:
                yield MetricSample("megahour_training_speech", value, {"measure": measure})
        if self._checkpoints:
            yield from self._of_checkpoints()

    def close(self) -> None:
        self._newest.close()

    def _of_checkpoints(self) -> Iterator[MetricSample]:
        self._newest.look()
        if self._newest.value:
            yield MetricSample("megahour_training_checkpoint_timestamp_seconds", self._newest.value)
        if self._interval_s:
            yield MetricSample("megahour_training_checkpoint_interval_seconds", self._interval_s)

    def _newest_checkpoint(self) -> float:
        """Unix time at which the newest checkpoint was finished; 0.0 if there is none."""
        fs, root = fsspec.core.url_to_fs(self._checkpoints)
        fs.invalidate_cache()
        if not fs.exists(root):
            return 0.0
        names = [path.rstrip("/").rpartition("/")[2] for path in fs.ls(root, detail=False)]
        marks = [f"{root}/{name}/{CHECKPOINT}" for name in sorted(names, reverse=True) if name.isdecimal()]
        return next((float(fs.modified(mark).timestamp()) for mark in marks if fs.exists(mark)), 0.0)


def last_row(path: Path) -> dict[str, Any]:
    """The last complete row of a file of JSON lines; {} if there is none."""
    return next(rows_backwards(path), {})


def rows_backwards(path: Path) -> Iterator[dict[str, Any]]:
    """The complete rows among the last `LAST_BYTES` of a file of JSON lines, the last one first."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LAST_BYTES))
            lines = file.read().split(b"\n")[:-1]  # after the last newline: nothing, or an incomplete row
    except OSError:
        return
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def _of_worker(rank: str, row: Mapping[str, Any]) -> Iterator[MetricSample]:
    yield MetricSample("megahour_training_step", row["step"], {"rank": rank})
    for column, name in (("step_s", "step"), ("data_s", "batch_load")):
        for key, quantile in QUANTILES.items():
            if f"{column}.{key}" in row:
                labels = {"rank": rank, "quantile": quantile}
                yield MetricSample(f"megahour_training_{name}_seconds", row[f"{column}.{key}"], labels)
    for column, part in PARTS.items():
        if f"{column}.mean" in row:
            yield MetricSample("megahour_training_part_seconds", row[f"{column}.mean"], {"rank": rank, "part": part})
    if rank == "0":
        for column, name in OF_ALL.items():
            if column in row:
                yield MetricSample(name, row[column])
        if "loss.mean" in row:
            yield MetricSample("megahour_training_loss", row["loss.mean"], {"part": "train"})


def _of_curves(row: Mapping[str, Any]) -> Iterator[MetricSample]:
    if row.get("held_out_loss") is not None:
        yield MetricSample("megahour_training_loss", row["held_out_loss"], {"part": "held_out"})
    for kind in ("wer", "cer", "per"):
        if row.get(f"held_out_{kind}") is not None:
            yield MetricSample("megahour_training_error_rate", row[f"held_out_{kind}"], {"kind": kind})
    if "frames_per_s" in row:
        yield MetricSample("megahour_training_frames_per_second", row["frames_per_s"])
