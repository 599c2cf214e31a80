"""Stacking frames and subsampling their labels see the same frames."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megahour.features.stack import stack, stacked_frames, subsample

F = 2
MEAN, INV_STD = np.array([1.0, -1.0], np.float32), np.array([2.0, 0.5], np.float32)


@given(st.integers(0, 40), st.integers(1, 6), st.data())
def test_each_stacked_frame_holds_its_neighbours_and_has_the_label_of_the_middle_one(
    frames: int, size: int, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(0, size - 1))
    x = np.stack([np.arange(frames), -np.arange(frames)], axis=1).astype(np.float16)
    stacked = stack(x, offset, MEAN, INV_STD, size)
    labels = subsample(np.arange(frames), offset, size)
    assert stacked.shape == (stacked_frames(frames, offset, size), size * F)
    assert labels.shape == stacked.shape[:1]
    for row, label in zip(stacked, labels, strict=True):
        numbers = row.reshape(size, F)[:, 0] / INV_STD[0] + MEAN[0]
        assert numbers.tolist() == list(range(label - size // 2, label - size // 2 + size))


@given(st.integers(0, 200), st.integers(1, 5))
def test_over_all_offsets_every_full_window_comes_once(frames: int, size: int) -> None:
    firsts = [offset + size * i for offset in range(size) for i in range(int(stacked_frames(frames, offset, size)))]
    assert sorted(firsts) == list(range(max(0, frames - size + 1)))


def test_normalisation_takes_the_mean_off_before_it_scales() -> None:
    x = np.array([[3.0, 1.0], [1.0, -1.0], [2.0, 0.0]], np.float16)
    np.testing.assert_array_equal(stack(x, 0, MEAN, INV_STD), [[4.0, 1.0, 0.0, 0.0, 2.0, 0.5]])


def test_frame_counts_of_many_utterances_at_once() -> None:
    assert stacked_frames(np.array([0, 2, 3, 7]), 1).tolist() == [0, 0, 0, 2]


def test_the_input_is_left_alone() -> None:
    x = np.ones((6, F), np.float32)
    stack(x, 0, MEAN, INV_STD)
    assert (x == 1).all()


def test_a_wrong_offset_is_an_error() -> None:
    with pytest.raises(ValueError, match="offset must be from 0 to 2, got 3"):
        stack(np.zeros((6, F), np.float32), 3, MEAN, INV_STD)
