"""Anchored alignment: the same answer as the exact one, with refusal of what cannot be trusted."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from speech import UNITS, say, sentences

from megahour.align.anchors import Anchoring, NoAnchorsError, align_pieces, anchors_of, silence
from megahour.align.confidence import Costs, align_document, inner_frames, word_frames
from megahour.align.ctc import NoPathError, Problem, align
from megahour.align.document import Document, spell
from megahour.foreign.model import quantised

ANCHORED = Anchoring(every_frames=400)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def document(cues: list[str]) -> Document:
    return spell([(i, float("nan"), text) for i, text in enumerate(cues)], UNITS)


def flawed(
    seed: int, count: int, unspoken: float, untranscribed: float, errors: float
) -> tuple[NDArray[np.uint8], Document]:
    """Posteriors of `count` sentences, and a transcript with some of them missing and some that nobody said."""
    rng = np.random.default_rng(seed)
    every = sentences(count, rng)
    fate = rng.random(count)
    said = [text for text, draw in zip(every, fate, strict=True) if draw >= unspoken]
    written = [text for text, draw in zip(every, fate, strict=True) if draw <= 1 - untranscribed]
    return quantised(say(said, rng, errors).log_probs), document(written)


@settings(max_examples=12)
@given(
    seed=st.integers(0, 10_000),
    unspoken=st.sampled_from([0.0, 0.1, 0.2]),
    untranscribed=st.sampled_from([0.0, 0.1, 0.2]),
    errors=st.sampled_from([0.02, 0.12, 0.25]),
)
def test_the_anchored_answer_is_the_exact_one(seed: int, unspoken: float, untranscribed: float, errors: float) -> None:
    """Scores equal but for what the cuts cost: an anchor's token starts at its frame, a frame early or late at most."""
    posteriors, text = flawed(seed, 40, unspoken, untranscribed, errors)
    anchored = align_document(posteriors, text, Costs(), ANCHORED)
    exact = align_document(posteriors, text, Costs(), ANCHORED, exact=True)
    assert anchored.skip_token == exact.skip_token
    assert anchored.spoken.tolist() == exact.spoken.tolist()
    assert exact.path.score - 4.0 <= anchored.path.score <= exact.path.score + 1e-3
    starts = text.boundaries[:-1][exact.spoken]
    away = np.abs(anchored.path.start_frames[starts] - exact.path.start_frames[starts])
    assert away.max(initial=0) <= 1


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), errors=st.sampled_from([0.05, 0.3]))
def test_reusing_the_anchors_changes_nothing(seed: int, errors: float) -> None:
    """Calibration in one go gives what two whole alignments give, the second with the costs found by the first."""
    posteriors, text = flawed(seed, 30, 0.1, 0.1, errors)
    once = align_document(posteriors, text, Costs(), ANCHORED)
    fixed = Costs(skip_token=once.skip_token, least_token=once.skip_token)
    again = align_document(posteriors, text, fixed, ANCHORED)
    assert again.path.states.tolist() == once.path.states.tolist()
    assert again.path.score == once.path.score


def test_a_piece_too_large_is_refused_and_the_rest_stays(rng: np.random.Generator) -> None:
    """A third of the transcript belongs to something else: no anchors there, and more cells than allowed."""
    spoken = sentences(60, rng)
    said = say(spoken, rng, errors=0.05)
    posteriors, text = quantised(said.log_probs), document([*spoken[:20], *sentences(20, rng), *spoken[40:]])
    aligned = align_document(posteriors, text, Costs(), Anchoring(every_frames=400, max_cells=1e6))
    assert 20 <= aligned.refused.sum() <= 26
    assert aligned.refused[21:39].all()
    assert not aligned.spoken[aligned.refused].any()
    assert aligned.spoken[:17].all()
    assert aligned.spoken[43:].all()
    true = np.array([frames[0] for frames in said.letter_frames])
    found = aligned.path.start_frames[text.boundaries[:-1]]
    sure = np.flatnonzero(aligned.spoken)
    assert np.median(np.abs(found - true)[sure]) <= 1


def test_frames_inside_a_refused_cue_rest_before_it() -> None:
    """An anchor may have cut it in two; the rest before its first token, and what others speak, stays."""
    boundaries = np.array([0, 2, 4, 6], np.int32)
    problem = Problem(np.arange(1, 7, dtype=np.int32), boundaries, np.ones(3, np.float32), np.ones(4, bool))
    path = [~0, 0, 1, ~2, 2, ~3, 3, ~4, 4, ~5, 5, ~6, ~6]

    def silenced(*refused: bool) -> list[int]:
        states = np.array(path, np.int32)
        silence(states, problem, np.array(refused))
        return states.tolist()

    assert silenced(False, False, False) == path
    assert silenced(False, True, False) == [~0, 0, 1, ~2, ~2, ~2, ~2, ~4, 4, ~5, 5, ~6, ~6]
    assert silenced(True, False, True) == [~0, ~0, ~0, ~2, 2, ~3, 3, ~4, ~4, ~4, ~4, ~6, ~6]


