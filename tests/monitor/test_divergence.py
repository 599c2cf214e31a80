"""Healthy losses fall, scatter and change their scale with the data; only a jump that stays is a divergence."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from megahour.monitor.alerts import Alarm

Steps = list[tuple[str, float]]
"""Kinds of steps, and their losses."""


def told(steps: Steps) -> list[str]:
    """The alarm's messages for these steps."""
    said: list[str] = []
    alarm = Alarm(said.append)
    for step, (kind, loss) in enumerate(steps):
        alarm.step(step, loss, kind)
    alarm.close()
    assert alarm.wait()
    return said


def falling(steps: int, seed: int, scatter: float = 0.3, first: float = 5.7, last: float = 0.4) -> Iterator[float]:
    """Losses that decay from that of guessing; each batch has a factor of its own, one in thirty a large one."""
    made = random.Random(seed)
    for step in range(steps):
        mean = last + (first - last) * math.exp(-5 * step / steps)
        yield mean * made.lognormvariate(0, scatter) * (made.uniform(3, 6) if made.random() < 1 / 30 else 1)


@pytest.mark.parametrize("seed", range(20))
def test_batches_that_are_harder_than_others_are_no_divergence(seed: int) -> None:
    assert told([("", loss) for loss in falling(600, seed)]) == []


def test_one_hard_batch_is_no_divergence() -> None:
    """As seen in the demo: 3.056 where 0.9 was usual, in one step of a good run."""
    assert told([("", loss) for loss in [*[0.9] * 50, 3.056, *[0.9] * 50]]) == []


@pytest.mark.parametrize("seed", range(5))
def test_data_of_another_scale_are_compared_with_their_own(seed: int) -> None:
    """A student's sub-epochs: a teacher's targets, at 0.3, in turn with labels, at 2.4; at last whole utterances."""
    soft, hard, whole = (falling(400, seed + i, 0.2, last, last) for i, last in enumerate((0.3, 2.4, 9.0)))
    steps: Steps = []
    for _ in range(6):
        steps += [("unlabelled, in chunks", next(soft)) for _ in range(40)]
        steps += [("labelled, in chunks", next(hard)) for _ in range(15)]
    assert told([*steps, *(("labelled, whole utterances", next(whole)) for _ in range(40))]) == []


def test_a_learning_rate_that_falls_or_rises_again_is_no_divergence() -> None:
    """The loss halves where the rate falls, and a warm restart brings it back to twice as much for a while."""
    losses = [*falling(200, 1, 0.2, 5.0, 1.0), *falling(200, 2, 0.2, 0.5, 0.5), *falling(200, 3, 0.2, 1.0, 0.5)]
    assert told([("", loss) for loss in losses]) == []


def test_losses_near_zero_may_be_many_times_the_usual_one() -> None:
    """As seen with minutes of speech learnt by heart: 0.02 for ten steps where 0.005 was usual, after a start at 2."""
    learnt = [*[2.0] * 50, *falling(200, 3, 0.1, 2.0, 0.005), *[0.005] * 200]
    assert told([("", loss) for loss in [*learnt, *[0.02] * 20, *[0.005] * 50]]) == []
    (said,) = told([("", loss) for loss in [*learnt, *[0.2] * 20]])
    assert "the loss diverges: 0.2 over" in said


def test_a_jump_that_stays_is_reported_once_with_the_usual_loss_and_a_remedy() -> None:
    before = [("labelled", loss) for loss in falling(200, 1, 0.2, 1.0, 1.0)]
    (said,) = told([*before, *(("labelled", 10 * loss) for loss in falling(300, 2, 0.2, 1.0, 1.0))])
    assert said.startswith("step 20"), "within ten steps"
    assert "(labelled): the loss diverges: " in said
    assert "usually 1.0" in said
    assert "up to 3 times that would be normal" in said
    assert "go back to a checkpoint and lower the learning rate" in said


def test_a_jump_that_begins_with_data_of_another_kind_is_reported() -> None:
    steps: Steps = [("soft", 0.3)] * 40 + [("hard", 2.0)] * 20 + [("soft", 0.3)] * 40
    (said,) = told([*steps, *[("hard", 20.0)] * 20])
    assert said.startswith("step 105 (hard): the loss diverges: 20 ")


def test_a_log_likelihood_diverges_by_its_distance() -> None:
    assert len(told([*[("", -40.0)] * 50, *[("", 60.0)] * 20])) == 1
    assert told([*[("", -40.0)] * 50, *[("", -20.0)] * 20]) == []


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("after", [0, 5, 100])
def test_a_loss_that_is_not_finite_is_told_at_once(loss: float, after: int) -> None:
    (said,) = told([*[("", 1.0)] * after, ("", loss), ("", loss)])
    assert said.startswith(f"step {after}: the loss is {loss}")


def test_losses_that_are_not_finite_now_and_then_are_one_problem() -> None:
    """NaN losses among good ones raise one alarm; it ends when `patience` good losses have followed."""
    poisoned = [("", 1.0), ("", 1.0), ("", math.nan)] * 20
    assert len(told(poisoned)) == 1
    assert len(told([*poisoned, *[("", 1.0)] * 11, *poisoned])) == 2


def test_a_second_jump_is_told_after_the_first_was_over() -> None:
    low, high = [("", 1.0)] * 40, [("", 9.0)] * 40
    assert len(told([*low, *high, *low, *high])) == 2
