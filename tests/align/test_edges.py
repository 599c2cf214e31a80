"""Word edges: peaks of a CTC model, moved to where the energy says that the word begins and ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from megahour.align.confidence import Aligned, Costs, first_problem
from megahour.align.ctc import AlignmentPath, spans
from megahour.align.document import spell
from megahour.align.edges import (
    FADE_IN,
    FADE_LAST,
    FADE_OUT,
    LONGEST_GAP,
    SHORTEST_PAUSE,
    EdgeWords,
    audible_frames,
    fade,
    last_frames,
    levels_of,
    longest_head,
    loud_frames,
    main_parts,
    narrow,
    widen,
)
from megahour.align.tables import Clock, time_words


def level_of(words: list[tuple[int, int]], frames: int, noise: float = 0.5, seed: int = 0) -> NDArray[np.float32]:
    """Log energy (T,): words at 10, pauses at 0, and noise on both."""
    level = np.random.default_rng(seed).normal(0, noise, frames)
    for begin, end in words:
        level[begin:end] += 10
    return level.astype(np.float32)


def loud_in(level: NDArray[np.float32]) -> NDArray[np.bool_]:
    return loud_frames(levels_of(level))


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def whole(start: NDArray[np.int64], end: NDArray[np.int64]) -> EdgeWords:
    """Words of one token each."""
    sure = np.zeros(len(start), bool)
    return EdgeWords(start, end, end, start, sure, sure)


def words(start: list[int], end: list[int], second: list[int], inner: list[int], doubt: bool = False) -> EdgeWords:
    doubts = np.full(len(start), doubt)
    return EdgeWords(ints(*start), ints(*end), ints(*second), ints(*inner), doubts, doubts)


def fields_of(words: EdgeWords) -> list[NDArray[np.int64]]:
    return [getattr(words, name) for name in EdgeWords.__slots__]


def test_a_start_in_the_pause_moves_in_to_the_onset() -> None:
    loud = loud_in(level_of([(50, 90), (150, 200)], 300))
    start, end = widen(words([26, 130], [75, 170], [60, 160], [70, 165]), loud)
    assert start.tolist() == [50, 150]
    assert end.tolist() == [90, 200]


def test_an_end_in_the_pause_moves_in_to_the_offset() -> None:
    loud = loud_in(level_of([(50, 90)], 300))
    start, end = widen(words([60], [130], [65], [80]), loud)
    assert (start.tolist(), end.tolist()) == ([50], [90])


def test_two_tokens_in_the_pause_are_both_early() -> None:
    loud = loud_in(level_of([(50, 90)], 300))
    assert widen(words([20], [80], [40], [70]), loud)[0].tolist() == [50]


def test_a_word_without_sound_stays_where_it_is() -> None:
    loud = loud_in(level_of([(50, 90)], 300))
    assert [edge.tolist() for edge in widen(whole(ints(110), ints(140)), loud)] == [[110], [140]]


def test_a_first_token_lost_far_away_comes_back() -> None:
    """Two seconds before the word somebody coughs, and the path put its first token there, half-heartedly."""
    loud = loud_in(level_of([(50, 70), (250, 300)], 400))
    start, _ = widen(words([55], [290], [265], [280], doubt=True), loud)
    assert start.tolist() == [250]


def test_a_first_token_that_is_surer_than_the_second_stays() -> None:
    loud = loud_in(level_of([(50, 70), (250, 300)], 400))
    start, _ = widen(words([55], [290], [265], [280]), loud)
    assert start.tolist() == [50]


def test_a_doubtful_last_token_comes_back_too() -> None:
    loud = loud_in(level_of([(50, 100), (250, 270)], 400))
    _, end = widen(words([55], [262], [65], [80], doubt=True), loud)
    assert end.tolist() == [100]


def test_the_name_of_a_letter_begins_long_before_its_peak() -> None:
    """An "r" is heard as "ar", its only token at the end of the sound. A longer word that starts so late is another."""
    loud = loud_in(level_of([(50, 100)], 300))
    assert widen(words([90], [95], [95], [90]), loud)[0].tolist() == [50]
    assert widen(words([90], [99], [93], [96]), loud)[0].tolist() == [90]


def test_closures_inside_a_word_do_not_end_it() -> None:
    loud = loud_in(level_of([(50, 80), (85, 100)], 300))
    assert widen(whole(ints(55), ints(83)), loud)[1].tolist() == [83]


@pytest.mark.parametrize(("pause", "end"), [(39, 149), (40, 150), (41, 150)])
def test_an_end_moves_out_by_400_ms_at_most(pause: int, end: int) -> None:
    loud = np.ones(300, bool)
    loud[110 + pause :] = False
    assert widen(words([100], [110], [103], [107]), loud)[1].tolist() == [end]


@pytest.mark.parametrize(
    ("letter", "pause", "start"),
    [(False, 20, 80), (False, 21, 100), (True, 60, 40), (True, 61, 100)],
)
def test_a_start_moves_out_by_200_ms_at_most_and_that_of_a_letter_by_600(letter: bool, pause: int, start: int) -> None:
    """Where no pause is that near, the word follows another without one, and keeps its start."""
    loud = np.ones(300, bool)
    loud[: 100 - pause] = False
    word = words([100], [110], [110], [100]) if letter else words([100], [110], [103], [107])
    assert widen(word, loud)[0].tolist() == [start]


@pytest.mark.parametrize(
    ("delays", "head"),
    [([27] * 4, 20), ([27] * 5, 60), ([27] * 2 + [4] * 17, 60), ([27] * 2 + [20] * 18, 20), ([61] * 9 + [4] * 9, 20)],
)
def test_starts_may_move_out_further_where_the_model_is_late_in_more_than_one_of_ten_words(
    delays: list[int], head: int
) -> None:
    assert longest_head(ints(*delays)) == head


def test_a_model_that_marks_words_late_has_their_starts_moved_to_the_onset() -> None:
    onsets = 100 * np.arange(1, 7)
    loud = loud_in(level_of([(onset, onset + 60) for onset in onsets.tolist()], 700))
    delay = ints(25, 27, 28, 30, 26, 45)
    late = EdgeWords(onsets + delay, onsets + 58, onsets + 50, onsets + 52, *np.zeros((2, 6), bool))
    assert widen(late, loud)[0].tolist() == onsets.tolist()
    letters = EdgeWords(late.start, late.end, late.end, late.start, late.doubt_first, late.doubt_last)
    mixed = EdgeWords(
        *(np.where(np.arange(6) < 5, *pair) for pair in zip(*map(fields_of, (letters, late)), strict=True))
    )
    assert widen(mixed, loud)[0].tolist() == [*onsets[:5].tolist(), 645], "names of letters show no delay"


@pytest.mark.parametrize(("gap", "start"), [(25, 60), (26, 86)])
def test_a_doubtful_first_token_is_parted_from_its_word_by_more_than_250_ms(gap: int, start: int) -> None:
    loud = np.zeros(300, bool)
    loud[60:70] = loud[60 + gap : 130] = True
    assert widen(words([60], [120], [60 + gap + 5], [110], doubt=True), loud)[0].tolist() == [start]


@pytest.mark.parametrize(("quiet", "end"), [(6, 105), (7, 100)])
def test_a_closure_is_shorter_than_70_ms(quiet: int, end: int) -> None:
    """An end within a closure stays in the word, one in a pause moves in."""
    loud = np.zeros(300, bool)
    loud[50:100] = loud[100 + quiet : 130] = True
    peak = 100 + quiet - 1
    found = narrow(words([60], [peak], [65], [90]), loud)[1].tolist()
    assert found == [end]


@pytest.mark.parametrize(("frames", "heard"), [(2, False), (3, True)])
def test_a_sound_lasts_30_ms(frames: int, heard: bool) -> None:
    level = np.zeros(300, np.float32)
    level[200:260] = 10.0
    level[100 : 100 + frames] = 10.0
    assert loud_in(level)[:150].any() == heard


def test_the_threshold_lies_at_a_third_of_the_way_from_quiet_to_loud() -> None:
    level = np.zeros(1000, np.float32)
    level[400:] = 10.0
    level[100:110], level[200:210] = 3.4, 3.6
    assert np.flatnonzero(loud_in(level)).tolist() == [*range(200, 210), *range(400, 1000)]


def test_the_threshold_follows_the_noise_of_the_surroundings() -> None:
    """The second minute is recorded beside a road: its pauses are as loud as half of the first minute's speech."""
    spoken = [(b, b + 60) for b in range(100, 11900, 150)]
    level = level_of(spoken, 12000)
    level[6000:] = np.maximum(level[6000:], 5 + np.random.default_rng(1).normal(0, 0.5, 6000))
    start, end = ints(*[b - 20 for b, _ in spoken]), ints(*[e - 20 for _, e in spoken])
    found, ends = widen(whole(start, end), loud_in(level))
    assert np.median(np.abs(found - start - 20)) == 0
    settled = np.abs(start - 6000) > 1500
    assert np.mean(np.abs(found - start - 20)[settled] <= 2) > 0.95
    assert np.mean(np.abs(ends - end - 20)[settled] <= 2) > 0.95