def test_mostly_refused_is_refused_altogether(rng: np.random.Generator) -> None:
    spoken = sentences(40, rng)
    text = document([*spoken[:9], *sentences(31, rng)])
    with pytest.raises(NoAnchorsError, match="without an anchor"):
        align_document(quantised(say(spoken, rng).log_probs), text, Costs(), Anchoring(every_frames=400, max_cells=1e6))


def test_a_wrong_anchor_that_leaves_no_path_is_dropped(rng: np.random.Generator) -> None:
    spoken = sentences(20, rng)
    posteriors, text = quantised(say(spoken, rng, errors=0.02).log_probs), document(spoken)
    cues = len(spoken)
    problem = Problem(
        text.tokens, text.boundaries, np.full(cues, np.inf, np.float32), np.ones(cues + 1, bool), free=text.space
    )
    anchors = anchors_of(posteriors, problem, ANCHORED)
    token, frame = anchors[1]
    squeezed = [anchors[0], (token, anchors[0][1] + 5), *anchors[2:]]
    path, refused = align_pieces(posteriors, problem, squeezed, ANCHORED)
    assert not refused.any()
    assert path.score == pytest.approx(align(posteriors, problem).score, abs=4.0)
    assert abs(int(path.start_frames[token]) - frame) <= 1


def test_fewer_frames_than_tokens_are_refused() -> None:
    """80 ms frames and fast speech: not even the shortest path fits when cues must be spoken."""
    tokens = np.arange(1, 41, dtype=np.int32) % 7 + 1
    problem = Problem(tokens, np.array([0, 40], np.int32), np.full(1, np.inf, np.float32), np.ones(2, bool))
    with pytest.raises(NoPathError, match="40 tokens do not fit in 20 frames"):
        align(np.full((20, 9), 30, np.uint8), problem)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_thousand_units_and_frames_of_80_ms(rng: np.random.Generator, dtype: type) -> None:
    """Subwords: a token every second frame."""
    words = rng.integers(1, 1024, 600).astype(np.int32)
    words[1:] += words[1:] == words[:-1]
    log_probs = rng.normal(-9, 0.5, (1300, 1025)).astype(np.float32)
    log_probs[:, 0] = -0.1
    true = 40 + 2 * np.arange(600)
    log_probs[true, 0], log_probs[true, words] = -8, -0.1
    bounds = np.arange(0, 601, 20, dtype=np.int32)
    problem = Problem(words, bounds, np.full(30, 80, np.float32), np.ones(31, bool))
    posteriors = quantised(log_probs) if dtype == np.uint8 else log_probs
    assert align(posteriors, problem).start_frames.tolist() == true.tolist()


def test_an_endless_unspoken_word_is_skipped(rng: np.random.Generator) -> None:
    """A text without spaces or cues is one cue. It does not fit in the frames, and nothing is guessed."""
    endless = "".join(sentences(40, rng)).replace(" ", "")
    posteriors, text = quantised(say(sentences(10, rng), rng).log_probs), document([endless])
    aligned = align_document(posteriors, text, Costs(), ANCHORED)
    assert len(text.words) == 1
    assert not aligned.spoken.any()
    assert aligned.median_loss == np.inf
    must_be_spoken = replace(aligned.problem, skip_nats=np.full(1, np.inf, np.float32))
    with pytest.raises(NoPathError, match="do not fit"):
        align(posteriors[:500], must_be_spoken)


def test_inner_frames_are_those_of_the_tokens_beside_the_edges() -> None:
    text = spell([(0, float("nan"), "abc d")], UNITS)
    index = [UNITS.index(letter) for letter in "abc d"]
    log_probs = np.full((30, len(UNITS)), -8, np.float32)
    log_probs[:, 0] = -0.1
    for frame, unit in zip([3, 9, 14, 18, 22], index, strict=True):
        log_probs[frame, 0], log_probs[frame, unit] = -8, -0.1
    path = align_document(log_probs, text, Costs()).path
    start, end = word_frames(path, text)
    second, inner = inner_frames(path, text)
    assert (start.tolist(), end.tolist()) == ([3, 22], [15, 23])
    assert (second.tolist(), inner.tolist()) == ([9, 23], [10, 22])


def test_pieces_cover_the_recording(rng: np.random.Generator) -> None:
    posteriors, text = flawed(3, 40, 0.1, 0.1, 0.12)
    path = align_document(posteriors, text, Costs(), ANCHORED).path
    tokens = np.where(path.states >= 0, path.states, ~path.states)
    assert (np.diff(tokens) >= 0).all()
    assert all(begin < end for begin, end in pairwise(path.start_frames[path.start_frames >= 0].tolist()))


def test_kernels_compile_where_no_cache_can_be_written() -> None:
    """A read-only installation used by an account without a home."""
    program = (
        "namespace = {}\n"
        "exec(compile('def twice(x):\\n    return 2 * x\\n', '/proc/nowhere/kernel.py', 'exec'), namespace)\n"
        "from megahour.core.compiled import compiled\n"
        "print(compiled(namespace['twice'])(21))\n"
    )
    environment = {**os.environ, "HOME": "/proc/nowhere", "XDG_CACHE_HOME": "/proc/nowhere"}
    environment.pop("NUMBA_CACHE_DIR", None)
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "42\n"), run.stderr
