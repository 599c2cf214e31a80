"""Remaining time: from the current pace, else from the last run, else unknown."""

from __future__ import annotations

import pytest

from megahour.runner.pace import Pace, run_left


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def pace(last_s: float | None, *, done: int = 0, total: int = 100) -> tuple[Pace, Clock]:
    clock = Clock()
    made = Pace(last_s, clock)
    made.begin(done, total)
    return made, clock


def test_nothing_is_known_at_first() -> None:
    made, clock = pace(None)
    clock.now += 10
    assert made.left_s() is None


def test_the_current_pace_counts_once_it_is_known() -> None:
    made, clock = pace(1000.0)
    clock.now += 10
    made.update(20, 100)
    assert (made.rate, made.left_s()) == (2.0, 40.0)
    clock.now += 15
    assert made.left_s() == 25.0, "it goes down between two shards"
    clock.now += 100
    assert made.left_s() == 0.0


def test_what_an_earlier_session_did_is_not_this_ones_pace() -> None:
    made, clock = pace(None, done=90)
    clock.now += 10
    made.update(95, 100)
    assert (made.rate, made.left_s()) == (0.5, 10.0)


def test_the_last_time_counts_before_the_first_shard() -> None:
    made, clock = pace(80.0)
    clock.now += 30
    assert made.left_s() == 50.0
    clock.now += 60
    assert made.left_s() is None, "slower than last time: by how much, nothing tells"
    resumed, _ = pace(80.0, done=75)
    assert resumed.left_s() == 20.0
    nothing, _ = pace(80.0, total=0)
    assert nothing.left_s() is None


@pytest.mark.parametrize(
    ("left", "later", "at_once", "total"),
    [
        (10.0, (5.0, 7.0), 1, (22.0, True)),
        (10.0, (), 1, (10.0, True)),
        (None, (), 1, (None, False)),
        (None, (5.0,), 1, (5.0, False)),
        (10.0, (5.0, None), 1, (15.0, False)),
        (10.0, (None, None), 1, (None, False)),
        (10.0, (5.0, 7.0), 2, (11.0, False)),
        (10.0, (30.0, 7.0), 2, (30.0, False)),
        (10.0, (), 2, (10.0, False)),
        (10.0, (None,), 2, (None, False)),
    ],
)
def test_a_run_takes_the_sum_of_what_is_known_or_its_share_of_several_at_once(
    left: float | None, later: tuple[float | None, ...], at_once: int, total: tuple[float | None, bool]
) -> None:
    assert run_left(left, later, at_once) == total
