"""Where recordings are cut."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megahour.align.edges import EdgeWords, levels_of, loud_frames, widen
from megahour.cut.pauses import CutLimits, Span, plan_spans
from megahour.cut.shard import raw_text

LIMITS = CutLimits(shortest=100, longest=1500, pad=30, least_pause=4, shortest_pause=9, longest_pause=300, rate_hz=100)


def plan(times: list[tuple[int, int]], parted: list[int] = [], busy: list[tuple[int, int]] = []) -> list[Span]:  # noqa: B006
    start, end = np.array(times, np.int64).reshape(-1, 2).T
    marks = np.zeros(len(times), bool)
    marks[parted] = True
    stretches = np.array(busy, np.int64).reshape(-1, 2)
    return plan_spans(start, end, marks, stretches, 100_000, LIMITS)


def words(lengths_and_pauses: list[tuple[int, int]], begin: int = 50) -> list[tuple[int, int]]:
    times = []
    for length, pause in lengths_and_pauses:
        times.append((begin, begin + length))
        begin += length + pause
    return times


def test_a_short_recording_is_one_utterance_with_padding() -> None:
    (span,) = plan(words([(40, 5), (40, 20), (40, 0)]))
    assert (span.first, span.last, span.verdict) == (0, 3, "")
    assert (span.start, span.end) == (20, 225)


def test_the_longest_pause_is_the_place_to_cut() -> None:
    times = words([(500, 12), (500, 60), (400, 15), (500, 0)])
    assert [(s.first, s.last) for s in plan(times)] == [(0, 2), (2, 4)]


def test_a_stretch_without_pauses_is_left_out_and_the_rest_kept() -> None:
    times = words([(300, 50), *[(200, 3)] * 9, (200, 60), (300, 0)])
    assert [(s.first, s.last, s.verdict) for s in plan(times)] == [
        (0, 1, ""),
        (1, 11, "too-long-without-pause"),
        (11, 12, ""),
    ]


def test_missing_text_parts_utterances_and_padding_stays_out_of_other_sound() -> None:
    times = [(100, 300), (340, 500)]
    left, right = plan(times, parted=[1], busy=[(310, 330)])
    assert (left.last, right.first) == (1, 1)
    assert (left.end, right.start) == (305, 335)


def test_a_lone_word_is_too_short() -> None:
    assert [s.verdict for s in plan([(100, 120)])] == ["too-short"]


def test_a_worse_place_to_cut_is_better_than_an_utterance_that_is_too_short() -> None:
    """The pause of half a second costs nothing, but would leave 95 samples, which are lost."""
    times = words([(900, 10), (500, 50), (40, 0)])
    assert [(s.first, s.last, s.verdict) for s in plan(times)] == [(0, 1, ""), (1, 3, "")]


def test_two_cuts_in_long_pauses_are_better_than_one_in_a_short_one() -> None:
    times = words([(900, 50), (350, 10), (350, 50), (900, 0)])
    assert [(s.first, s.last) for s in plan(times)] == [(0, 1), (1, 3), (3, 4)]


def test_nothing_to_cut() -> None:
    assert plan([]) == []


def test_without_a_pause_the_widest_gap_is_the_least_bad_place() -> None:
    times = words([(200, 2), (200, 5), (200, 7), (200, 4), (200, 6), (200, 2), (200, 2), (200, 8), (200, 0)])
    spans = plan(times)
    assert all(not span.verdict for span in spans)
    assert [span.first for span in spans] == [0, 3]
    for before, after in pairwise(spans):
        gap = times[after.first][0] - times[before.last - 1][1]
        assert gap >= LIMITS.least_pause


def test_divided_stretches_are_joined_again_as_long_as_they_fit() -> None:
    """The gap in the middle is the widest, so that each half fits: no further cut is made."""
    times = words([*[(200, 5)] * 4, (200, 8), *[(200, 5)] * 5])
    assert [(s.first, s.last) for s in plan(times)] == [(0, 5), (5, 10)]


@given(
    st.lists(st.tuples(st.integers(5, 400), st.integers(0, 400)), min_size=1, max_size=40),
    st.lists(st.integers(0, 39), max_size=4),
)
def test_every_word_is_in_one_span_and_the_limits_hold(shape: list[tuple[int, int]], marks: list[int]) -> None:
    times = words(shape)
    parted = [mark for mark in marks if mark < len(times)]
    spans = plan(times, parted)
    assert [s.first for s in spans] == [0, *[s.last for s in spans[:-1]]]
    assert spans[-1].last == len(times)
    for span, following in pairwise(spans):
        assert span.end <= following.start
    for span in spans:
        assert span.start <= times[span.first][0]
        assert span.end >= times[span.last - 1][1]
        assert times[span.first][0] - span.start <= LIMITS.pad
        if not span.verdict:
            assert LIMITS.shortest <= span.end - span.start <= LIMITS.longest
            inside = range(span.first + 1, span.last)
            assert not set(inside) & set(parted)
            assert all(times[w][0] - times[w - 1][1] <= LIMITS.longest_pause for w in inside)


def test_ends_move_out_to_the_next_pause_but_not_into_the_next_word() -> None:
    level = np.full(200, 5.0, np.float32)
    level[20:60] = level[90:190] = 15.0
    start, end, sure = np.array([24, 92, 120]), np.array([45, 110, 150]), np.zeros(3, bool)
    start, end = widen(EdgeWords(start, end, end, start, sure, sure), loud_frames(levels_of(level)))
    assert end.tolist() == [60, 120, 190]
    assert start.tolist() == [20, 90, 120]


def test_raw_text_is_the_transcripts_own_spelling() -> None:
    cues = {
        3: {
            "raw": "It cost $5, Tom!",
            "text": "it cost five dollars tom",
            "offsets": [0, 3, 8, 8, 12],
            "ends": [2, 7, 10, 10, 15],
        },
        4: {"raw": " - Yes. ", "text": "yes", "offsets": [3], "ends": [6]},
    }
    raw, start, end = raw_text([(3, 1), (3, 2), (3, 3)], cues)
    assert raw == "cost $5,"
    assert [raw[a:b] for a, b in zip(start, end, strict=True)] == ["cost", "$5", "$5"]
    raw, start, end = raw_text([(3, 4), (4, 0)], cues)
    assert raw == "Tom! - Yes."
    assert [raw[a:b] for a, b in zip(start, end, strict=True)] == ["Tom", "Yes"]