def test_a_long_pause_has_no_loud_frames() -> None:
    level = level_of([(b, b + 60) for b in range(0, 3000, 100)], 12000)
    assert not loud_in(level)[3100:].any()


def test_clicks_are_not_sound() -> None:
    level = level_of([(100, 150), (50, 52)], 300)
    assert not loud_in(level)[:100].any()


def test_nothing_to_hear() -> None:
    assert loud_in(np.zeros(0, np.float32)).tolist() == []
    start, end = widen(whole(ints(3), ints(9)), np.zeros(20, bool))
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
    doubts = rng.random((2, len(start))) < 0.5
    new_start, new_end = (widen if moved is widen else narrow)(EdgeWords(start, end, second, inner, *doubts), loud)
    assert (new_start < new_end).all()
    assert (new_start[1:] >= new_end[:-1]).all()
    assert new_start[0] >= 0
    assert new_end[-1] <= len(loud)


def test_the_larger_part_of_a_word_that_a_pause_parts() -> None:
    """Word 1 has its first token, word 2 its last in another sound; word 3 has two in each, word 4 a closure only."""
    word = np.repeat([1, 2, 3, 4], [4, 3, 4, 3])
    start = ints(10, 100, 105, 110, 150, 160, 240, 300, 310, 360, 370, 400, 430, 440)
    loud = loud_in(
        level_of([(5, 13), (95, 120), (145, 165), (235, 250), (295, 320), (355, 380), (395, 403), (425, 450)], 500)
    )
    assert list(main_parts(word, start, start + 3, loud)) == [(1, 1, 3), (2, 4, 5)]
    assert list(main_parts(word, start, start + 3, np.ones(500, bool))) == []


