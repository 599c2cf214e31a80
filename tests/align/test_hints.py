"""Subtitle times as soft hints: what a short cue's time may decide, and what it may not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from megahour.align.anchors import silence
from megahour.align.ctc import AlignmentPath, Problem, align, cue_frames
from megahour.align.hints import Expected, apply_hints, expect, slow_pace

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
    """Remove the speech of the cue that starts here."""
    log_probs[int(start) - 5 : int(start) + LENGTH + 5] = np.log(0.0001)
    log_probs[int(start) - 5 : int(start) + LENGTH + 5, 0] = np.log(0.99)


def heard_elsewhere(seed: int = 0) -> tuple[NDArray[np.float32], Problem, NDArray[np.float64]]:
    """Cue 10 is unclear at its place, and clear three seconds later, where nothing is transcribed."""
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


def test_misplaced_cues_do_not_determine_the_drift() -> None:
    """The path squeezed the first minute's text into a few seconds at its end; later cues agree with their times."""
    off_s = [36.5, 52.5, 49.3, 46.6, 41.5, 40.6, 30.2, 23.8, 20.8, 21.2, 12.8, 11.1, 5.7, 0.9, 0.6, 0.4, 0.6, 0.9, 0.4]
    hints = np.arange(19) * 150.0 + 20
    expected = expect((hints + np.array(off_s) * 33).astype(np.int32), hints, 50.0)
    assert expected is not None
    assert np.abs(expected.start - hints).max() < 40
    assert expected.tolerance == 50.0
    wild = np.random.default_rng(2).normal(0, 300, 19)
    expected = expect((hints + 1000 + wild).astype(np.int32), hints, 50.0)
    assert expected is not None
    assert expected.tolerance > 500


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


def test_the_tolerance_is_eight_jitters_around_the_running_median() -> None:
    """Starts are 50 frames late, by turns on time, 10 early and 10 late; two cues are not spoken, one has no hint."""
    hints = np.arange(40) * 100.0
    starts = (hints + 50 + np.array([0, 10, -10] * 14)[:40]).astype(np.int32)
    starts[[0, 20]], hints[30] = -1, np.nan
    expected = expect(starts, hints, 30.0)
    assert expected is not None
    assert expected.tolerance == 80.0
    known = np.isfinite(hints)
    np.testing.assert_array_equal(expected.start[known], hints[known] + 50)
    assert np.isnan(expected.start[30])
    calm = expect((np.arange(12) * 100).astype(np.int32), np.arange(12) * 100.0, 30.0)
    assert calm is not None, "twelve are enough"
    assert calm.tolerance == 30.0
    assert expect((np.arange(11) * 100).astype(np.int32), np.arange(11) * 100.0, 30.0) is None
    assert expect((np.arange(12) * 100).astype(np.int32), np.arange(12) * 100.0, np.inf) is None, "any time will do"


def test_only_short_spoken_cues_beyond_the_tolerance_are_off() -> None:
    bounds = np.cumsum([0, 20, 21, 5, 5, 5, 5]).astype(np.int32)
    problem = Problem(np.ones(61, np.int32), bounds, np.ones(6, np.float32), np.ones(7, bool))
    expected = Expected(np.array([100.0, 100.0, 100.0, 100.0, np.nan, 100.0]), 50.0)
    starts = np.array([0, 0, 50, 151, 500, -1], np.int32)
    assert expected.off(starts, problem).tolist() == [True, False, False, True, False, False]


def test_slow_speech_is_three_times_the_usual_pace() -> None:
    log_probs, problem, _ = talk(6)
    path = align(log_probs, problem)
    first, last = cue_frames(path, problem.boundaries)
    assert slow_pace(path, problem) == 3 * np.median((last - first) / 6)
    silent = replace(path, start_frames=np.full(36, -1, np.int32), end_frames=np.full(36, -1, np.int32))
    assert slow_pace(silent, problem) == len(path.states)


def test_a_cue_that_is_left_out_rests_and_its_neighbours_stay() -> None:
    problem = Problem(
        np.arange(1, 7, dtype=np.int32), np.array([0, 2, 4, 6], np.int32), np.ones(3, np.float32), np.ones(4, bool)
    )
    path = [~0, 0, 1, ~2, 2, ~3, 3, ~4, 4, ~5, 5, ~6, ~6]

    def left(*cues: bool) -> list[int]:
        states = np.array(path, np.int32)
        silence(states, problem, np.array(cues))
        return states.tolist()

    assert left(False, False, False) == path
    assert left(False, True, False) == [~0, 0, 1, ~2, ~2, ~2, ~2, ~4, 4, ~5, 5, ~6, ~6]
    assert left(True, False, True) == [~0, ~0, ~0, ~2, 2, ~3, 3, ~4, ~4, ~4, ~4, ~6, ~6]


def test_a_short_cue_is_looked_for_where_its_time_says() -> None:
    log_probs, problem, starts = heard_elsewhere()
    path = align(log_probs, problem)
    assert path.start_frames[60] > starts[10] + 150, "without times the better sound wins"
    heeded = apply_hints(log_probs, problem, path, starts + 7, 50.0)
    assert abs(heeded.start_frames[60] - starts[10]) <= 3
    others = np.delete(np.arange(30), 10) * 6
    assert np.array_equal(heeded.start_frames[others], path.start_frames[others])


def test_a_short_cue_that_is_not_there_is_left_out() -> None:
    log_probs, problem, starts = heard_elsewhere()
    hush(log_probs, starts[10])
    path = align(log_probs, problem)
    assert path.start_frames[60] > starts[10] + 150
    heeded = apply_hints(log_probs, problem, path, starts + 7, 50.0)
    assert (heeded.start_frames[60:66] == -1).all()
    assert heeded.start_frames[66] == path.start_frames[66]


def test_a_time_moves_a_cue_and_not_its_first_token_alone() -> None:
    """Cue 10 is spoken 90 frames after its time, at which its first token is heard, too."""
    log_probs, problem, starts = talk(30)
    at = int(starts[10])
    say(log_probs, at - 90, int(problem.tokens[60]))
    path = align(log_probs, problem)
    assert path.start_frames[60] == at
    hints = starts.copy()
    hints[10] -= 90
    heeded = apply_hints(log_probs, problem, path, hints, 100.0)
    assert np.array_equal(heeded.start_frames[60:66], path.start_frames[60:66])


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
    assert np.array_equal(apply_hints(log_probs, long, path, hints, 50.0).states, path.states)


def test_cues_on_their_hints_keep_the_path() -> None:
    log_probs, problem, starts = talk(30, seed=3)
    path = align(log_probs, problem)
    jitter = np.random.default_rng(2).normal(0, 20, 30)
    assert apply_hints(log_probs, problem, path, starts + jitter, 50.0) is path


def test_a_stretch_of_billions_of_cells_is_not_realigned(monkeypatch: pytest.MonkeyPatch) -> None:
    """60,000 frames x 60,000 tokens are more than 32 bits hold."""
    from megahour.align import hints

    size = 60_000
    problem = Problem(
        np.ones(size, np.int32), np.array([0, 10, 20, size], np.int32), np.ones(3, np.float32), np.ones(4, bool)
    )
    states = np.arange(size, dtype=np.int32)
    path = AlignmentPath(states, states, states + 1, 0.0)
    expected = hints.Expected(np.array([0.0, 5000.0, 20.0]), 60.0)
    monkeypatch.setattr(hints, "align_timed", lambda *given: pytest.fail("realigned"))
    assert hints._in_time(np.zeros((size, 2), np.uint8), problem, path, expected, 3.0) is path
