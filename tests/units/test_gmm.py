"""Gaussian mixtures: scores are densities, statistics are maximum likelihood and never make the fit worse."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import norm

from megahour.units.gmm import CEPSTRA, Mixtures, collect, estimate, observations, occupancies
from megahour.units.sums import ExactSums

RNG = np.random.default_rng(5)


def mixtures(phones: int = 2, components: int = 3, dims: int = 4) -> Mixtures:
    weights = RNG.dirichlet(np.ones(components), phones)
    shape = (phones, components, dims)
    return Mixtures(weights, RNG.normal(size=shape), RNG.uniform(0.5, 2, shape))


def two_phones(frames: int = 2000) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Phone 0 is one Gaussian, phone 1 has two far apart."""
    phones = RNG.integers(0, 2, frames).astype(np.int32)
    far = np.where(RNG.random(frames) < 0.5, -4.0, 4.0) * phones
    return (RNG.normal(size=(frames, 2)) + far[:, None]).astype(np.float32), phones


def test_scores_are_log_densities_of_the_mixture() -> None:
    model, x = mixtures(), RNG.normal(size=(7, 4)).astype(np.float32)
    parts = norm.logpdf(x[:, None, None], model.means, np.sqrt(model.variances)).sum(-1)
    np.testing.assert_allclose(model.scores(x), logsumexp(parts + np.log(model.weights), axis=2), atol=1e-4)


def test_one_gaussian_gets_the_moments_of_its_frames() -> None:
    x, phones = two_phones()
    sums = ExactSums(5)
    for part in (slice(0, 700), slice(700, None)):
        collect(sums, x[part], phones[part], None)
    model = estimate(sums, 2, 1)
    for phone in (0, 1):
        np.testing.assert_allclose(model.means[phone, 0], x[phones == phone].mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(model.variances[phone, 0], x[phones == phone].var(axis=0), rtol=1e-4)


def test_expectation_maximisation_never_loses_likelihood_and_finds_both_parts() -> None:
    x, phones = two_phones()
    first = ExactSums(5)
    collect(first, x, phones, None)
    model = estimate(first, 2, 1).split(occupancies(first, 2, 1))
    fits = []
    for _ in range(12):
        fits.append(float(model.scores(x)[np.arange(len(x)), phones].astype(np.float64).sum()))
        sums = ExactSums(5)
        collect(sums, x, phones, model)
        model = estimate(sums, 2, 2, model)
    assert all(after >= before - 1e-6 * abs(before) for before, after in pairwise(fits))
    np.testing.assert_allclose(np.sort(model.means[1, :, 0]), [-4, 4], atol=0.2)


def test_a_component_with_few_frames_takes_the_moments_of_all() -> None:
    x = RNG.normal(3, 2, (500, 2)).astype(np.float32)
    phones = np.zeros(500, np.int32)
    phones[:5] = 1
    sums = ExactSums(5)
    collect(sums, x, phones, None)
    model = estimate(sums, 3, 1)
    for phone in (1, 2):
        np.testing.assert_allclose(model.means[phone, 0], x.mean(axis=0), atol=1e-5)
    assert np.isfinite(model.scores(x)).all()


def test_a_component_with_few_frames_stays_what_it_was() -> None:
    before, x = mixtures(2, 1, 2), RNG.normal(3, 2, (500, 2)).astype(np.float32)
    sums = ExactSums(5)
    collect(sums, x, np.zeros(500, np.int32), before)
    model = estimate(sums, 2, 1, before)
    np.testing.assert_allclose(model.means[0, 0], x.mean(axis=0), atol=1e-4)
    np.testing.assert_array_equal(model.means[1], before.means[1])
    np.testing.assert_array_equal(model.variances[1], before.variances[1])


def test_only_components_with_frames_are_split_and_the_density_of_the_others_stays() -> None:
    model, x = mixtures(2, 1, 4), RNG.normal(size=(7, 4)).astype(np.float32)
    halves = model.split(np.array([[100.0], [10.0]]), least=50.0)
    np.testing.assert_array_equal(halves.weights, [[0.5, 0.5], [1.0, 0.0]])
    np.testing.assert_allclose(halves.scores(x)[:, 1], model.scores(x)[:, 1], atol=1e-4)
    np.testing.assert_allclose(halves.means[0, 1] - halves.means[0, 0], 0.4 * np.sqrt(model.variances[0, 0]), atol=1e-9)
    sums = ExactSums(9)
    collect(sums, x, np.ones(7, np.int32), halves)
    assert estimate(sums, 2, 2, halves).weights[1, 1] == 0, "what is not there does not come back"


def test_scores_of_some_classes_are_those_of_all() -> None:
    model, x = mixtures(4), RNG.normal(size=(7, 4)).astype(np.float32)
    np.testing.assert_allclose(model.scores(x, np.array([3, 1])), model.scores(x)[:, [3, 1]], rtol=1e-6)


def test_variances_have_a_floor() -> None:
    x = RNG.normal(size=(400, 2)).astype(np.float32)
    x[:200] = 1.0
    sums = ExactSums(5)
    collect(sums, x, np.repeat(np.array([0, 1], np.int32), 200), None)
    np.testing.assert_allclose(estimate(sums, 2, 1).variances[0, 0], 0.05 * x.var(axis=0), rtol=1e-3)


def test_observations_are_cepstra_with_slopes_without_their_mean() -> None:
    assert observations(RNG.normal(size=(30, 64))).shape == (30, 3 * CEPSTRA)
    ramp = np.arange(40, dtype=np.float32)[:, None] * np.array([1.0, 2.0], np.float32)
    seen = observations(ramp)
    assert seen.shape == (40, 6)
    np.testing.assert_allclose(seen[:, :2].mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(seen[5:-5, 2:4], [[1.0, 2.0]] * 30, atol=1e-5)
    np.testing.assert_allclose(seen[5:-5, 4:], 0, atol=1e-5)


@pytest.mark.parametrize("frames", [1, 2, 5])
def test_observations_of_very_short_utterances(frames: int) -> None:
    assert np.isfinite(observations(RNG.normal(size=(frames, 64)))).all()
