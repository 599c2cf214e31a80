"""The result of a training, passed from its workers to the stage: weights, curves, configuration, or an error."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from numpy.typing import NDArray
from torch import Tensor

from megahour.batches.loader import Loader
from megahour.core.errors import ConfigError, MegahourError, StageError
from megahour.learn.job import TrainingJob
from megahour.train.meters import Curves

FOLDER, WEIGHTS, CURVES, MODEL, ERROR = "result", "weights.safetensors", "curves.jsonl", "model.json", "error.json"
SPEECH = "speech.parquet"


@dataclass(frozen=True)
class Result:
    """Bytes of the weights, the curves, the model's configuration, and counts.

    utterances: number trained on. dropped: numbers left out, by reason. stats: for the model's summary.
    audio_s: seconds of audio in the schedule, counting every pass.
    """

    weights: bytes
    curves: Curves
    config: dict[str, Any]
    utterances: int
    dropped: dict[str, int]
    stats: dict[str, int]
    audio_s: float


def of(job: TrainingJob, curves: Curves, weights: dict[str, Tensor]) -> Result:
    """The result of a training that ended with these `weights` of the job's module."""
    return Result(
        safetensors.torch.save(weights),
        curves,
        job.config,
        distinct(job.loaders.values()),
        dict(sorted(job.dropped.items())),
        {"parameters": sum(p.numel() for p in job.module.parameters()), "outputs": job.outputs},
        job.audio_s,
    )


def distinct(loaders: Iterable[Loader]) -> int:
    """Number of utterances in at least one of the loaders: a set may have labels and targets."""
    rows: dict[int, NDArray[np.uint8]] = {}
    for shelf in (shelf for loader in loaders for shelf in loader.shelves):
        rows[shelf.shard] = rows.get(shelf.shard, np.uint8(0)) | shelf.bits
    return sum(int(np.unpackbits(bits).sum()) for bits in rows.values())


def write(work: Path, result: Result) -> None:
    """Write the result atomically, for the process that started the workers."""
    folder = work / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    _put(folder / CURVES, result.curves.jsonl().encode())
    if result.curves.speech:
        _put(folder / SPEECH, result.curves.speech)
    model = {name: value for name, value in vars(result).items() if name not in ("weights", "curves")}
    _put(folder / MODEL, json.dumps(model).encode())
    _put(folder / WEIGHTS, result.weights)


def write_error(work: Path, error: MegahourError) -> None:
    """Write an error that no restart can fix. Several workers may do so at a time, as all of them see a loss of NaN."""
    (work / FOLDER).mkdir(parents=True, exist_ok=True)
    fields = {"message": error.message, "where": error.where, "remedy": error.remedy}
    _put(work / FOLDER / ERROR, json.dumps({"config": isinstance(error, ConfigError), "error": fields}).encode())


def failed(work: Path) -> bool:
    """Whether a worker has written such an error."""
    return (work / FOLDER / ERROR).exists()


def ended(work: Path) -> bool:
    """Whether the workers have written a model or such an error, or `work` has been removed since."""
    return failed(work) or (work / FOLDER / WEIGHTS).exists() or not work.exists()


def clear(work: Path) -> None:
    """Remove an earlier run's result, before workers start."""
    for name in (WEIGHTS, CURVES, SPEECH, MODEL, ERROR):
        (work / FOLDER / name).unlink(missing_ok=True)


def read(work: Path) -> Result:
    """The workers' result. Raises their StageError or ConfigError, or StageError if they wrote nothing."""
    folder = work / FOLDER
    if failed(work):
        left = json.loads((folder / ERROR).read_text("utf-8"))
        raise (ConfigError if left["config"] else StageError)(**left["error"])
    if not (folder / WEIGHTS).exists():
        raise StageError(
            "the workers ended without a model", where="train", remedy=f"their output is in {work / 'workers'}"
        )
    rows = [json.loads(line) for line in (folder / CURVES).read_text("utf-8").splitlines()]
    model = json.loads((folder / MODEL).read_text("utf-8"))
    curves = Curves(rows)
    if (folder / SPEECH).exists():
        curves.speech = (folder / SPEECH).read_bytes()
    return Result((folder / WEIGHTS).read_bytes(), curves, **model)


def _put(path: Path, data: bytes) -> None:
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    scratch.write_bytes(data)
    scratch.replace(path)
