"""What a finished training leaves: the weights as safetensors, and the curves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
from torch import nn

from megahour.core.errors import StageError
from megahour.train.meters import Curves

FOLDER, WEIGHTS, CURVES, ERROR = "result", "weights.safetensors", "curves.jsonl", "error.json"


@dataclass(frozen=True)
class Result:
    """Bytes of the weights, and the curves."""

    weights: bytes
    curves: Curves


def of(module: nn.Module, curves: Curves) -> Result:
    """The result of training that ended with this module."""
    state = {name: tensor.contiguous() for name, tensor in module.state_dict().items()}
    return Result(safetensors.torch.save(state), curves)


def write(work: Path, found: Result) -> None:
    """Leaves it for the process that started the workers; whole or not at all."""
    folder = work / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    _put(folder / CURVES, found.curves.jsonl().encode())
    _put(folder / WEIGHTS, found.weights)


def write_error(work: Path, message: str, where: str, remedy: str) -> None:
    """An error that no restart can mend."""
    (work / FOLDER).mkdir(parents=True, exist_ok=True)
    _put(work / FOLDER / ERROR, json.dumps({"message": message, "where": where, "remedy": remedy}).encode())


def failed(work: Path) -> bool:
    """Whether a worker has left such an error."""
    return (work / FOLDER / ERROR).exists()


def ended(work: Path) -> bool:
    """Whether the workers have left a model or such an error, or `work` has gone since."""
    return failed(work) or (work / FOLDER / WEIGHTS).exists() or not work.exists()


def clear(work: Path) -> None:
    """Before workers start: nothing of an earlier run is taken for theirs."""
    for name in (WEIGHTS, CURVES, ERROR):
        (work / FOLDER / name).unlink(missing_ok=True)


def read(work: Path) -> Result:
    """What the workers left. Raises StageError: their error, or that they left nothing."""
    folder = work / FOLDER
    if failed(work):
        raise StageError(**json.loads((folder / ERROR).read_text("utf-8")))
    if not (folder / WEIGHTS).exists():
        raise StageError(
            "the workers ended without a model", where="train", remedy=f"their output is in {work / 'workers'}"
        )
    rows = [json.loads(line) for line in (folder / CURVES).read_text("utf-8").splitlines()]
    return Result((folder / WEIGHTS).read_bytes(), Curves(rows))


def _put(path: Path, data: bytes) -> None:
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_bytes(data)
    scratch.replace(path)
