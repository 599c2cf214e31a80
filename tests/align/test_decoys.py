"""Decoys (other texts at a place, and other places for a text) show whether the text is spoken there."""

from __future__ import annotations

import numpy as np
import pytest
from speech import UNITS, say, sentences

from megahour.align.ctc import NoPathError, Problem, align
from megahour.align.decoys import DECOYS, CuePlace, cue_costs, decoys, deviation
from megahour.align.document import spell
from megahour.foreign.model import quantised


@pytest.mark.parametrize("seed", range(30))
def test_costs_are_those_of_the_exact_alignment(seed: int) -> None:
    rng = np.random.default_rng(seed)
    frames, tokens = int(rng.integers(1, 30)), int(rng.integers(1, 7))
    text = rng.integers(1, 5, tokens).astype(np.int32)
    posteriors = rng.integers(0, 60, (frames, 6)).astype(np.uint8)
    free = int(rng.choice([-1, 5]))
    problem = Problem(
        text, np.array([0, tokens], np.int32), np.array([np.inf], np.float32), np.ones(2, bool), 1.0, 0, free
    )
    place = CuePlace.of(posteriors, problem, 0, frames, timed=False)
    (cost,) = cue_costs(place.costs, place.rest, place.star, text[None])
    try:
        exact = -align(posteriors, problem).score
    except NoPathError:
        exact = np.inf
    assert cost == pytest.approx(exact)


def test_decoys_are_other_texts_of_the_same_length() -> None:
    rng = np.random.default_rng(0)
    text = rng.integers(1, 20, 5000).astype(np.int32)
    own = text[1000:1030].copy()
    text[3000:3030] = own
    found = decoys(text, own)
    assert DECOYS * 0.9 <= len(found) <= DECOYS
    assert found.shape[1] == 30
    assert max(np.mean(each == own) for each in found) < 0.5
    assert len(decoys(own, own)) == 0, "a document of one cue has none"


@pytest.mark.parametrize("length", [1, 2, 3])
def test_short_texts_have_decoys_too(length: int) -> None:
    text = np.random.default_rng(1).integers(1, 20, 2000).astype(np.int32)
    found = decoys(text, text[:length])
    assert len(found) > DECOYS / 2
    assert not (found == text[:length]).all(axis=1).any()


def deviations(said: bool, count: int = 150) -> list[float]:
    """Deviations of a document's texts where they are spoken, with many errors, or where something else is spoken."""
    rng = np.random.default_rng(int(said))
    texts = sentences(80, rng, words=2)
    parts = [say([text], rng, 0.6) for text in texts]
    starts = np.cumsum([0, *(len(part.log_probs) for part in parts)])
    posteriors = quantised(np.concatenate([part.log_probs for part in parts]))
    document = spell([(i, np.nan, text) for i, text in enumerate(texts)], UNITS)
    problem = Problem(
        document.tokens, document.boundaries, np.full(80, 9, np.float32), np.ones(81, bool), 1.0, 0, document.space
    )
    found = []
    for _ in range(count):
        text, place = rng.integers(0, 80, 2)
        place = text if said else place
        if said or place != text:
            frames = len(parts[place].log_probs)
            lows = [int(low) for i, low in enumerate(starts[:-1]) if i not in (text, place)]
            others = [
                CuePlace.of(posteriors, problem, low, low + frames, timed=False)
                for low in lows
                if low + frames <= len(posteriors)
            ]
            own = document.tokens[document.boundaries[text] : document.boundaries[text + 1]]
            here = CuePlace.of(posteriors, problem, int(starts[place]), int(starts[place]) + frames, timed=False)
            found.append(deviation(here, others, own, document.tokens))
    return found


def test_the_deviation_of_unspoken_texts_is_standard_normal() -> None:
    """So a limit can be set as a probability: with one in ten, about a tenth passes."""
    found = np.array(deviations(said=False))
    assert abs(found.mean()) < 0.3
    assert 0.7 < found.std() < 1.3
    assert 0.03 < np.mean(found <= -1.28) < 0.2


def test_spoken_texts_deviate_even_if_most_letters_are_misrecognised() -> None:
    assert np.mean(np.array(deviations(said=True)) <= -1.28) > 0.9


def test_without_other_places_nothing_deviates() -> None:
    rng = np.random.default_rng(0)
    text = rng.integers(1, 5, 400).astype(np.int32)
    problem = Problem(text, np.array([0, 400], np.int32), np.array([9], np.float32), np.ones(2, bool))
    place = CuePlace.of(rng.integers(0, 99, (60, 6)).astype(np.uint8), problem, 0, 60, timed=True)
    assert deviation(place, [], text[:8], text) == 0.0
