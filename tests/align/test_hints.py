"""Subtitle times as soft hints: what a short cue's time may decide, and what it may not."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megahour.align.ctc import Problem, align
from megahour.align.hints import expect, heed_hints

EVERY, LENGTH = 200, 60  # frames from cue to cue, and of its speech
UNITS = 12


def talk(cues: int, tokens: int = 6, seed: int = 0) -> tuple[NDArray[np.float32], Problem, NDArray[np.float64]]:
    """Posteriors of evenly spaced cues of random tokens, their text, and where they really start."""
    rng = np.random.default_rng(seed)
    text = np.concatenate([rng.permutation(np.arange(1, UNITS))[:tokens] for _ in range(cues)])
    starts = np.arange(cues) * EVERY + 100
    log_probs = np.full((cues * EVERY + 200, UNITS), np.log(0.02), np.float32)
    log_probs[:, 0] = np.log(0.8)
    for cue, start in enumerate(starts):
        for i in range(tokens):
            say(log_probs, int(start) + i * (LENGTH // tokens), int(text[cue * tokens + i]))
    bounds = np.arange(cues + 1, dtype=np.int32) * tokens
    problem = Problem(
        text.astype(np.int32), bounds, np.full(cues, 4.0 + tokens, np.float32), np.ones(cues + 1, bool), star_nats=1.0
    )
    return log_probs, problem, starts.astype(float)


def say(log_probs: NDArray[np.float32], frame: int, unit: int, probability: float = 0.9) -> None:
    log_probs[frame : frame + 3] = np.log(0.01)
    log_probs[frame : frame + 3, unit] = np.log(probability)


def hush(log_probs: NDArray[np.float32], start: float) -> None:
    """Nobody says the cue that starts here after all."""
    log_probs[int(start) - 5 : int(start) + LENGTH + 5] = np.log(0.0001)
    log_probs[int(start) - 5 : int(start) + LENGTH + 5, 0] = np.log(0.99)


def heard_elsewhere(seed: int = 0) -> tuple[NDArray[np.float32], Problem, NDArray[np.float64]]:
    """Cue 10 is mumbled in its place, and well said three seconds later, where nothing is transcribed."""
    log_probs, problem, starts = talk(30, seed=seed)
    silence = np.zeros((400, UNITS), np.float32) + np.log(0.02, dtype=np.float32)
    silence[:, 0] = np.log(0.8)
    after = int(starts[10]) + LENGTH + 10
    log_probs = np.concatenate([log_probs[:after], silence, log_probs[after:]])
    starts[11:] += 400
    for i in range(6):
        unit = int(problem.tokens[60 + i])
        mumbled = log_probs[int(starts[10]) + i * 10 :][:3]
        mumbled[:, 0], mumbled[:, unit] = np.log(0.6), np.log(0.3)
        say(log_probs, after + 200 + i * 10, unit, 0.95)
    return log_probs, problem, starts


def test_the_drift_is_followed_and_its_jitter_sets_the_tolerance() -> None:
    rng = np.random.default_rng(1)
    starts = np.arange(100, dtype=np.int32) * 100 + 500
    hints = starts - 0.3 * np.arange(100) + rng.normal(0, 4, 100)  # subtitles that run ahead more and more
    hints[50:] -= 1000  # and an advertisement that they do not know
    expected = expect(starts, hints, 30.0)
    assert expected is not None
    assert 30.0 <= expected.tolerance < 60.0
    assert not (np.abs(starts - expected.start) > expected.tolerance).any()


def test_few_hints_decide_nothing() -> None:
    starts = np.arange(40, dtype=np.int32) * 100
    hints = np.full(40, np.nan)
    hints[:5] = starts[:5] + 1000
    assert expect(starts, hints, 30.0) is None


def test_a_short_cue_is_looked_for_where_its_time_says() -> None:
    log_probs, problem, starts = heard_elsewhere()
    path = align(log_probs, problem)
    assert path.start_frames[60] > starts[10] + 150, "without times the better sound wins"
    heeded = heed_hints(log_probs, problem, path, starts + 7, 50.0)
    assert abs(heeded.start_frames[60] - starts[10]) <= 3
    others = np.delete(np.arange(30), 10) * 6
    assert np.array_equal(heeded.start_frames[others], path.start_frames[others])


def test_a_short_cue_that_is_not_there_is_left_out() -> None:
    log_probs, problem, starts = heard_elsewhere()
    hush(log_probs, starts[10])
    path = align(log_probs, problem)
    assert path.start_frames[60] > starts[10] + 150
    heeded = heed_hints(log_probs, problem, path, starts + 7, 50.0)
    assert (heeded.start_frames[60:66] == -1).all()
    assert heeded.start_frames[66] == path.start_frames[66]


def test_a_long_cue_stays_where_its_text_is() -> None:
    log_probs, problem, _ = talk(30)
    long = Problem(
        problem.tokens,
        problem.boundaries[[*range(9), *range(13, 31)]],  # cues 8 to 12 are one of 30 tokens
        problem.skip_nats[:26],
        problem.star[:27],
    )
    path = align(log_probs, long)
    hints = path.start_frames[long.boundaries[:-1]].astype(float)
    hints[8] += 500
    assert np.array_equal(heed_hints(log_probs, long, path, hints, 50.0).states, path.states)


def test_cues_on_their_hints_keep_the_path() -> None:
    log_probs, problem, starts = talk(30, seed=3)
    path = align(log_probs, problem)
    jitter = np.random.default_rng(2).normal(0, 20, 30)
    assert heed_hints(log_probs, problem, path, starts + jitter, 50.0) is path
