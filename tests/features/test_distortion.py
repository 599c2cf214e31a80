"""Distortion between two recordings: paths are checked by brute force, cepstra against pymcd."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from megahour.features.distortion import (
    SpeechAnalysis,
    analyse,
    coarse_to_fine_path,
    distortion,
    mel_cepstra,
    warping_path,
)

pytest.importorskip("pyworld", reason="needs the extra tts")


def test_cepstra_are_those_of_pymcd() -> None:
    """pysptk.mcep(envelope, order=13, alpha=0.65, maxiter=0, etype=1, eps=1e-8, itype=3)."""
    bins = np.arange(257)
    envelope = np.stack([1e-3 * np.exp(-bins / 40), 1e-5 + 1e-4 * np.cos(bins / 30) ** 2])
    found = mel_cepstra(envelope)
    np.testing.assert_allclose(found[:, [0, 1, 2, 7, 13]], EXPECTED, atol=2e-6)


EXPECTED = [
    [-7.936208824, 1.070632288, -0.199535488, -0.009153972, 0.002588654],
    [-9.016240872, 0.100576890, 0.126322255, -0.005739283, 0.027848890],
]


def every_path(n: int, m: int) -> list[list[tuple[int, int]]]:
    """All monotonous paths from (0, 0) to (n − 1, m − 1)."""
    if (n, m) == (1, 1):
        return [[(0, 0)]]
    before = [(n - 1, m - 1), (n - 1, m), (n, m - 1)]
    return [[*path, (n - 1, m - 1)] for i, j in before if i and j for path in every_path(i, j)]


@pytest.mark.parametrize(("n", "m"), list(product([1, 2, 5], [1, 4])))
def test_the_path_is_the_best_of_all(n: int, m: int) -> None:
    rng = np.random.default_rng(10 * n + m)
    x, y = rng.normal(size=(n, 3)), rng.normal(size=(m, 3))
    costs = [sum(np.linalg.norm(x[i] - y[j]) for i, j in path) for path in every_path(n, m)]
    i, j = warping_path(x, y)
    assert list(zip(i.tolist(), j.tolist(), strict=True)) in every_path(n, m)
    assert np.linalg.norm(x[i] - y[j], axis=1).sum() == pytest.approx(min(costs))


def test_the_path_of_fastdtw() -> None:
    """fastdtw.fastdtw(x, y, dist=euclidean)[1], which is not the best one."""
    x = np.array([0.0, 1.0, 4.0, 2.0, 2.5, 7.0, 3.0])[:, None]
    y = np.array([0.0, 3.0, 2.2, 6.0, 6.5, 3.0, 1.0, 0.5, 3.0])[:, None]
    i, j = coarse_to_fine_path(x, y)
    assert i.tolist() == [0, 1, 2, 3, 4, 5, 5, 6, 6, 6, 6]
    assert j.tolist() == [0, 0, 1, 2, 2, 3, 4, 5, 6, 7, 8]


def tone(hz: float, seconds: float, rate_hz: int) -> np.ndarray:
    time_s = np.arange(round(seconds * rate_hz)) / rate_hz
    return (0.2 * sum(np.sin(2 * np.pi * k * hz * time_s) / k for k in range(1, 8))).astype(np.float32)


def test_of_itself_and_of_a_higher_voice() -> None:
    low, high = analyse(tone(120, 0.6, 16_000), 16_000), analyse(tone(240, 0.9, 8_000), 8_000)
    same, other = distortion(low, low), distortion(low, high)
    assert (same.mcd_db, same.pitch_cents, same.voicing, same.slower) == (0.0, 0.0, 0.0, 1.0)
    assert other.mcd_db > 1
    assert other.pitch_cents == pytest.approx(1200, abs=60)
    assert other.slower == pytest.approx(1.5, abs=0.02)


def test_nothing_voiced() -> None:
    silent = SpeechAnalysis(np.zeros((3, 14)), np.zeros(3))
    assert np.isnan(distortion(silent, silent).pitch_cents)
