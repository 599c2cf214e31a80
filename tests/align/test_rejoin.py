"""Words across a pause from the others of their cue: when they come back, and when they stay."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from megahour.align.ctc import AlignmentPath, Problem, align, spans
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
    alone = align(log_probs[speech:], problem).states
    assert moved.states.tolist() == [~0] * speech + alone.tolist(), "the speech before the pause belongs to no line"


def test_a_last_word_in_the_speech_after_comes_back() -> None:
    log_probs, sound = heard(("right thank you ", 0.9), ("all", 0.2), ("", 0), ("all of it", 0.9))
    document, problem, path = aligned(log_probs, "right thank you all")
    assert starts(document, path)["all"] > 19 * 4 + 20
    moved = rejoin(log_probs, problem, path, document.token_word, sound, GAP)
    assert starts(document, moved)["all"] == 16 * 4
    alone, after = align(log_probs[: 19 * 4], problem).states, len(log_probs) - 19 * 4
    assert moved.states.tolist() == [*alone, *[~len(document.tokens)] * after]


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


def test_a_gap_is_between_words_of_one_line() -> None:
    """The sound beside "the price" is as long as words that could come to it; none of these is a part of its line."""
    unread = [("?" * 10, 0), ("the price", 0.9)]
    log_probs, sound = heard(("okay", 0.9), ("", 0), *unread)
    document, problem, path = aligned(log_probs, "okay", "the price")
    assert rejoin(log_probs, problem, path, document.token_word, sound, GAP) is path
    log_probs, sound = heard(("o", 0.9), ("", 0), ("?" * 10, 0), ("kay the price", 0.9))
    document, problem, path = aligned(log_probs, "okay the price")
    assert path.start_frames[:2].tolist() == [0, 4 + PAUSE + 40], "the gap is in a word"
    assert rejoin(log_probs, problem, path, document.token_word, sound, GAP) is path


def test_a_gap_has_a_least_length() -> None:
    log_probs, sound = heard(("that was all", 0.9), ("", 0), ("all ", 0.2), ("right thank you", 0.9))
    document, problem, path = aligned(log_probs, "all right thank you")
    gap = int(path.start_frames[4] - path.end_frames[2])
    assert rejoin(log_probs, problem, path, document.token_word, sound, gap) is not path
    assert rejoin(log_probs, problem, path, document.token_word, sound, gap + 1) is path


@pytest.mark.parametrize(
    ("words", "come"), [("what we sa it", True), ("what we say it", True), ("what we says it", False)]
)
def test_words_of_twelve_letters_stay(words: str, come: bool) -> None:
    said = [(f"that is {words}", 0.9), ("", 0), (f"{words} ", 0.3), ("right thank you for all", 0.9)]
    log_probs, sound = heard(*said)
    document, problem, path = aligned(log_probs, f"{words} right thank you for all")
    moved = rejoin(log_probs, problem, path, document.token_word, sound, GAP)
    assert (moved is not path) == come


@pytest.mark.parametrize("unclear", [0.0, 0.2])
def test_of_two_halves_with_as_many_letters_the_first_comes(unclear: float) -> None:
    last = ("six ten", unclear) if unclear else ("", 0)
    log_probs, sound = heard(("one two ", 0.9), last, ("", 0), ("one two ", 0.2), ("six ten", 0.9))
    document, problem, path = aligned(log_probs, "one two six ten")
    six = len(log_probs) - 7 * 4
    assert [starts(document, path)[word] for word in ("one", "six")] == [0, six]
    moved = rejoin(log_probs, problem, path, document.token_word, sound, GAP)
    assert [starts(document, moved)[word] for word in ("one", "six")] == [six - 8 * 4, six]


def test_words_come_back_from_both_sides_and_over_the_widest_gap() -> None:
    others = ("right thank you all for that", 0.9)
    log_probs, sound = heard(("sir", 0.9), ("", 0), ("sir ", 0.2), others, (" bye", 0.2), ("", 0), ("bye", 0.9))
    document, problem, path = aligned(log_probs, f"sir {others[0]} bye")
    begin = 12 + PAUSE
    assert [starts(document, path)[word] for word in ("sir", "bye")] == [0, len(log_probs) - 12]
    moved = rejoin(log_probs, problem, path, document.token_word, sound, GAP)
    assert [starts(document, moved)[word] for word in ("sir", "bye")] == [begin, begin + 16 + 29 * 4]
    two = [("sir", 0.9), ("", 0), ("", 0), ("sir ", 0.2), ("we ", 0.9), ("", 0), ("we ", 0.2), others]
    log_probs, sound = heard(*two)
    document, problem, path = aligned(log_probs, f"sir we {others[0]}")
    moved = rejoin(log_probs, problem, path, document.token_word, sound, GAP)
    begin += PAUSE
    assert [starts(document, path)[word] for word in ("sir", "we")] == [0, begin + 16]
    assert [starts(document, moved)[word] for word in ("sir", "we")] == [begin, begin + 16], "one gap of a side"


OTHERS = ("the price is what we said", 0.9)


@pytest.mark.parametrize("leading", [True, False])
@pytest.mark.parametrize(
    ("sounds", "between", "comes"),
    [
        ("??ay", "", False),  # of twenty frames, four are beside a letter that is heard
        ("??ay", "????????", True),
        ("??ay", " ? ? ? ?", True),  # spaces are no letters
        ("???y", "????????", False),  # a word of four letters and a space takes twenty frames
    ],
)
def test_sound_counts_away_from_letters_and_for_as_long_as_a_word_takes(
    leading: bool, sounds: str, between: str, comes: bool
) -> None:
    okay: Say = [(sound, 0.3) for sound in sounds]
    line = f"okay {OTHERS[0]}" if leading else f"{OTHERS[0]} okay"
    first, last = [("okay", 0.9), ("", 0.0)], [(" ", 0.9), *([(between, 0.9)] if between else []), OTHERS]
    log_probs, sound = heard(*first, *okay, *last) if leading else heard(*last[::-1], *okay, *first[::-1])
    document, problem, path = aligned(log_probs, line)
    assert (rejoin(log_probs, problem, path, document.token_word, sound, GAP) is not path) == comes


def test_how_long_words_take_is_seen_from_word_to_word_within_lines() -> None:
    """Of 29 letters those of the first line alone have pauses behind them, of 16 frames a word."""
    paused = [(word, 0.9) for each in OTHERS[0].split() for word in (each, "....")]
    for others, lines, comes in (
        (paused, [f"okay {OTHERS[0]}"], True),
        ([OTHERS, ("", 0.0), *paused], [f"okay {OTHERS[0]}", *OTHERS[0].split()], False),
    ):
        log_probs, sound = heard(("okay", 0.9), ("", 0), ("???y ", 0.3), ("????????", 0), *others)
        document, problem, path = aligned(log_probs, *lines)
        assert (rejoin(log_probs, problem, path, document.token_word, sound, GAP) is not path) == comes


@pytest.mark.parametrize(("order", "comes"), [(("x", "??ay "), True), (("??ay ", "x"), False)])
def test_other_speech_may_be_before_the_words_and_not_behind_them(order: tuple[str, str], comes: bool) -> None:
    said = [(text, 0.9 if text == "x" else 0.3) for text in order]
    log_probs, sound = heard(("okay", 0.9), ("", 0), *said, OTHERS)
    document, problem, path = aligned(log_probs, f"okay {OTHERS[0]}")
    assert (rejoin(log_probs, problem, path, document.token_word, sound, GAP) is not path) == comes


def test_words_that_are_not_spoken_stay_unspoken() -> None:
    """The recording lacks "um" and "so", as `recover_cues` found."""
    log_probs, sound = heard(("that was all", 0.9), ("", 0), ("all ", 0.2), ("right thank you", 0.9), ("", 0))
    _, without, path = aligned(log_probs, "all right thank you")
    document, problem, _ = aligned(log_probs, "so all um right thank you")
    spoken = np.r_[3:7, 10 : len(document.tokens)]
    assert document.tokens[spoken].tolist() == without.tokens.tolist()
    resting = np.append(spoken, len(document.tokens))
    resting[0] = 0
    states = np.where(path.states >= 0, spoken[np.maximum(path.states, 0)], ~resting[np.maximum(~path.states, 0)])
    path = AlignmentPath(states, *spans(states, len(document.tokens)), path.score)
    moved = rejoin(log_probs, problem, path, document.token_word, sound, GAP)
    speech = 12 * 4 + PAUSE
    assert starts(document, moved) == {
        "so": -1,
        "all": speech,
        "um": -1,
        "right": speech + 16,
        "thank": speech + 40,
        "you": speech + 64,
    }
    assert (moved.states[:speech] == ~0).all()


@pytest.mark.parametrize("leading", [True, False])
def test_pieces_without_spaces_keep_a_blank_between_two_that_are_the_same(leading: bool) -> None:
    word, others = ("ok", "keepmoving") if leading else ("go", "keepmoving")
    unclear: Say = [(piece, 0.2) for piece in word]
    first: Say = [(word, 0.9), ("", 0), ("????", 0)]
    said = [*first, *unclear, (others, 0.9)] if leading else [(others, 0.9), *unclear, *first[::-1]]
    log_probs, sound = heard(*said)
    beside = 2 * 4 + PAUSE + 6 * 4 if leading else 9 * 4
    piece, near, next_to = (beside - 4, beside - 2, beside - 1) if leading else (beside + 4, beside + 2, beside + 1)
    log_probs[next_to] = log_probs[piece]  # it is heard best in the frame beside the same piece, where it cannot be
    log_probs[near] = heard((word[1 if leading else 0], 0.15))[0][0]
    log_probs[piece] = log_probs[piece + 1]
    text = word + others if leading else others + word
    tokens = np.array([UNITS.index(piece) for piece in text], np.int32)
    words = np.array(
        [0, 0, *[1 + i // 3 for i in range(10)]] if leading else [*[i // 3 for i in range(10)], 4, 4], np.int32
    )
    problem = Problem(tokens, np.array([0, 12], np.int32), np.full(1, 100.0, np.float32), np.ones(2, bool))
    path = align(log_probs, problem)
    moved = rejoin(log_probs, problem, path, words, sound, GAP)
    assert moved is not path
    before, after = (1, 2) if leading else (9, 10)
    assert tokens[before] == tokens[after]
    assert moved.start_frames[after] - moved.end_frames[before] == 1


def test_sound_is_loud_or_a_closure_between_loud_frames() -> None:
    level = np.full(400, -8.0, np.float32)
    level[100:160] = level[164:200] = 4.0
    level[300] = 4.0  # a click
    sound = sounding(level, 133, 3.0)
    assert np.flatnonzero(sound).tolist() == list(range(33, 67))
    assert not sounding(level[:20], 8, 3.0)[-1], "an output frame may end after the recording"
