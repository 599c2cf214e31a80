"""Stretches of a transcript that belong to another recording."""

from __future__ import annotations

import numpy as np
import pytest
from speech import UNITS, say, sentences

from megahour.align.choice import Refused, trusted
from megahour.align.document import spell
from megahour.align.params import AlignParams
from megahour.align.posteriors import Heard
from megahour.align.wrong_transcript import foreign_cues
from megahour.foreign.model import quantised

SURE, DOUBTFUL, ABSENT = -8.0, -2.0, np.nan


def test_a_stretch_of_doubtful_cues_is_foreign_unless_its_order_says_otherwise() -> None:
    z = np.r_[[SURE] * 30, [DOUBTFUL, ABSENT] * 15, [SURE] * 30]
    asked = []

    def order(first: int, last: int) -> float:
        asked.append((first, last))
        return 2.0

    foreign = foreign_cues(z, np.full(len(z), 20), order)
    assert asked == [(30, 59)], "from one sure cue to the next"
    assert list(np.flatnonzero(foreign)) == list(range(30, 59))
    for answer in (9.0, None):  # None: lines that are all alike have no order
        assert not foreign_cues(z, np.full(len(z), 20), lambda first, last, answer=answer: answer).any()


def test_hours_of_doubtful_cues_are_tested_in_sections() -> None:
    asked = []

    def order(first: int, last: int) -> float:
        asked.append((first, last))
        return 9.0 if first < 300 else 2.0

    foreign = foreign_cues(np.r_[[SURE] * 30, [DOUBTFUL] * 400], np.full(430, 20), order)
    assert [last - first for first, last in asked] == [100] * 4
    assert list(np.flatnonzero(foreign)) == list(range(330, 430))


def test_a_few_doubtful_cues_are_no_stretch() -> None:
    asked = []
    z = np.r_[[SURE] * 30, [DOUBTFUL] * 20, [SURE] * 30]
    assert not foreign_cues(z, np.full(len(z), 20), lambda *span: bool(asked.append(span))).any()
    assert not foreign_cues(np.full(20, DOUBTFUL), np.full(20, 20), lambda *span: bool(asked.append(span))).any()
    assert not asked


@pytest.mark.parametrize("noise", [1.5, 2.0])
def test_the_second_half_of_another_text_is_refused(noise: float) -> None:
    """A model that reads badly, and speech without text where the file goes on with another recording's."""
    rng = np.random.default_rng(9)
    spoken, other = (sentences(56, np.random.default_rng(seed), words=2) for seed in (1, 2))
    log_probs = say(spoken, np.random.default_rng(5), 0.5).log_probs
    log_probs = log_probs + rng.normal(0, noise, log_probs.shape).astype(np.float32)
    log_probs -= np.log(np.exp(log_probs).sum(axis=1, keepdims=True))
    heard = Heard(quantised(log_probs), np.zeros(1, np.float32))
    text = spell([(i, np.nan, line) for i, line in enumerate(spoken[:28] + other[28:])], UNITS)
    aligned, unsure = trusted(AlignParams(), heard, text, 0.03, doubtful=False)
    kept = aligned.spoken & ~unsure
    assert kept[:28].mean() > 0.9
    assert kept[28:].sum() <= 2


def test_the_right_first_half_of_a_long_recording_stays() -> None:
    """No anchor lies in the other text, and the piece is too large to be aligned without one."""
    spoken, other = (sentences(60, np.random.default_rng(seed)) for seed in (1, 2))
    heard = Heard(quantised(say(spoken, np.random.default_rng(5), 0.2).log_probs), np.zeros(1, np.float32))
    p = AlignParams(max_cells=2e6, anchor_every_s=3)
    text = spell([(i, np.nan, line) for i, line in enumerate(spoken[:28] + other[28:])], UNITS)
    aligned, unsure = trusted(p, heard, text, 0.03, doubtful=False)
    kept = aligned.spoken & ~unsure
    assert kept[:26].all()
    assert not kept[28:].any()
    mostly = spell([(i, np.nan, line) for i, line in enumerate(spoken[:12] + other[12:])], UNITS)
    with pytest.raises(Refused, match="no-anchors"):
        trusted(p, heard, mostly, 0.03, doubtful=False)
