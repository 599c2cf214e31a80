"""Cues that an alignment does not explain are refused with their reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from speech import UNITS, say, sentences

from megahour.align.anchors import Anchoring
from megahour.align.confidence import Aligned, Costs, align_document, refusals, unforced
from megahour.align.ctc import Problem
from megahour.align.document import Document, spell
from megahour.foreign.model import quantised

RNG_SEED = 11


def made(spoken: list[str], written: list[str], costs: Costs | None = None) -> tuple[Aligned, Document]:
    text = spell([(10 * i, float("nan"), cue) for i, cue in enumerate(written)], UNITS)
    posteriors = quantised(say(spoken, np.random.default_rng(RNG_SEED), errors=0.05).log_probs)
    return align_document(posteriors, text, costs or Costs(), Anchoring(every_frames=400)), text


def why(aligned: Aligned, text: Document, loss: float = 3.0, longest: int = 100) -> list[str]:
    return [str(reason) for reason in refusals(aligned, text, max_loss_nats=loss, longest_word_frames=longest)]


def test_good_cues_have_no_reason() -> None:
    spoken = sentences(20, np.random.default_rng(RNG_SEED))
    assert why(*made(spoken, spoken)) == [""] * 20


def test_unspoken_text_is_named_so_and_text_without_anchors_differently() -> None:
    every = sentences(20, np.random.default_rng(RNG_SEED))
    aligned, text = made(every[:9] + every[10:], every)
    assert why(aligned, text) == [""] * 9 + ["unspoken"] + [""] * 10
    nowhere = replace(aligned, refused=~aligned.spoken)
    assert why(nowhere, text)[9] == "no-anchor"


def test_a_cue_spoken_differently_costs_too_much() -> None:
    """Every third letter differs. If skipping is expensive, the path keeps the cue, but it must not be trusted."""
    spoken = sentences(20, np.random.default_rng(RNG_SEED))
    wrong = "".join("z" if i % 3 == 1 and letter != " " else letter for i, letter in enumerate(spoken[7]))
    aligned, text = made(spoken, [*spoken[:7], wrong, *spoken[8:]], Costs(skip_ratio=100.0))
    assert aligned.spoken.all()
    reasons = why(aligned, text, loss=1.0)
    assert reasons[7] == "high-loss"
    assert sum(map(bool, reasons)) == 1


def test_one_endless_word_is_not_believed() -> None:
    """Sentences read as one word of fifty seconds."""
    spoken = sentences(12, np.random.default_rng(RNG_SEED))
    joined = ["".join(cue.split()) for cue in spoken]
    aligned, text = made(joined, [joined[0], joined[1] + joined[2], *joined[3:]])
    assert why(aligned, text, longest=400) == ["", "endless-word", *[""] * 9]


def test_an_anchor_inside_a_cue_that_was_better_left_out_goes() -> None:
    problem = Problem(
        np.tile(np.array([1, 2, 3, 4, 5], np.int32), 3),
        np.array([0, 5, 10, 15], np.int32),
        np.array([9.0, 9.0, 9.0], np.float32),
        np.ones(4, bool),
    )
    anchors = [(2, 100), (5, 200), (7, 300), (12, 400)]
    loss = np.array([0.5, 3.0, np.nan])  # the middle cue costs 15 nats, leaving it out 9
    assert unforced(anchors, problem, loss, 500) == [(2, 100), (5, 200), (12, 400)]


def test_an_anchor_beside_a_run_of_skipped_cues_goes_unless_the_pieces_are_too_large() -> None:
    problem = Problem(
        np.arange(1, 41, dtype=np.int32),
        np.arange(0, 41, 5, dtype=np.int32),
        np.full(8, 9.0, np.float32),
        np.ones(9, bool),
    )
    anchors, loss = [(2, 100), (27, 200), (37, 300)], np.full(8, 0.5)
    loss[2:5] = np.nan
    assert unforced(anchors, problem, loss, 400) == [(2, 100), (37, 300)]
    assert unforced(anchors, problem, loss, 40_000_000) == [(2, 100), (37, 300)]
    far = [(token, frame * 1_000_000) for token, frame in anchors]
    assert unforced(far, problem, loss, 400_000_000) == far
    loss[2] = 0.5
    assert unforced(anchors, problem, loss, 400) == anchors, "two cues may well be unspoken"


@pytest.mark.parametrize("errors", [0.4, 0.6])
def test_a_line_that_is_spoken_twice_and_written_once_costs_no_others(errors: float) -> None:
    """It is heard well where no text has it, and badly where the text does: an anchor at the wrong place."""
    lines, rng = sentences(24, np.random.default_rng(2), words=4), np.random.default_rng(RNG_SEED)
    parts = [(lines[:4], errors), ([lines[20]], 0.0), (lines[4:], errors)]
    posteriors = quantised(np.concatenate([say(spoken, rng, share).log_probs for spoken, share in parts]))
    text = spell([(i, np.nan, line) for i, line in enumerate(lines)], UNITS)
    aligned = align_document(posteriors, text, Costs(skip_ratio=3.0), Anchoring(every_frames=40))
    assert aligned.spoken.all()
