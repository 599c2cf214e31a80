"""Words across a pause from the others of their cue: when they come back, and when they stay."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from megahour.align.ctc import AlignmentPath, Problem, align
from megahour.align.document import Document, spell
from megahour.align.rejoin import rejoin, sounding

UNITS = ["<blank>", " ", *"abcdefghijklmnopqrstuvwxyz"]
PAUSE = 60  # frames; a letter has 4, of which it is heard in the first
GAP = 25

Say = list[tuple[str, float]]
"""Texts and how probable each of their letters is; "" is a pause, and "?" the sound of a letter that is not heard."""


def heard(*said: tuple[str, float]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Log posteriors (T, V), and in which frames there is sound."""
    rows, sound = [], []
    for text, probability in said:
        for letter in text or "." * (PAUSE // 4):
            row = np.full((4, len(UNITS)), 0.001)
            row[:, 0] = 0.97
            if letter in UNITS:
                row[0] = (1 - probability) / len(UNITS)
                row[0, UNITS.index(letter)] += probability
                row[0, 0] += max(0.0, 0.9 - probability)  # of an unclear letter the blank is more probable
            rows.append(row / row.sum(axis=1, keepdims=True))
            sound += [letter != "."] * 4
    return np.log(np.concatenate(rows)).astype(np.float32), np.array(sound)


def aligned(log_probs: NDArray[np.float32], *lines: str) -> tuple[Document, Problem, AlignmentPath]:
    document = spell([(i, np.nan, line) for i, line in enumerate(lines)], UNITS)
    cues = len(lines)
    costs = np.full(cues, 100.0, np.float32)
    problem = Problem(document.tokens, document.boundaries, costs, np.ones(cues + 1, bool), free=document.space)
    return document, problem, align(log_probs, problem)


def starts(document: Document, path: AlignmentPath) -> dict[str, int]:
    first = {word: int(np.flatnonzero(document.token_word == i)[0]) for i, word in enumerate(document.words)}
    return {word: int(path.start_frames[token]) for word, token in first.items()}


def test_a_first_word_in_the_speech_before_comes_back_over_the_pause() -> None:
    log_probs, sound = heard(("that was all", 0.9), ("", 0), ("all ", 0.2), ("right thank you", 0.9), ("", 0))
    document, problem, path = aligned(log_probs, "all right thank you")
    assert starts(document, path)["all"] < 12 * 4, "where it is heard better"
    moved = rejoin(log_probs, problem, path, document.token_word, sound, GAP)
    speech = 12 * 4 + PAUSE
    assert starts(document, moved) == {"all": speech, "right": speech + 16, "thank": speech + 40, "you": speech + 64}
    assert (moved.states[:speech] == ~0).all(), "the speech before the pause belongs to no line"


def test_a_last_word_in_the_speech_after_comes_back() -> None:
    log_probs, sound = heard(("right thank you ", 0.9), ("all", 0.2), ("", 0), ("all of it", 0.9))
    document, problem, path = aligned(log_probs, "right thank you all")
    assert starts(document, path)["all"] > 19 * 4 + 20
    moved = rejoin(log_probs, problem, path, document.token_word, sound, GAP)
    assert starts(document, moved)["all"] == 16 * 4
    assert (moved.states[19 * 4 :] == ~len(document.tokens)).all()


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ([], "there is no sound beside the others"),
        ([("?", 0)], "the sound is too short"),
        ([("xyzx", 0.9)], "other letters are heard there"),
    ],
)
def test_a_word_before_a_pause_of_the_speaker_stays(after: Say, why: str) -> None:
    log_probs, sound = heard(("", 0), ("okay", 0.9), ("", 0), *after, ("the price", 0.9))
    document, problem, path = aligned(log_probs, "okay the price")
    assert starts(document, path)["okay"] == PAUSE
    assert rejoin(log_probs, problem, path, document.token_word, sound, GAP) is path, why


def test_the_sound_beside_the_others_is_worth_a_star_a_frame() -> None:
    """The word costs some 24 nats more there: it comes back if the sound has more frames than that."""
    for frames, comes in ((16, False), (40, True)):
        unclear = [("o", 0.004), ("k", 0.004), ("a", 0.004), ("y ", 0.004), ("?" * (frames // 4 - 5), 0)]
        log_probs, sound = heard(("okay", 0.9), ("", 0), *unclear, ("the price", 0.9))
        document, problem, path = aligned(log_probs, "okay the price")
        moved = rejoin(log_probs, problem, path, document.token_word, sound, GAP)
        assert (moved is not path) == comes


def test_many_letters_stay() -> None:
    """A few fit anywhere, twelve do not."""
    said = [("that is what we say", 0.9), ("", 0), ("what we say ", 0.3), ("right thank you for all", 0.9)]
    log_probs, sound = heard(*said)
    document, problem, path = aligned(log_probs, "what we say right thank you for all")
    moved = rejoin(log_probs, problem, path, document.token_word, sound, GAP)
    assert starts(document, moved)["what"] == 19 * 4 + PAUSE, "eleven and a space"
    longer = "that is what we say right thank you for all"
    document, problem, path = aligned(log_probs, longer)
    assert rejoin(log_probs, problem, path, document.token_word, sound, GAP) is path


def test_short_gaps_and_gaps_full_of_sound_are_no_pauses() -> None:
    log_probs, sound = heard(("that was all", 0.9), ("", 0), ("all ", 0.2), ("right thank you", 0.9))
    document, problem, path = aligned(log_probs, "all right thank you")
    assert rejoin(log_probs, problem, path, document.token_word, sound, 200) is path
    assert rejoin(log_probs, problem, path, document.token_word, np.ones_like(sound), GAP) is path


def test_sound_is_loud_or_a_closure_between_loud_frames() -> None:
    level = np.full(400, -8.0, np.float32)
    level[100:160] = level[164:200] = 4.0
    level[300] = 4.0  # a click
    sound = sounding(level, 133, 3.0)
    assert np.flatnonzero(sound).tolist() == list(range(33, 67))
    assert not sounding(level[:20], 8, 3.0)[-1], "an output frame may end after the recording"
