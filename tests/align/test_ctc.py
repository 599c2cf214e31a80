"""The aligner against a dense dynamic programme in plain Python, for every kind of path it may take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from megahour.align.ctc import AlignmentPath, NoPathError, Problem, align
from megahour.foreign.model import quantised

BLANK, SPACE, UNITS = 0, 1, 5


def problem(cues: list[list[int]], skip: float = np.inf, star: bool = True, star_nats: float = 1.0) -> Problem:
    boundaries = np.cumsum([0, *map(len, cues)]).astype(np.int32)
    return Problem(
        np.array([token for cue in cues for token in cue], np.int32),
        boundaries,
        np.full(len(cues), skip, np.float32),
        np.full(len(cues) + 1, star),
        star_nats,
        BLANK,
        SPACE,
    )


def path_score(log_probs: NDArray[np.float64], task: Problem, path: AlignmentPath) -> float:
    """The score of a path by the rules, or -inf where it breaks one."""
    a = log_probs - log_probs.max(axis=1, keepdims=True)
    bounds = task.boundaries.tolist()
    starred = {b for b, star in zip(bounds, task.star, strict=True) if star}
    score, position, emitting = 0.0, 0, False  # position: tokens done; emitting: the last frame spoke token position-1

    def skip_to(target: int) -> float:
        """Cost of the cues between `position` and `target`; only a frame of rest may be followed by skips."""
        if target == position:
            return 0.0
        if emitting or target < position or position not in bounds or target not in bounds:
            return -np.inf
        return -float(task.skip_nats[bounds.index(position) : bounds.index(target)].sum())

    for t, state in enumerate(path.states.tolist()):
        if state >= 0 and emitting and state == position - 1:
            pass  # the token goes on
        elif state >= 0:
            merged = emitting and state > 0 and task.tokens[state] == task.tokens[state - 1]
            score += -np.inf if merged else skip_to(state)
            position, emitting = state + 1, True
        else:
            score += skip_to(~state)
            position, emitting = ~state, False
        silence = max(a[t, BLANK], -task.star_nats, a[t, SPACE]) if position in starred else a[t, BLANK]
        score += a[t, task.tokens[state]] if emitting else silence
    return score + skip_to(len(task.tokens))


def dense_best(log_probs: NDArray[np.float64], task: Problem) -> float:
    """The recursions of the module's docstring, cell by cell in float64."""
    a = log_probs - log_probs.max(axis=1, keepdims=True)
    n, bounds = len(task.tokens), task.boundaries.tolist()
    rest, emit = np.full(n + 1, -np.inf), np.full(n + 1, -np.inf)
    rest[0] = 0.0

    def skip(row: NDArray[np.float64]) -> None:
        for j, cost in enumerate(task.skip_nats):
            row[bounds[j + 1]] = max(row[bounds[j + 1]], row[bounds[j]] - cost)

    skip(rest)
    for frame in a:
        new_rest, new_emit = np.full(n + 1, -np.inf), np.full(n + 1, -np.inf)
        for u in range(n + 1):
            star = u in bounds and task.star[bounds.index(u)]
            cost = max(frame[BLANK], -task.star_nats, frame[SPACE]) if star else frame[BLANK]
            new_rest[u] = cost + max(rest[u], emit[u])
            if u < n:
                merge = u > 0 and task.tokens[u] == task.tokens[u - 1]
                new_emit[u + 1] = frame[task.tokens[u]] + max(emit[u + 1], rest[u], -np.inf if merge else emit[u])
        skip(new_rest)
        rest, emit = new_rest, new_emit
    return float(max(rest[n], emit[n]))


cue = st.lists(st.integers(1, UNITS - 1), min_size=1, max_size=4)


