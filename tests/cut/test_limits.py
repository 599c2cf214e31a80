"""Limits for the second reading, from its error rates on right and on wrong texts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from megahour.core.receipts import Counts, Receipt
from megahour.corpus.text.edit_distance import distance
from megahour.cut.limits import ReadingLimits, limits_of
from megahour.cut.params import CutParams
from megahour.cut.stage import Cut, doubts
from megahour.cut.tiers import why_dropped

P = CutParams()


def utterances(errors: float, count: int = 40, seed: int = 1) -> list[dict[str, Any]]:
    """Of 60 letters each, a share of which is read as any other."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        letters = rng.choice(list("etaoinshr"), 60)
        heard = "".join(rng.choice(list("etaoinshr")) if rng.random() < errors else letter for letter in letters)
        rows.append(row("".join(letters), heard))
    return rows


def row(text: str, heard: str, confidence: float = 0.8) -> dict[str, Any]:
    sound = {"edge_cer": 1.0, "wildcard_share": 0.0, "clipped_share": 0.0, "snr_db": 20.0}
    return {"text": text, "heard": heard, "cer": distance(text, heard) / len(text), "confidence": confidence, **sound}


def kept(rows: list[dict[str, Any]], own: ReadingLimits) -> float:
    return float(np.mean([not why_dropped(own.p, each, own)[0] for each in rows]))


@pytest.mark.parametrize("errors", [0.45, 0.55, 0.65])
def test_what_a_weak_aligner_reads_is_kept_and_what_it_reads_of_another_text_is_not(errors: float) -> None:
    rows = utterances(errors)
    own = limits_of(P, rows)
    assert own.usual > P.dirty_cer
    assert kept(rows, own) >= 0.95
    others = [row(a["text"], b["heard"]) for a, b in zip(rows, rows[1:] + rows[:1], strict=True)]
    assert kept(others, own) <= 0.05


def test_a_good_aligner_has_the_absolute_limits() -> None:
    own = limits_of(P, utterances(0.05))
    assert own.cer(40) == P.dirty_cer
    assert own.edge_cer(40) == P.dirty_edge_cer


def test_an_aligner_that_reads_nothing_has_them_too_and_is_named() -> None:
    rows = utterances(1.0)
    assert limits_of(P, rows).cer(40) == P.dirty_cer
    misread = {"characters_read": 1000, "characters_misread": 700.0}
    assert "differs from the texts in 70% of the characters" in doubts(misread)
    assert doubts({**misread, "characters_misread": 550.0}) == ""
    assert doubts({}) == ""


def test_the_remedy_for_what_was_read_otherwise_says_how_much_that_is() -> None:
    shards = [
        Receipt(n, "f", Counts(), {}, {"characters_read": 400 * n, "characters_misread": 100.0 * n}, {}) for n in (1, 2)
    ]
    assert "the aligner reads 25% of the characters wrong" in Cut().remedies(P, shards)["high-cer"]


def test_rates_of_zero_ask_for_the_absolute_limits() -> None:
    rows = utterances(0.5)
    strict = limits_of(P.model_copy(update={"false_reject": 0.0}), rows)
    assert (strict.cer(40), strict.confidence) == (P.dirty_cer, P.min_confidence)
    loose = limits_of(P.model_copy(update={"false_accept": 0.0}), rows)
    assert loose.cer(40) >= limits_of(P, rows).cer(40) > P.dirty_cer


def test_short_texts_vary_more() -> None:
    own = limits_of(P.model_copy(update={"false_accept": 0.0}), utterances(0.5))
    assert own.cer(10) > own.cer(40) > own.usual


def test_confidence_is_asked_for_as_most_of_the_recording_has_it() -> None:
    rows = [{**each, "confidence": 0.3 + 0.01 * (i % 5)} for i, each in enumerate(utterances(0.5))]
    assert 0.2 < limits_of(P, rows).confidence < 0.3
    assert limits_of(P, utterances(0.5)).confidence == P.min_confidence


def test_without_readings_nothing_is_calibrated() -> None:
    rows = [{**each, "cer": math.nan} for each in utterances(0.5, count=3)]
    assert limits_of(P, rows).cer(40) == P.dirty_cer
    assert limits_of(P, []).confidence == P.min_confidence
