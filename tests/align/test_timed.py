"""Alignment with cue times: the exact path of `ctc`, and what times change in it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from megahour.align.ctc import NoPathError, Problem, align, spans
from megahour.align.timed import MOST_NATS, align_timed, time_costs

UNITS = 5


def problem_of(rng: np.random.Generator) -> Problem:
    lengths = rng.integers(1, 4, int(rng.integers(1, 5)))
    return Problem(
        rng.integers(1, 4, lengths.sum()).astype(np.int32),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        rng.integers(1, 20, len(lengths)).astype(np.float32),
        rng.random(len(lengths) + 1) < 0.7,
        1.0,
        0,
        int(rng.choice([-1, 4])),
    )


def cost_of(states: NDArray[np.int32], posteriors: NDArray[np.uint8], problem: Problem) -> float:
    """Nats of a path, added up from its definition."""
    nats = posteriors / 16
    nats = nats - nats.min(axis=1, keepdims=True)
    bounds, total = problem.boundaries.tolist(), 0.0
    for t, state in enumerate(states.tolist()):
        if state >= 0:
            total += nats[t, problem.tokens[state]]
            continue
        free = nats[t, problem.free] if problem.free >= 0 else np.inf
        starred = ~state in bounds and problem.star[bounds.index(~state)]
        total += min(nats[t, problem.blank], problem.star_nats, free) if starred else nats[t, problem.blank]
    first, _ = spans(states, len(problem.tokens))
    return total + float(problem.skip_nats[first[bounds[:-1]] < 0].sum())


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), frames=st.integers(1, 30))
def test_without_times_it_is_the_exact_path(seed: int, frames: int) -> None:
    rng = np.random.default_rng(seed)
    problem = problem_of(rng)
    posteriors = rng.integers(0, 80, (frames, UNITS)).astype(np.uint8)
    try:
        exact = align(posteriors, problem)
    except NoPathError:
        with pytest.raises(NoPathError):
            align_timed(posteriors, problem)
        return
    states, cost = align_timed(posteriors, problem)
    assert cost == pytest.approx(-exact.score, abs=1e-3)
    assert cost_of(states, posteriors, problem) == pytest.approx(cost, abs=1e-3)


@given(seed=st.integers(0, 2**32 - 1))
def test_times_cost_what_they_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = problem_of(rng)
    posteriors = rng.integers(0, 80, (30, UNITS)).astype(np.uint8)
    cues = len(problem.skip_nats)
    entry = time_costs(np.sort(rng.uniform(0, 30, cues)), np.full(cues, 5.0), 2.0, 30)
    states, cost = align_timed(posteriors, problem, entry)
    first, _ = spans(states, len(problem.tokens))
    paid = 0.0
    for j, (begin, end) in enumerate(zip(problem.boundaries[:-1], problem.boundaries[1:], strict=True)):
        if first[begin] >= 0:
            paid += entry[0, j, first[begin]] + (entry[1, j, first[end - 1]] if end - begin > 1 else 0)
    assert cost_of(states, posteriors, problem) + paid == pytest.approx(cost, abs=1e-3)
    assert (
        cost <= align_timed(posteriors, problem)[1] + paid_by(align(posteriors, problem).states, problem, entry) + 1e-3
    )


def paid_by(states: NDArray[np.int32], problem: Problem, entry: NDArray[np.float32]) -> float:
    first, _ = spans(states, len(problem.tokens))
    cues = zip(problem.boundaries[:-1], problem.boundaries[1:], strict=True)
    return sum(
        float(entry[0, j, first[begin]]) + (float(entry[1, j, first[end - 1]]) if end - begin > 1 else 0)
        for j, (begin, end) in enumerate(cues)
        if first[begin] >= 0
    )


def test_a_time_is_normal_near_and_bounded_far() -> None:
    costs = time_costs(np.array([100.0, np.nan]), np.array([50.0, 50.0]), 10.0, 1000)
    assert costs[0, 0, 100] == 0
    assert costs[0, 0, 120] == pytest.approx(2.0)
    assert costs[0, 0, 80] == pytest.approx(2.0)
    assert costs[0, 0, 900] == MOST_NATS
    assert costs[1, 0, 60] == costs[1, 0, 150] == 0, "a last token may come early, and within its room"
    assert costs[1, 0, 170] == pytest.approx(2.0)
    assert (costs[:, 1] == 0).all(), "a cue without a time costs nothing"
