"""Texts that repeat have no anchors: the times of cues cut them where the sound bears the times out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from speech import UNITS, say, sentences

from megahour.align.anchors import Anchoring, NoAnchorsError, anchors_of
from megahour.align.confidence import Costs, align_document, first_problem
from megahour.align.ctc import Problem
from megahour.align.document import Document, spell
from megahour.align.timed import with_cuts
from megahour.foreign.model import quantised

SECOND = 1000 / 30
PRAYERS = 12  # lines, said again and again
UNSAID, UNWRITTEN = (20, 77, 101), (33, 60, 88)  # of the written and of the spoken lines
FEW_CELLS = Anchoring(max_cells=3e7, second_frames=SECOND)


@cache
def prayers() -> tuple[NDArray[np.uint8], Document, NDArray[np.int64]]:
    """Posteriors, document, each cue's true frame, -1 where it is not said; one letter of eight is wrong."""
    rng = np.random.default_rng(3)
    every = sentences(PRAYERS, rng, words=4) * 12
    spoken = [line for i, line in enumerate(every) if i not in UNSAID]
    said = say(spoken, rng)
    starts = iter(said.letter_frames)
    true = np.array([-1 if i in UNSAID else next(starts)[0] for i in range(len(every))])
    written = np.array([i for i in range(len(every)) if i not in UNWRITTEN])
    text = spell([(int(i), float("nan"), every[i]) for i in written], UNITS)
    return quantised(said.log_probs), text, true[written]


def times(error_s: float) -> NDArray[np.float64]:
    _, _, true = prayers()
    near = np.where(true < 0, np.roll(true, 1), true)
    return near + np.random.default_rng(4).uniform(-error_s, error_s, len(true)) * SECOND


def problem() -> Problem:
    return first_problem(prayers()[1], Costs())


def test_accidents_of_a_repeating_text_are_no_anchors() -> None:
    """Where a line is missing, two meet that meet nowhere else in the text, but elsewhere in the sound."""
    posteriors, _, _ = prayers()
    assert anchors_of(posteriors, problem(), Anchoring(every_frames=200)) == []


@pytest.mark.parametrize("error_s", [1.0, 5.0])
def test_times_cut_a_recording_whose_lines_repeat(error_s: float) -> None:
    posteriors, text, true = prayers()
    aligned = align_document(posteriors, text, Costs(), FEW_CELLS, times(error_s))
    starts = aligned.path.start_frames[text.boundaries[:-1]]
    assert np.array_equal(aligned.spoken, true >= 0)
    assert np.abs(starts - true)[true >= 0].max() <= 10


def test_without_times_it_is_refused() -> None:
    posteriors, text, _ = prayers()
    with pytest.raises(NoAnchorsError):
        align_document(posteriors, text, Costs(), FEW_CELLS)


def test_times_that_the_sound_does_not_bear_out_cut_nothing() -> None:
    """Of another recording: the same times, other lines."""
    posteriors, _, _ = prayers()
    lines = sentences(144, np.random.default_rng(9), words=4)[: len(times(1))]
    other = spell([(i, float("nan"), line) for i, line in enumerate(lines)], UNITS)
    foreign = first_problem(other, Costs())
    assert with_cuts(posteriors, foreign, [], times(1), FEW_CELLS) == []
    assert with_cuts(posteriors, problem(), [], times(1), FEW_CELLS) != []


def test_small_stretches_and_unknown_times_are_left_as_they_are() -> None:
    posteriors, _, _ = prayers()
    small = replace(FEW_CELLS, max_cells=1e12)
    assert with_cuts(posteriors, problem(), [], times(1), small) == []
    assert with_cuts(posteriors, problem(), [], np.full(len(times(1)), np.nan), FEW_CELLS) == []
