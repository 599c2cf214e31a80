"""Converts cepstra to log mel energies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megahour.core.store import Artifact


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
