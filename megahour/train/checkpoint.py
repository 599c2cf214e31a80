"""Checkpoints that survive a kill at any moment: safetensors and JSON, two generations, checked by digest.

A checkpoint is `<step>.safetensors` and then `<step>.json`, each written under another name and renamed. The JSON holds
the SHA-256 of the tensors, so a torn or altered pair is noticed, reported and the one before it used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

LOG = logging.getLogger(__name__)
KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name and a JSON-serialisable state."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


def save(folder: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write the checkpoint of `step` and remove all but the newest two."""
    folder.mkdir(parents=True, exist_ok=True)
    data = safetensors.torch.save({name: tensor.detach().contiguous() for name, tensor in tensors.items()})
    text = json.dumps({"sha256": hashlib.sha256(data).hexdigest(), "state": dict(state)}, sort_keys=True)
    _write(folder / f"{step:010d}.safetensors", data)
    _write(folder / f"{step:010d}.json", text.encode())
    steps = sorted(path.stem for path in folder.glob("[0-9]*.json"))
    for path in folder.iterdir():
        # Also tensors whose JSON a kill prevented, and temporary files of killed writers.
        if path.stem.split(".")[0] not in steps[-KEEP:]:
            path.unlink(missing_ok=True)


def load(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint, None when there is none. A damaged one is reported as a warning and passed over."""
    for path in sorted(folder.glob("[0-9]*.json"), reverse=True):
        try:
            return _read(path)
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            LOG.warning("checkpoint %s is damaged (%s: %s); using the one before it", path, type(error).__name__, error)
    return None


def _read(path: Path) -> Checkpoint:
    meta = json.loads(path.read_bytes())
    data = path.with_suffix(".safetensors").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != meta["sha256"]:
        raise ValueError(f"SHA-256 of the tensors is {digest[:12]}…, expected {meta['sha256'][:12]}…")
    return Checkpoint(safetensors.torch.load(data), meta["state"])


def _write(path: Path, data: bytes) -> None:
    scratch = path.with_name(path.name + ".tmp")
    with scratch.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
