"""Converts cepstra to log mel energies."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.store import Artifact

MELS = 40
"""Number of mels to which cepstra are converted to be changed."""
HALF_WAVES = 3  # over the mels, in the curve of a channel


def are_cepstra(features: Artifact) -> bool:
    """Whether *features* are cepstra, not log mel energies."""
    made = features.manifest
    return bool(made.summary.get("cepstra")) or (made.stage == "import-features" and not made.params.get("mels"))


def mel_matrix(dims: int, mels: int) -> NDArray[np.float32]:
    """The matrix (dims, mels) that turns cepstra into smooth log mel energies: cepstra (T, dims) @ matrix.

    It inverts Sphinx's transform, c_k = 1/M · Σ x_j cos(π k (j + ½) / M) over M mels. The detail of the cepstra above
    `dims` is missing.
    """
    angles = np.pi * np.arange(dims)[:, None] * (np.arange(mels)[None, :] + 0.5) / mels
    matrix = 2 * np.cos(angles)
    matrix[0] = 1.0
    return matrix.astype(np.float32)


@lru_cache(maxsize=8)
def to_mels_and_back(dims: int, dtype: type[np.floating[Any]] = np.float32) -> tuple[NDArray[Any], NDArray[Any]]:
    """The matrices (dims, mels) and (mels, dims) from cepstra to log mel energies and from these to cepstra."""
    to_mels = mel_matrix(dims, max(MELS, dims)).astype(dtype)
    return to_mels, np.linalg.pinv(to_mels)


def channel_curve(mels: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """(mels,) a sum of half-waves with random amplitudes; the standard deviation over draws and mels is 1."""
    waves = np.cos(np.pi * np.arange(1, HALF_WAVES + 1)[:, None] * (np.arange(mels) + 0.5) / mels)
    curve: NDArray[np.float64] = rng.standard_normal(HALF_WAVES) @ waves * np.sqrt(2 / HALF_WAVES)
    return curve
