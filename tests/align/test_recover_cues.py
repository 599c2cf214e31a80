"""A second look at cues that were left out: those that are said come back, those that are not stay out."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from speech import UNITS, say, sentences

from megahour.align.confidence import Costs, align_document
from megahour.align.ctc import Problem, align
from megahour.align.document import Document, spell
from megahour.align.recover_cues import recover_cues
from megahour.foreign.model import quantised

WRONG, OTHER = 0.65, 60  # errors of a badly heard sentence; sentences of a document
PLACE = 30


def document(texts: list[str]) -> Document:
    return spell([(i, np.nan, text) for i, text in enumerate(texts)], UNITS)


def heard(texts: list[str], rng: np.random.Generator, badly: int = -1) -> NDArray[np.uint8]:
    """Posteriors of sentences said one after the other, the one at `badly` with many errors."""
    parts = [say([text], rng, WRONG if i == badly else 0.1).log_probs for i, text in enumerate(texts)]
    return quantised(np.concatenate(parts))


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
    path = recover_cues(posteriors, problem, align(posteriors, problem), np.zeros(OTHER, bool))
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


def test_a_word_that_the_model_never_learned_comes_back_in_its_time() -> None:
    """Two of its letters are heard, and the others never anywhere: that these two are here and not elsewhere tells."""
    back = others_enough = 0
    for seed in range(6):
        rng = np.random.default_rng(300 + seed)
        texts = sentences(OTHER, rng, words=3)
        said = [*texts[:PLACE], "bkrtea", *texts[PLACE + 1 :]]
        texts[PLACE] = "xqztez"
        parts = [say([text], rng, 0.1).log_probs for text in said]
        posteriors = quantised(np.concatenate(parts))
        starts = np.cumsum([0, *map(len, parts[:-1])]).astype(float)
        problem, before = path_without_second_look(posteriors, texts)
        assert not before[PLACE]
        path, nothing, cue = align(posteriors, problem), np.zeros(OTHER, bool), problem.boundaries[PLACE]
        with_places = recover_cues(posteriors, problem, path, nothing, starts, 30.0)
        back += abs(with_places.start_frames[cue] - starts[PLACE]) < 15
        never = recover_cues(posteriors, problem, path, nothing, starts, 30.0, said_chance=0.0)
        others_enough += never.start_frames[cue] >= 0
    assert back == 6
    assert others_enough < 4, "decoys of the text alone"


@pytest.mark.parametrize("seed", range(10))
def test_a_text_less_than_half_spoken_stays_out(seed: int) -> None:
    rng = np.random.default_rng(200 + seed)
    texts, more = sentences(OTHER, rng, words=6), sentences(1, rng, words=10)
    written = [*texts[:PLACE], f"{texts[PLACE]} {more[0]}", *texts[PLACE + 1 :]]
    assert not is_kept(heard(texts, rng), written, PLACE)