def test_tokens_that_are_not_spoken_part_nothing() -> None:
    word, start = np.zeros(4, np.int64), ints(-1, 100, 105, 110)
    assert list(main_parts(word, start, np.where(start < 0, -1, start + 3), np.zeros(200, bool))) == []


def test_a_sure_first_token_on_the_sound_before_does_not_begin_the_word() -> None:
    """Its posterior is higher than that of the second token, but the other four are behind a pause of a second."""
    document = spell([(0, np.nan, "three")], ["-", " ", *"ther"])
    states = np.full(100, -1, np.int32)
    states[[6, 41, 43, 45, 47]] = np.arange(5)
    path = AlignmentPath(states, *spans(states, 5), 0.0)
    sure = np.where(states == 0, 0.9, 0.5).astype(np.float32)
    aligned = Aligned(path, first_problem(document, Costs()), 1.0, 1 - sure, sure, np.ones(1), np.zeros(1, bool))
    level = level_of([(5, 22), (120, 150)], 300, noise=0.1) / 2
    level[150:157] += 1  # it fades out
    timed = time_words(document, aligned, level, Clock(0.03, 8000, 24_000))
    assert (timed.start.tolist(), timed.end.tolist()) == ([120], [157])


def faded(level: NDArray[np.float32], *words: tuple[int, int]) -> list[tuple[int, int]]:
    """Words by their CTC peaks (start, end), with the edges that the energy gives them."""
    start, end = (ints(*edges) for edges in zip(*words, strict=True))
    start, end = fade(whole(start, end), *widen(whole(start, end), loud_in(level)), levels_of(level))
    return list(zip(start.tolist(), end.tolist(), strict=True))


def test_a_word_lasts_until_it_fades_into_the_noise() -> None:
    """Its last sounds are a fifth of the way from the noise to the loud level: heard, though not loud."""
    level = level_of([(50, 90), (150, 200)], 300, noise=0.1) / 2
    level[47:50] += 1
    level[90:102] += 1
    assert faded(level, (60, 80), (155, 190)) == [(47, 102), (150, 200)]


def test_hiss_behind_a_clean_word_is_no_part_of_it() -> None:
    """Its pauses are digital silence, so the hiss is far above them; but it is 30 dB below the word."""
    level = level_of([(50, 90)], 300, noise=0.0) - np.float32(20)
    level[90:100] = -10 - 7.0
    assert faded(level, (60, 80)) == [(50, 90)]


