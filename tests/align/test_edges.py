"""Word edges: peaks of a CTC model, moved to where the energy says that the word begins and ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from megahour.align.edges import loud_frames, narrow, widen


def level_of(words: list[tuple[int, int]], frames: int, noise: float = 0.5, seed: int = 0) -> NDArray[np.float32]:
    """Log energy (T,): words at 10, pauses at 0, and noise on both."""
    level = np.random.default_rng(seed).normal(0, noise, frames)
    for begin, end in words:
        level[begin:end] += 10
    return level.astype(np.float32)


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def test_a_start_in_the_pause_moves_in_to_the_onset() -> None:
    loud = loud_frames(level_of([(50, 90), (150, 200)], 300))
    start, end = widen(ints(26, 130), ints(75, 170), loud, second=ints(60, 160), inner=ints(70, 165))
    assert start.tolist() == [50, 150]
    assert end.tolist() == [90, 200]


def test_an_end_in_the_pause_moves_in_to_the_offset() -> None:
    loud = loud_frames(level_of([(50, 90)], 300))
    start, end = widen(ints(60), ints(130), loud, second=ints(65), inner=ints(80))
    assert (start.tolist(), end.tolist()) == ([50], [90])


def test_two_tokens_in_the_pause_are_both_early() -> None:
    loud = loud_frames(level_of([(50, 90)], 300))
    assert widen(ints(20), ints(80), loud, second=ints(40), inner=ints(70))[0].tolist() == [50]


def test_a_word_without_sound_stays_where_it_is() -> None:
    loud = loud_frames(level_of([(50, 90)], 300))
    assert [edge.tolist() for edge in widen(ints(110), ints(140), loud)] == [[110], [140]]


def test_a_first_token_lost_far_away_comes_back() -> None:
    """Two seconds before the word somebody coughs, and the path put its first token there."""
    loud = loud_frames(level_of([(50, 70), (250, 300)], 400))
    start, _ = widen(ints(55), ints(290), loud, second=ints(265), inner=ints(280))
    assert start.tolist() == [250]


def test_closures_inside_a_word_do_not_end_it() -> None:
    loud = loud_frames(level_of([(50, 80), (85, 100)], 300))
    assert widen(ints(55), ints(83), loud)[1].tolist() == [83]


def test_the_threshold_follows_the_noise_of_the_surroundings() -> None:
    """The second minute is recorded beside a road: its pauses are as loud as half of the first minute's speech."""
    words = [(b, b + 60) for b in range(100, 11900, 150)]
    level = level_of(words, 12000)
    level[6000:] = np.maximum(level[6000:], 5 + np.random.default_rng(1).normal(0, 0.5, 6000))
    start, end = ints(*[b - 20 for b, _ in words]), ints(*[e - 20 for _, e in words])
    found, ends = widen(start, end, loud_frames(level))
    assert np.median(np.abs(found - start - 20)) == 0
    settled = np.abs(start - 6000) > 1500
    assert np.mean(np.abs(found - start - 20)[settled] <= 2) > 0.95
    assert np.mean(np.abs(ends - end - 20)[settled] <= 2) > 0.95


def test_a_long_pause_has_no_loud_frames() -> None:
    level = level_of([(b, b + 60) for b in range(0, 3000, 100)], 12000)
    assert not loud_frames(level)[3100:].any()


def test_clicks_are_not_sound() -> None:
    level = level_of([(100, 150), (50, 52)], 300)
    assert not loud_frames(level)[:100].any()


def test_nothing_to_hear() -> None:
    assert loud_frames(np.zeros(0, np.float32)).tolist() == []
    start, end = widen(ints(3), ints(9), np.zeros(20, bool))
    assert (start.tolist(), end.tolist()) == ([3], [9])


@given(
    gaps=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=8),
    tail=st.integers(0, 30),
    seed=st.integers(0, 500),
    share=st.floats(0, 1),
)
@pytest.mark.parametrize("moved", [widen, narrow])
def test_words_keep_their_order_and_their_sense(
    moved: object, gaps: list[tuple[int, int]], tail: int, seed: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    lengths = np.array(gaps, np.int64)
    end = lengths.sum(axis=1).cumsum()
    start = end - lengths[:, 1]
    loud = np.repeat(rng.random(-(-int(end[-1] + tail) // 5)) < share, 5)[: int(end[-1]) + tail]
    second, inner = rng.integers(start, end + 1), rng.integers(start, end + 1)
    new_start, new_end = (widen if moved is widen else narrow)(start, end, loud, second, inner)
    assert (new_start < new_end).all()
    assert (new_start[1:] >= new_end[:-1]).all()
    assert new_start[0] >= 0
    assert new_end[-1] <= len(loud)
