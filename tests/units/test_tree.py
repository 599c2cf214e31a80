"""Decision trees: splits gain the likelihood that they claim, and every triphone finds a senone."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm

from megahour.units.hmm import BOUNDARY, SILENCE, Units
from megahour.units.tree import Triple, TripleStatistics, grow, likelihood, questions

PHONES = ["a", "e", "k", "t"]
DIMS = 2


def speech(seed: int, frames: int = 40, contexts: float = 2.0) -> dict[Triple, NDArray[np.float32]]:
    """Frames of all triphones; the vowels on the left of a phone move its first dimension by `contexts`."""
    rng = np.random.default_rng(seed)
    made = {(BOUNDARY, SILENCE, BOUNDARY): rng.normal(9, 1, (300, DIMS)).astype(np.float32)}
    for left, phone, right in itertools.product([*PHONES, BOUNDARY], PHONES, [*PHONES, BOUNDARY]):
        centre = np.array([contexts * (left in "ae"), 3.0 * PHONES.index(phone)])
        made[left, phone, right] = rng.normal(centre, 1, (frames, DIMS)).astype(np.float32)
    return made


def statistics(frames: dict[Triple, NDArray[np.float32]]) -> TripleStatistics:
    stats = TripleStatistics(DIMS)
    for triple, x in frames.items():
        for part in np.array_split(x, 3):
            stats.add(triple, part)
    return stats


def log_likelihood(x: NDArray[np.float32]) -> float:
    """Of frames under the Gaussian that fits them best."""
    exact = x.astype(np.float64)
    return float(norm.logpdf(exact, exact.mean(axis=0), exact.std(axis=0)).sum())


def by_senone(units: Units, frames: dict[Triple, NDArray[np.float32]]) -> dict[int, NDArray[np.float32]]:
    parts: dict[int, list[NDArray[np.float32]]] = {}
    for triple, x in frames.items():
        parts.setdefault(units.senone_of(*triple), []).append(x)
    return {senone: np.concatenate(each) for senone, each in parts.items()}


def gain_of(
    frames: dict[Triple, NDArray[np.float32]], phone: str, side: int, asked: tuple[str, ...], least: int = 60
) -> float:
    """Log-likelihood gained by asking whether the context of `phone` at that side is one of `asked`."""
    yes = [x for triple, x in frames.items() if triple[1] == phone and triple[side] in asked]
    no = [x for triple, x in frames.items() if triple[1] == phone and triple[side] not in asked]
    if min(sum(map(len, yes)), sum(map(len, no))) < least:
        return 0.0
    parts = (np.concatenate(yes), np.concatenate(no))
    return sum(map(log_likelihood, parts)) - log_likelihood(np.concatenate(parts))


def test_likelihood_is_that_of_the_best_gaussian_up_to_a_constant_per_frame() -> None:
    frames = speech(1)
    constant = -0.5 * DIMS * (np.log(2 * np.pi) + 1)
    for triple, row in list(statistics(frames).sums.items())[:10]:
        expected = log_likelihood(frames[triple]) - constant * len(frames[triple])
        assert float(likelihood(row)) == pytest.approx(expected, rel=1e-6)


@settings(max_examples=10)
@given(st.integers(0, 2**32 - 1))
def test_every_further_senone_is_a_real_gain(seed: int) -> None:
    """Each tree with one leaf more fits the frames better, and the first split is the best of all."""
    frames = speech(seed)
    stats = statistics(frames)
    fits = []
    for senones in range(5, 10):
        units = grow(stats, PHONES, senones, 60)
        assert units.size == senones
        fits.append(sum(log_likelihood(x) for x in by_senone(units, frames).values()))
    gains = np.diff(fits)
    assert (gains >= 50).all()
    splits = itertools.product(PHONES, (0, 2), questions(stats, PHONES))
    assert gains[0] == pytest.approx(max(gain_of(frames, *split) for split in splits), rel=1e-4)


def test_the_first_question_finds_what_moves_the_frames() -> None:
    units = grow(statistics(speech(3)), PHONES, 6, 60)
    split = [tree for tree in units.trees.values() if "side" in tree]
    assert len(split) == 1
    assert (split[0]["side"], set(split[0]["phones"])) == ("left", {"a", "e"})


def test_where_contexts_do_not_matter_trees_stay_small() -> None:
    assert grow(statistics(speech(4, contexts=0.0)), PHONES, 50, 60).size == 1 + len(PHONES)


def test_no_leaf_has_too_few_frames() -> None:
    frames = speech(5)
    for senone, x in by_senone(grow(statistics(frames), PHONES, 100, 300), frames).items():
        assert len(x) >= 300, senone


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.floats(0.02, 0.6))
def test_unseen_triphones_and_phones_have_senones(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    seen = {triple: x for triple, x in speech(seed % 7).items() if triple[1] == SILENCE or rng.random() < share}
    units = grow(statistics(seen), [*PHONES, "z"], 12, 60)
    senones = set()
    for triple in itertools.product([*PHONES, "z", "never", BOUNDARY], [*PHONES, "z"], [*PHONES, "z", BOUNDARY]):
        senone = units.senone_of(*triple)
        assert units.senones[senone].rsplit("_", 1)[0] == triple[1], "a senone belongs to one phone"
        senones.add(senone)
    assert senones <= set(range(1, units.size))
    assert sum(units.priors) == pytest.approx(1)
    assert min(units.priors) > 0


def test_priors_are_shares_of_frames() -> None:
    frames = speech(6)
    units = grow(statistics(frames), PHONES, 9, 60)
    counts = {senone: len(x) for senone, x in by_senone(units, frames).items()}
    total = sum(counts.values())
    np.testing.assert_allclose(units.priors, [counts[s] / total for s in range(units.size)])


def test_the_order_of_the_statistics_does_not_matter() -> None:
    frames: dict[Any, Any] = speech(7)
    backwards = dict(reversed(frames.items()))
    assert grow(statistics(frames), PHONES, 12, 60).to_json() == grow(statistics(backwards), PHONES, 12, 60).to_json()


def test_questions_are_single_phones_groups_and_the_boundary() -> None:
    asked = questions(statistics(speech(8)), PHONES)
    assert {(phone,) for phone in PHONES} <= set(asked)
    assert (BOUNDARY,) in asked
    assert any(len(group) > 1 for group in asked)
    assert tuple(PHONES) not in asked, "a question that every phone answers with yes"
