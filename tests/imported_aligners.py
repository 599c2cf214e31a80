"""Imports a model as an aligner, and runs what came of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tones import write

from megahour.core.config import parse
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.foreign.aligner_stage import ImportAligner
from megahour.foreign.params import ImportAlignerParams
from megahour.models.inference import load


def imported(folder: Path, **values: Any) -> Artifact:
    values = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    p = parse(ImportAlignerParams, values, where="import-aligner")
    (task,) = ImportAligner().plan(p, {})
    return write(folder, lambda out: ImportAligner().run(p, {}, task, out, Context(folder)))


def heard(model: Artifact, samples: np.ndarray) -> np.ndarray:
    """Log posteriors (T', V) of float samples by the artifact, in the order of its tokens."""
    shift = json.loads(model.read_bytes(0, ".model.json"))["audio"]["frame_shift_samples"]
    rows = samples[: len(samples) // shift * shift].reshape(1, -1, shift)
    values, lengths = load(model.url)(rows, np.array([rows.shape[1]]))
    return values["log_probs"][0, : lengths[0]]