@settings(max_examples=60)
@given(
    cues=st.lists(cue, min_size=1, max_size=4),
    frames=st.integers(1, 24),
    every=st.integers(1, 9),
    skip=st.sampled_from([2.0, 5.5, np.inf]),
    star=st.booleans(),
    eight_bits=st.booleans(),
    seed=st.integers(0, 999),
)
def test_the_path_is_as_good_as_the_dense_best(
    cues: list[list[int]], frames: int, every: int, skip: float, star: bool, eight_bits: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, (frames, UNITS))
    log_probs = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)
    stored = quantised(log_probs) if eight_bits else log_probs
    exact = stored / -16.0 if eight_bits else log_probs.astype(np.float64)
    task = problem(cues, skip, star)
    best = dense_best(exact, task)
    if best == -np.inf:
        with pytest.raises(NoPathError, match="do not fit"):
            align(stored, task, every)
        return
    path = align(stored, task, every)
    assert path.score == pytest.approx(best, abs=1e-4)
    assert path_score(exact, task, path) == pytest.approx(best, abs=1e-4)


def test_many_tiles_are_as_one() -> None:
    """More columns than a tile has: tokens, stars and skips cross the edges of tiles."""
    rng = np.random.default_rng(2)
    log_probs = np.log(rng.dirichlet(np.full(UNITS, 0.3), 60) + 1e-5).astype(np.float32)
    cues = [rng.integers(1, UNITS, 100).tolist() for _ in range(13)]
    task = problem([*cues[:5], [2, 3, 2], *cues[5:]], skip=3.0)
    stored = quantised(log_probs)
    path = align(stored, task, 16)
    assert path.score == pytest.approx(dense_best(stored / -16.0, task), abs=1e-4)
    assert path_score(stored / -16.0, task, path) == pytest.approx(path.score, abs=1e-4)


def spell(pieces: list[int], frames_each: int = 3, sure: float = 0.9) -> NDArray[np.float32]:
    """Posteriors that say each unit for one frame and the blank for the frames after it."""
    said = np.zeros(len(pieces) * frames_each, int)
    said[::frames_each] = pieces
    probs = np.full((len(said), UNITS), (1 - sure) / (UNITS - 1))
    probs[np.arange(len(said)), said] = sure
    log_probs: NDArray[np.float32] = np.log(probs).astype(np.float32)
    return log_probs


def test_each_token_is_found_in_its_frames() -> None:
    path = align(spell([2, 3, 3, 4]), problem([[2, 3], [3, 4]]))
    assert path.start_frames.tolist() == [0, 3, 6, 9]
    assert path.end_frames.tolist() == [1, 4, 7, 10]
    assert path.states.tolist() == [0, ~1, ~1, 1, ~2, ~2, 2, ~3, ~3, 3, ~4, ~4]


def test_untranscribed_speech_goes_to_the_star_between_cues() -> None:
    path = align(spell([2, 3, 4, 4, 4, 4, 4, 2, 2, 3]), problem([[2, 3], [2, 2, 3]]))
    assert path.start_frames.tolist() == [0, 3, 21, 24, 27]


def test_an_unspoken_cue_is_skipped_and_the_others_stay() -> None:
    text = [[2, 3, 2], [4, 4, 4, 4], [3, 2, 3]]
    path = align(spell([2, 3, 2, 3, 2, 3]), problem(text, skip=8.0))
    assert path.start_frames.tolist() == [0, 3, 6, -1, -1, -1, -1, 9, 12, 15]
    assert (path.end_frames[3:7] == -1).all()


def test_a_path_longer_than_its_window_is_traced_by_widening_it() -> None:
    cues = [[2, 3, 4, 3]] * 40  # all unspoken but the first and the last: one frame jumps over 152 tokens
    path = align(spell([2, 3, 4, 3] * 2), problem(cues, skip=0.5), checkpoint_frames=4)
    assert (path.start_frames >= 0).sum() == 8


def test_eight_bits_give_the_same_path() -> None:
    rng = np.random.default_rng(7)
    spoken = rng.integers(2, UNITS, 200).tolist()
    log_probs = spell(spoken)
    task = problem([spoken[i : i + 20] for i in range(0, 200, 20)], skip=50.0)
    exact, coarse = align(log_probs, task), align(quantised(log_probs), task)
    assert np.array_equal(exact.start_frames, coarse.start_frames)


def test_empty_audio_is_refused() -> None:
    with pytest.raises(NoPathError, match="no frames"):
        align(np.zeros((0, UNITS), np.float32), problem([[2]]))
