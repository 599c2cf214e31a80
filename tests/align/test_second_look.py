"""A second look at cues that were left out: those that are said come back, those that are not stay out."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from speech import UNITS, say, sentences

from megahour.align.confidence import Costs, align_document
from megahour.align.ctc import NoPathError, Problem, align, quantise
from megahour.align.decoys import DECOYS, Place, cue_costs, decoys
from megahour.align.document import Document, spell
from megahour.align.second_look import look_again

WRONG, OTHER = 0.65, 60  # errors of a badly heard sentence; sentences of a document
PLACE = 30


def document(texts: list[str]) -> Document:
    return spell([(i, np.nan, text) for i, text in enumerate(texts)], UNITS)


def heard(texts: list[str], rng: np.random.Generator, badly: int = -1) -> NDArray[np.uint8]:
    """Posteriors of sentences said one after the other, the one at `badly` with many errors."""
    parts = [say([text], rng, WRONG if i == badly else 0.1).log_probs for i, text in enumerate(texts)]
    return quantise(np.concatenate(parts))


def is_kept(posteriors: NDArray[np.uint8], texts: list[str], cue: int) -> bool:
    return bool(align_document(posteriors, document(texts), Costs(skip_ratio=1.0, least_token=0.1)).spoken[cue])


def path_without_second_look(posteriors: NDArray[np.uint8], texts: list[str]) -> tuple[Problem, NDArray[np.bool_]]:
    written = document(texts)
    bounds = written.boundaries
    skip = (4 + 0.3 * np.diff(bounds)).astype(np.float32)
    problem = Problem(written.tokens, bounds, skip, np.ones(len(bounds), bool), 1.0, 0, written.space)
    return problem, align(posteriors, problem).start_frames[bounds[:-1]] >= 0


@pytest.mark.parametrize("seed", range(5))
def test_a_badly_heard_sentence_comes_back(seed: int) -> None:
    rng = np.random.default_rng(seed)
    texts = sentences(OTHER, rng, words=4)
    posteriors = heard(texts, rng, badly=PLACE)
    problem, before = path_without_second_look(posteriors, texts)
    assert not before[PLACE]
    path = look_again(posteriors, problem, align(posteriors, problem), np.zeros(OTHER, bool))
    after = path.start_frames[problem.boundaries[:-1]] >= 0
    assert after[PLACE]
    assert (after >= before).all()
    assert (np.diff(path.start_frames[path.start_frames >= 0]) > 0).all(), "tokens stay in their order"


@pytest.mark.parametrize("seed", range(20))
def test_text_beside_speech_that_nobody_wrote_down_stays_out(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    written, said = sentences(OTHER, rng, words=4), sentences(1, rng, words=4)
    spoken = [*written[:PLACE], *said, *written[PLACE + 1 :]]
    assert not is_kept(heard(spoken, rng), written, PLACE)


@pytest.mark.parametrize("seed", range(10))
def test_a_text_of_which_half_is_said_stays_out(seed: int) -> None:
    rng = np.random.default_rng(200 + seed)
    texts, more = sentences(OTHER, rng, words=6), sentences(1, rng, words=10)
    written = [*texts[:PLACE], f"{texts[PLACE]} {more[0]}", *texts[PLACE + 1 :]]
    assert not is_kept(heard(texts, rng), written, PLACE)


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
    place = Place.of(posteriors, problem, 0, frames, timed=False)
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
