"""LDA and MLLT find what made the observations, from sums over parts of them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import multivariate_normal, ortho_group

from megahour.units.gmm import collect, estimate
from megahour.units.sums import ExactSums
from megahour.units.transforms import collect_lda, collect_mllt, lda, mllt, spliced

Float32 = NDArray[np.float32]


def observed(
    seed: int, dims: int = 4, classes: int = 5, spread: float = 5.0
) -> tuple[Float32, NDArray[np.int32], NDArray[np.float64]]:
    """Frames whose classes differ in the first two of hidden directions; the matrix mixes the directions."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, 4000).astype(np.int32)
    means = np.zeros((classes, dims))
    means[:, :2] = rng.normal(0, spread, (classes, 2))
    mixing = ortho_group.rvs(dims, random_state=rng) * rng.uniform(0.5, 3, dims)
    return ((means[labels] + rng.normal(size=(4000, dims))) @ mixing.T).astype(np.float32), labels, mixing


@pytest.mark.parametrize("seed", range(3))
def test_lda_keeps_the_directions_in_which_classes_differ(seed: int) -> None:
    x, labels, mixing = observed(seed)
    sums = ExactSums(5)
    for part in np.array_split(np.arange(len(x)), 7):
        collect_lda(sums, x[part], labels[part])
    transform = lda(sums, 2)
    hidden = transform @ mixing
    assert len(lda(sums, 40)) == 4, "five classes differ in four directions"
    assert np.abs(hidden[:, 2:]).max() < 0.1 * np.abs(hidden[:, :2]).max(), "the other directions are left out"
    y = x @ transform.T
    within = np.mean([np.cov(y[labels == label].T) for label in range(5)], axis=0)
    np.testing.assert_allclose(within, np.eye(2), atol=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_mllt_makes_diagonal_gaussians_fit_as_well_as_full_ones(seed: int) -> None:
    x, labels, _ = observed(seed, spread=2.0)
    transform = np.eye(4)
    for _ in range(4):
        y = (x @ transform.T).astype(np.float32)
        moments, sums = ExactSums(9), ExactSums(4)
        collect(moments, y, labels, None)
        model = estimate(moments, 5, 1)
        for part in np.array_split(np.arange(len(y)), 5):
            collect_mllt(sums, y[part], labels[part], model)
        turn = mllt(sums)
        transform = turn @ transform
    y = (x @ transform.T).astype(np.float32)
    moments = ExactSums(9)
    collect(moments, y, labels, None)
    scores = estimate(moments, 5, 1).scores(y)[np.arange(len(y)), labels].mean()
    diagonal = scores + np.log(abs(np.linalg.det(transform)))
    within = np.mean([np.cov(x[labels == label].T) for label in range(5)], axis=0)
    parts = [
        multivariate_normal(x[labels == label].mean(axis=0), within).logpdf(x[labels == label]) for label in range(5)
    ]
    assert diagonal > np.concatenate(parts).mean() - 0.02


def test_neighbours_are_beside_a_frame_and_edges_are_repeated() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert spliced(x, 1).tolist() == [[0, 1, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 4, 5]]
    assert spliced(x, 0).shape == (3, 6)
