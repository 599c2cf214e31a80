"""What a finished training leaves: the weights as safetensors, the curves, and what there is to say of the model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from megahour.core.errors import ConfigError, MegahourError, StageError
from megahour.train.job import TrainingJob
from megahour.train.meters import Curves

FOLDER, WEIGHTS, CURVES, MODEL, ERROR = "result", "weights.safetensors", "curves.jsonl", "model.json", "error.json"


@dataclass(frozen=True)
class Result:
    """Bytes of the weights, the curves, the model's configuration, and counts.

    utterances: those that were trained on. dropped: those that were not, by reason. stats: of the model's summary.
    audio_s: seconds of audio that the schedule went through, every pass counted.
    """

    weights: bytes
    curves: Curves
    config: dict[str, Any]
    utterances: int
    dropped: dict[str, int]
    stats: dict[str, int]
    audio_s: float


def of(job: TrainingJob, curves: Curves, weights: dict[str, Tensor]) -> Result:
    """The result of training that ended with these `weights` of the job's module."""
    return Result(
        safetensors.torch.save(weights),
        curves,
        job.config,
        sum(loader.utterances for loader in job.loaders.values()),
        dict(sorted(job.dropped.items())),
        {"parameters": sum(p.numel() for p in job.module.parameters()), "outputs": job.outputs},
        job.audio_s,
    )


def write(work: Path, found: Result) -> None:
    """Leaves it for the process that started the workers; whole or not at all."""
    folder = work / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    _put(folder / CURVES, found.curves.jsonl().encode())
    model = {name: value for name, value in vars(found).items() if name not in ("weights", "curves")}
    _put(folder / MODEL, json.dumps(model).encode())
    _put(folder / WEIGHTS, found.weights)


def write_error(work: Path, error: MegahourError) -> None:
    """An error that no restart can mend."""
    (work / FOLDER).mkdir(parents=True, exist_ok=True)
    told = {"message": error.message, "where": error.where, "remedy": error.remedy}
    _put(work / FOLDER / ERROR, json.dumps({"config": isinstance(error, ConfigError), "error": told}).encode())


def failed(work: Path) -> bool:
    """Whether a worker has left such an error."""
    return (work / FOLDER / ERROR).exists()


def ended(work: Path) -> bool:
    """Whether the workers have left a model or such an error, or `work` has gone since."""
    return failed(work) or (work / FOLDER / WEIGHTS).exists() or not work.exists()


def clear(work: Path) -> None:
    """Before workers start: nothing of an earlier run is taken for theirs."""
    for name in (WEIGHTS, CURVES, MODEL, ERROR):
        (work / FOLDER / name).unlink(missing_ok=True)


def read(work: Path) -> Result:
    """What the workers left. Raises StageError or ConfigError: their error, or that they left nothing."""
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
    return Result((folder / WEIGHTS).read_bytes(), Curves(rows), **model)


def _put(path: Path, data: bytes) -> None:
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_bytes(data)
    scratch.replace(path)
