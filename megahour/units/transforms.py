"""LDA and MLLT (maximum likelihood linear transform) of observations, from exact sums.

LDA (Haeb-Umbach and Ney, 1992) finds the directions that best separate the classes relative to their spread. MLLT
(Gales, 1999, semi-tied covariances with one class) then transforms them so that diagonal Gaussians fit best.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from megahour.units.gmm import Mixtures, with_differences
from megahour.units.sums import ExactSums

Float64 = NDArray[np.float64]
MLLT_ROUNDS = 20
TOTAL = -1  # key of the total number of frames


def spliced(cepstra: NDArray[np.float32], context: int) -> NDArray[np.float32]:
    """(T, D) → (T, (2 · context + 1) · D): joins neighbours, repeating edge frames. Context 0: deltas instead."""
    if not context:
        return with_differences(cepstra)
    frames = len(cepstra)
    padded = np.pad(cepstra, ((context, context), (0, 0)), mode="edge")
    return np.concatenate([padded[i : i + frames] for i in range(2 * context + 1)], axis=1)


def collect_lda(sums: ExactSums, x: NDArray[np.float32], classes: NDArray[np.integer[Any]]) -> None:
    """Add rows [n, Σx] with the class as key, and over all classes rows [0, Σ x_d x] with key −2 − d."""
    exact = x.astype(np.float64)
    used, local = np.unique(classes, return_inverse=True)
    rows = np.zeros((len(used), sums.width))
    np.add.at(rows, local, np.concatenate([np.ones((len(x), 1)), exact], axis=1))
    sums.add(used, rows)
    scatter = exact.T @ exact
    sums.add(-2 - np.arange(len(scatter)), np.pad(scatter, ((0, 0), (1, 0))))


def lda(sums: ExactSums, dims: int) -> Float64:
    """(dims, S) the LDA transform, scaled to unit within-class covariance.

    It has at most one row fewer than there are classes, since they separate no more directions.
    """
    size = sums.width - 1
    classes = sums.rows([key for key in sums.keys().tolist() if key >= 0])
    count, first = classes[:, 0], classes[:, 1:]
    mean = first.sum(axis=0) / count.sum()
    total = sums.rows(-2 - np.arange(size))[:, 1:] / count.sum() - np.outer(mean, mean)
    away = first / count[:, None] - mean
    between = (away * (count / count.sum())[:, None]).T @ away
    within = total - between
    within += np.eye(size) * 1e-6 * np.trace(within) / size
    _, vectors = scipy.linalg.eigh(between, within)
    rows = vectors.T[::-1][: max(1, min(dims, len(classes) - 1))]
    signs = np.sign(rows[np.arange(len(rows)), np.abs(rows).argmax(axis=1)])
    result: Float64 = rows * signs[:, None]
    return result


def collect_mllt(sums: ExactSums, x: NDArray[np.float32], classes: NDArray[np.integer[Any]], model: Mixtures) -> None:
    """Add row i of G_d = Σ (x − μ)(x − μ)ᵀ / σ²_d with key d · D + i, and the number of frames with key TOTAL.

    The model has one component per class.
    """
    away = x.astype(np.float64) - model.means[classes, 0]
    weights = 1.0 / model.variances[classes, 0]
    spread = np.matmul((away[None] * weights.T[:, :, None]).transpose(0, 2, 1), away)
    sums.add(np.arange(spread[..., 0].size), spread.reshape(-1, x.shape[1]))
    sums.add([TOTAL], [[len(x)] + [0.0] * (x.shape[1] - 1)])


def mllt(sums: ExactSums) -> Float64:
    """(D, D) the MLLT from the statistics of `collect_mllt`, optimised one row at a time."""
    dims = sums.width
    inverse = np.linalg.inv(sums.rows(np.arange(dims * dims)).reshape(dims, dims, dims))
    frames = float(sums.rows([TOTAL])[0, 0])
    transform = np.eye(dims)
    for _ in range(MLLT_ROUNDS):
        for d in range(dims):
            cofactors = np.linalg.inv(transform).T[d]  # up to the determinant, which the next line divides out
            row = cofactors @ inverse[d]
            transform[d] = row * np.sqrt(frames / (row @ cofactors))
    return transform