@pytest.mark.parametrize(("rise", "end"), [([0.2, 0.2], 90), ([0.5, 0.5], 130), ([0.31, 0.34], 128)])
def test_an_end_in_noise_moves_in_over_what_is_not_heard_alone(rise: list[float], end: int) -> None:
    """As "continuous" does, whose last syllables are a fifth of the way from the noise to the loud level."""
    level = level_of([(50, 90)], 300, noise=0.05) / 4
    level[110:130] += np.tile(rise, 10).astype(np.float32)
    one = words([60], [125], [70], [115])
    new_start, new_end = fade(one, *widen(one, loud_in(level)), levels_of(level))
    assert (new_start.tolist(), new_end.tolist()) == ([50], [end])


def test_a_doubtful_last_token_on_another_sound_does_not_bring_the_end_back() -> None:
    level = level_of([(50, 90)], 300, noise=0.05) / 4
    level[130:150] += 0.5
    for doubt, end in ((True, 90), (False, 150)):
        one = words([60], [140], [70], [80], doubt=doubt)
        assert fade(one, *widen(one, loud_in(level)), levels_of(level))[1].tolist() == [end]


def test_a_fade_is_short() -> None:
    """Music behind a word is above the pauses, too; a pause before the next word leaves more room for it."""
    level = level_of([(50, 90), (130, 150)], 300, noise=0.1) / 2
    level[20:50] += 1
    level[90:130] += 1
    level[150:200] += 1
    assert faded(level, (60, 80), (135, 145)) == [(50 - FADE_IN, 90 + FADE_OUT), (130 - FADE_IN, 150 + FADE_LAST)]


@pytest.mark.parametrize(("closure", "end"), [(SHORTEST_PAUSE - 1, 90), (SHORTEST_PAUSE, 75)])
def test_a_word_before_a_pause_ends_with_the_burst_after_a_closure(closure: int, end: int) -> None:
    """As "heights" does, whose last sounds are not loud; what comes after a pause is none of its sounds."""
    level = level_of([(50, 75), (end + 20 + LONGEST_GAP, 150)], 300, noise=0.05) / 2
    level[75 + closure : 90] += 0.8
    assert faded(level, (60, 70), (end + 30 + LONGEST_GAP, 140))[0] == (50, end)


def test_a_burst_just_before_another_word_is_none_of_the_earlier_one() -> None:
    level = level_of([(50, 75), (100, 150)], 300, noise=0.05) / 2
    level[80:90] += 0.8
    assert faded(level, (60, 70), (105, 140))[0] == (50, 75)


def test_a_burst_that_noise_hides_is_heard_in_the_mean_of_its_frames() -> None:
    """Its frames are as often below what can be heard as above."""
    level = level_of([(50, 75)], 300, noise=0.05) / 2
    level[75:85] += np.tile([0.2, 0.6], 5).astype(np.float32)
    assert faded(level, (60, 70)) == [(50, 85)]


def test_no_frames_are_no_sound() -> None:
    """A recording shorter than a window."""
    silence = levels_of(np.zeros(0, np.float32))
    assert not len(last_frames(silence, audible_frames(silence)))


def test_two_frames_of_noise_are_no_burst() -> None:
    level = level_of([(50, 75)], 300, noise=0.01) / 2
    level[78:80] += 0.41
    assert faded(level, (60, 70)) == [(50, 75)]


@given(st.lists(st.integers(1, 40), min_size=4, max_size=12), st.integers(0, 2**32 - 1))
def test_fading_never_shortens_a_word_nor_enters_another(lengths: list[int], seed: int) -> None:
    edges = np.cumsum(lengths[: len(lengths) // 2 * 2])
    start, end = edges[::2].astype(np.int64), edges[1::2].astype(np.int64)
    level = np.random.default_rng(seed).normal(0, 3, int(edges[-1]) + 30).astype(np.float32)
    levels = levels_of(level)
    new_start, new_end = fade(whole(start, end), start, end, levels)
    assert (new_start <= start).all()
    assert (new_end >= end).all()
    assert (new_start[1:] >= new_end[:-1]).all()
    assert new_start[0] >= 0
    assert new_end[-1] <= len(level)
    audible = audible_frames(levels)
    assert all(audible[a:b].all() for a, b in zip(new_start, start, strict=True))
    assert all((audible | last_frames(levels, audible))[a:b].all() for a, b in zip(end, new_end, strict=True))
