"""Cues of which a part is said: the rest is left out, whatever is said after it, and its words have no times."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from speech import UNITS, say, sentences

from megahour.align.confidence import Aligned, Costs, align_document
from megahour.align.ctc import cue_frames
from megahour.align.document import Document, spell
from megahour.align.params import AlignParams
from megahour.align.tables import Clock, segments_of, time_words, words_of
from megahour.foreign.model import quantised

OTHER, PLACE = 40, 20
MORE = "and please try once more now"


def aligned(
    said: list[str], written: list[str], seed: int, badly: int = -1, least_token: float = 0.3
) -> tuple[Document, Aligned]:
    rng = np.random.default_rng(seed)
    parts = [say([text], rng, 0.5 if i == badly else 0.1).log_probs for i, text in enumerate(said)]
    document = spell([(i, np.nan, text) for i, text in enumerate(written)], UNITS)
    return document, align_document(
        quantised(np.concatenate(parts)), document, Costs(skip_ratio=3.0, least_token=least_token)
    )


def said_words(document: Document, found: Aligned, cue: int) -> list[str]:
    clock = Clock(0.01, 8000, 8000 * 1000)
    level = np.zeros(len(found.frame_loss), np.float32)
    timed = time_words(document, found, level, clock)
    segments = segments_of(
        document,
        found,
        timed,
        {},
        clock,
        AlignParams(min_confidence=0.1, max_cue_loss_nats=20.0, longest_word_s=60.0, min_untranscribed_s=0.3),
        np.zeros(len(document.cues), bool),
    )
    row = segments.to_pylist()[cue]
    words = [word for word in words_of(document, found, timed, segments, clock).to_pylist() if word["cue"] == cue]
    assert row["kept"] == bool(words)
    if words:
        assert row["start_samples"] == words[0]["start_samples"] >= 0
        assert row["end_samples"] == words[-1]["end_samples"] > row["start_samples"]
        assert np.isfinite(row["loss"])
    return [word["text"] for word in words]


def texts_of(seed: int) -> list[str]:
    return sentences(OTHER, np.random.default_rng(1000 + seed), words=10)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("where", ["end", "beginning", "middle"])
def test_words_that_nobody_says_are_left_out(where: str, seed: int) -> None:
    said = texts_of(seed)
    words = said[PLACE].split()
    at = {"end": 10, "beginning": 0, "middle": 5}[where]
    written = [*said[:PLACE], " ".join([*words[:at], MORE, *words[at:]]), *said[PLACE + 1 :]]
    document, found = aligned(said, written, seed)
    assert said_words(document, found, PLACE) == words
    spoken, _ = cue_frames(found.path, document.boundaries)
    assert (spoken >= 0).all()
    assert (np.diff(spoken) > 0).all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("at", [0, 10])
def test_words_that_nobody_says_in_a_long_cue_are_left_out_though_leaving_it_out_is_dear(at: int, seed: int) -> None:
    """The path keeps the whole cue then, and its unsaid words take up the sound around: no second look comes to it."""
    said = sentences(12, np.random.default_rng(1000 + seed), words=20)
    words = said[6].split()
    written = [*said[:6], " ".join([*words[:at], MORE, *words[at:]]), *said[7:]]
    document, found = aligned(said, written, seed, least_token=2.0)
    assert said_words(document, found, 6) == words


@pytest.mark.parametrize("seed", range(5))
def test_a_fully_spoken_text_stays_whole_though_badly_recognised(seed: int) -> None:
    texts = texts_of(seed)
    document, found = aligned(texts, texts, seed, badly=PLACE)
    assert said_words(document, found, PLACE) == texts[PLACE].split()


@pytest.mark.parametrize("seed", range(5))
def test_an_end_that_nobody_says_does_not_take_up_the_next_sentence(seed: int) -> None:
    """The sentence after it has another text, of the same length as the end."""
    said = texts_of(seed)
    said[PLACE + 1] = "call me tomorrow or never again"
    written = [*said[:PLACE], f"{said[PLACE]} {MORE}", *said[PLACE + 1 :]]
    document, found = aligned(said, written, seed)
    assert said_words(document, found, PLACE) == said[PLACE].split()
    assert said_words(document, found, PLACE + 1) == said[PLACE + 1].split()


def losses(document: Document, found: Aligned) -> NDArray[np.float64]:
    return found.cue_loss[np.searchsorted(document.cues, [PLACE])]


def test_the_loss_of_a_cue_is_that_of_its_spoken_part() -> None:
    said = texts_of(9)
    written = [*said[:PLACE], f"{said[PLACE]} {MORE}", *said[PLACE + 1 :]]
    assert losses(*aligned(said, written, 9)) == pytest.approx(losses(*aligned(said, said, 9)), rel=0.3)
