"""Weights and a sound by formulas, so that what another library computes from them can be kept as a few numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch


def wave(count: int, phase: float = 0.0) -> np.ndarray:
    """Values in -1 … 1 that look like noise, float64."""
    return np.sin(np.arange(1, count + 1, dtype=np.float64) ** 2 * 0.37 + phase)


def filled(shapes: Mapping[str, Sequence[int]]) -> dict[str, torch.Tensor]:
    """A tensor for each name: matrices scaled by their inputs, scales and variances near 1, the rest near 0."""
    tensors = {}
    for number, (name, shape) in enumerate(sorted(shapes.items())):
        values = wave(math.prod(shape), number).reshape(shape)
        if len(shape) > 1:
            values *= (3 / max(1, math.prod(shape[1:]))) ** 0.5
        elif name.endswith(("weight", "running_var")):
            values = 1 + 0.4 * values
        else:
            values *= 0.3
        tensors[name] = torch.from_numpy(values.astype(np.float32))
    return tensors


def sound(samples: int) -> np.ndarray:
    """A noisy sweep that grows louder (samples,) float32."""
    t = np.arange(samples, dtype=np.float64)
    sweep = np.sin(t * (0.02 + t * 4e-6)) * (0.05 + 0.3 * t / samples)
    return (sweep + 0.02 * wave(samples)).astype(np.float32)
