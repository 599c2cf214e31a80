"""The causal mean: equal to its formula, independent of future frames, and carried from utterance to utterance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from megahour.features.normalise import PRIOR_FRAMES, WINDOW_FRAMES, CausalMean, Moments, without_mean
from megahour.features.on_the_fly import shift_of_mean

DIMS = 3
seeds = st.integers(0, 2**32 - 1)


def frames(seed: int, count: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(5, 3, (count, DIMS)).astype(np.float32)


def prior() -> NDArray[np.float32]:
    return np.array([1.0, 5.0, -2.0], np.float32)


def test_it_is_the_formula() -> None:
    x = frames(0, WINDOW_FRAMES + 500)
    mean, expected = prior().astype(np.float64), []
    for t, frame in enumerate(x, 1):
        mean = mean + (frame - mean) / min(t + PRIOR_FRAMES, WINDOW_FRAMES)
        expected.append(frame - mean)
    np.testing.assert_allclose(CausalMean(prior()).apply(x), expected, atol=1e-5)


def test_it_starts_as_a_cumulative_mean_in_which_the_prior_counts_as_a_hundred_frames() -> None:
    x = frames(1, 400)
    state = CausalMean(prior())
    state.apply(x)
    expected = (PRIOR_FRAMES * prior() + x.sum(axis=0)) / (PRIOR_FRAMES + 400)
    np.testing.assert_allclose(state.mean, expected, rtol=1e-6)


@given(seeds, st.integers(1, 60), st.integers(0, 60))
def test_no_frame_depends_on_a_later_one(seed: int, past: int, future: int) -> None:
    x, changed = frames(seed, past + future), frames(seed, past + future)
    changed[past:] += 100
    np.testing.assert_array_equal(CausalMean(prior()).apply(x)[:past], CausalMean(prior()).apply(changed)[:past])


@given(seeds, st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_utterances_one_after_the_other_are_one_long_one(seed: int, lengths: list[int]) -> None:
    x = frames(seed, sum(lengths))
    state = CausalMean(prior())
    parts = [state.apply(part) for part in np.split(x, np.cumsum(lengths)[:-1])]
    np.testing.assert_array_equal(np.concatenate(parts), CausalMean(prior()).apply(x))


@given(seeds, st.lists(st.booleans(), max_size=60))
def test_digital_silence_leaves_the_mean_as_it_is(seed: int, muted: list[bool]) -> None:
    """All other frames are what they would be without it; a frame with one mel above the floor is sound."""
    x, floor = frames(seed, len(muted)), np.full(DIMS, -50.0, np.float32)
    muting = np.array(muted, bool)
    x[muting] = floor
    x[~muting, :2] = floor[:2]
    state, alone = CausalMean(prior()), CausalMean(prior())
    result = state.apply(x, floor)
    np.testing.assert_array_equal(result[~muting], alone.apply(x[~muting], floor))
    assert state.count == alone.count == (~muting).sum()
    np.testing.assert_array_equal(state.mean, alone.mean)


@pytest.mark.filterwarnings("error")
def test_an_utterance_without_frames_has_no_mean() -> None:
    assert without_mean(np.zeros((0, 4), np.float32), np.zeros(4, np.float32)).shape == (0, 4)


def test_an_utterances_own_mean_counts_no_digital_silence() -> None:
    floor = np.full(2, 3, np.float32)
    speech = np.float32([[5, 9], [7, 3]])
    muted = np.concatenate([speech, np.tile(floor, (5, 1))])
    np.testing.assert_array_equal(without_mean(muted, floor)[:2], speech - np.float32([6, 6]))
    np.testing.assert_array_equal(without_mean(np.tile(floor, (5, 1)), floor), np.zeros((5, 2)))


@given(louder=st.floats(-5, 5), room=st.floats(0, 2), pause=st.floats(-20, -6))
def test_within_a_range_pauses_are_alike_whatever_is_in_them(louder: float, room: float, pause: float) -> None:
    """20 dB are 4.6 nats. Neither the level nor what is softer than the range changes an utterance."""
    speech = frames(3, 40).clip(-2, 2)
    utterance = np.concatenate([speech, np.full((20, DIMS), pause, np.float32), speech])
    other = utterance + np.float32(louder)
    other[40:60] += np.float32(room / 2)
    expected = without_mean(utterance, range_db=20)
    np.testing.assert_allclose(without_mean(other, range_db=20), expected, atol=1e-5)
    lowest = np.percentile(utterance, 95, axis=0) - np.log(100)
    clipped = np.maximum(utterance, lowest)
    np.testing.assert_allclose(expected, clipped - clipped.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(without_mean(utterance, range_db=100), utterance - utterance.mean(axis=0), atol=1e-4)


def test_the_loud_level_of_an_utterance_counts_no_digital_silence() -> None:
    floor, speech = np.full(DIMS, -50.0, np.float32), frames(4, 30)
    muted = np.concatenate([speech, np.tile(floor, (600, 1))])
    result = without_mean(muted, floor, range_db=10)
    np.testing.assert_allclose(result[:30], without_mean(speech, floor, range_db=10), atol=1e-6)
    assert result[30:].max() <= result[:30].min(axis=0).max(), "silence is at the bottom of the range"


def test_augmentation_shifts_the_mean_by_what_it_does_to_sounds() -> None:
    """Noise of 6 covers speech of 5 and a muted pause: the mean goes from 5 to 6, and 1 of it is volume."""
    floor, speech = np.zeros(DIMS, np.float32), np.full((3, DIMS), 5.0, np.float32)
    original = np.concatenate([speech, np.tile(floor, (7, 1))])
    noisy = np.full((9, DIMS), 6.0, np.float32)
    assert shift_of_mean(original, noisy, floor, 0.0).tolist() == [1.0] * DIMS
    assert shift_of_mean(original, noisy, floor, 1.0).tolist() == [0.0] * DIMS
    assert shift_of_mean(original, noisy, None, 0.0).tolist() == [4.5] * DIMS, "in the scale of -1 … 1 all frames count"
    for silent in ((original[3:], noisy), (original, original[3:])):
        assert shift_of_mean(*silent, floor, 1.0).tolist() == [0.0] * DIMS


def test_it_follows_a_speaker_to_another_room() -> None:
    x = np.zeros((6 * WINDOW_FRAMES, 1), np.float32)
    x[3 * WINDOW_FRAMES :] = 10.0
    left = CausalMean(np.zeros(1, np.float32)).apply(x)[:, 0]
    assert left[3 * WINDOW_FRAMES] > 9.9
    assert left[4 * WINDOW_FRAMES] == pytest.approx(10 / np.e, abs=0.05)
    assert abs(left[-1]) < 0.6


def test_it_forgets_in_30_seconds() -> None:
    """30 s after a step in level, 1/e of it is left."""
    x = np.zeros((9000, 1), np.float32)
    x[6000:] = 1.0
    assert CausalMean(np.zeros(1, np.float32)).apply(x)[-1, 0] == pytest.approx(1 / np.e, rel=0.01)


def test_the_input_is_left_alone() -> None:
    x = frames(2, 10)
    CausalMean(prior()).apply(x)
    np.testing.assert_array_equal(x, frames(2, 10))


@given(seeds, st.integers(1, 50), st.integers(1, 50))
def test_moments_add_up(seed: int, first: int, second: int) -> None:
    x = frames(seed, first + second)
    whole, half, rest = (Moments.zero(DIMS) for _ in range(3))
    whole.add(x)
    half.add(x[:first])
    rest.add(x[first:])
    half.merge(rest)
    assert half.frames == whole.frames
    np.testing.assert_allclose(half.total, whole.total)
    np.testing.assert_allclose(half.squares, whole.squares)
    mean, inv_std = half.mean_and_inv_std()
    np.testing.assert_allclose(mean, x.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(1 / inv_std, np.maximum(x.astype(np.float64).std(axis=0), 1e-3), rtol=1e-4)


def test_the_moments_of_one_frame_are_its_own_and_of_none_are_zero() -> None:
    moments = Moments.zero(2)
    moments.add(np.array([[3.0, -1.0]], np.float32))
    mean, inv_std = moments.mean_and_inv_std(floor=0.5)
    assert (mean.tolist(), inv_std.tolist()) == ([3.0, -1.0], [2.0, 2.0])
    assert Moments.zero(1).mean_and_inv_std(floor=0.5)[0].tolist() == [0.0]


def test_a_constant_dimension_does_not_blow_up() -> None:
    moments = Moments.zero(1)
    moments.add(np.full((50, 1), 3.0, np.float32))
    mean, inv_std = moments.mean_and_inv_std(floor=0.01)
    assert mean[0] == pytest.approx(3)
    assert inv_std[0] == pytest.approx(100)
    assert moments.mean_and_inv_std()[1][0] == pytest.approx(1000)
