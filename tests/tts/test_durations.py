"""Phones and their durations are found again in the senones of an alignment."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megahour.core.errors import BadRecord
from megahour.tts.durations import PAUSE, SpokenPhone, means_of, spoken_phones, timing
from megahour.units.hmm import Units

UNITS = Units(
    ("SIL", "a", "b"),
    ("SIL", "a", "a before b", "b"),
    0,
    (0.25,) * 4,
    {
        "a": {"side": "right", "phones": ["b"], "yes": {"leaf": 2}, "no": {"leaf": 1}},
        "b": {"leaf": 3},
    },
)
LEXICON = {"ab": [["a", "b"]], "aa": [["a", "a"]], "b": [["b"], ["b", "a"]]}


def senones(*spoken: tuple[str, int]) -> np.ndarray:
    number = {"SIL": 0, "a": 1, "A": 2, "b": 3}
    return np.concatenate([np.full(frames, number[name], np.int16) for name, frames in spoken])


def test_phones_of_an_alignment() -> None:
    aligned = senones(("SIL", 4), ("A", 5), ("b", 3), ("SIL", 3), ("b", 6), ("a", 3))
    found = spoken_phones(aligned, ["ab", "b"], LEXICON, UNITS)
    assert [(each.phone, each.frames) for each in found] == [
        *((PAUSE, 4), ("a", 5), ("b", 3)),
        *((PAUSE, 3), ("b", 6), ("a", 3)),  # of two pronunciations the one that was spoken
    ]


def test_silence_and_noise_side_by_side_are_one_pause() -> None:
    noisy = replace(
        UNITS, senones=(*UNITS.senones, "n"), trees=UNITS.trees | {"n": {"leaf": 4}}, noises={"[noise]": "n"}
    )
    aligned = np.concatenate([senones(("SIL", 4)), np.full(5, 4), senones(("b", 3), ("SIL", 3))]).astype(np.int16)
    found = spoken_phones(aligned, ["b"], LEXICON, noisy)
    assert [(each.phone, each.frames) for each in found] == [(PAUSE, 9), ("b", 3), (PAUSE, 3)]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["ab", "b"]), st.booleans(), st.integers(3, 9)), min_size=1, max_size=6))
def test_frames_add_up(words: list[tuple[str, bool, int]]) -> None:
    spoken: list[tuple[str, int]] = []
    for word, pause, frames in words:
        spoken += [("SIL", 3 + frames)] * pause
        spoken += [("A", frames), ("b", 3)] if word == "ab" else [("b", frames)]
    aligned = senones(*spoken)
    found = spoken_phones(aligned, [word for word, _, _ in words], LEXICON, UNITS)
    assert sum(each.frames for each in found) == len(aligned)
    said = [phone.lower() for phone, _ in spoken if phone != "SIL"]
    assert [each.phone for each in found if each.phone != PAUSE] == said


@pytest.mark.parametrize(("words", "reason"), [(["b", "ab"], "not-as-aligned"), (["ab", "c"], "no-pronunciation")])
def test_another_text(words: list[str], reason: str) -> None:
    with pytest.raises(BadRecord) as refused:
        spoken_phones(senones(("A", 5), ("b", 3)), words, LEXICON, UNITS)
    assert refused.value.reason == reason


def test_the_long_phone_is_named_with_its_own_length() -> None:
    with pytest.raises(BadRecord, match=r"phone 'b' lasts 1\.20 s, phone_s is 1"):
        timing(spoken((PAUSE, 5), ("a", 9), (PAUSE, 250), ("b", 120), (PAUSE, 20)), 500, pause=8, edge=10, longest=100)


def spoken(*phones: tuple[str, int]) -> list[SpokenPhone]:
    return [SpokenPhone(*each) for each in phones]


def test_edges_are_cut_and_short_silences_are_no_pauses() -> None:
    said = spoken((PAUSE, 30), ("a", 5), (PAUSE, 4), ("b", 7), (PAUSE, 9), ("a", 6), (PAUSE, 40))
    found = timing(said, 103, pause=8, edge=10, longest=100)
    assert found.phones == [PAUSE, "a", "b", PAUSE, "a", PAUSE]
    assert found.frames.tolist() == [10, 9, 7, 9, 6, 10]
    assert (found.first, found.end) == (21, 72)  # the windows of the alignment are centred a frame later


def test_speech_without_silence_around_it() -> None:
    found = timing(spoken(("a", 5), ("b", 7)), 14, pause=8, edge=10, longest=100)
    assert found.phones == [PAUSE, "a", "b", PAUSE]
    assert found.frames.tolist() == [1, 5, 7, 1]
    assert (found.first, found.end) == (0, 14)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (spoken((PAUSE, 30)), "no-speech"),
        (spoken((PAUSE, 5), ("a", 101), (PAUSE, 5)), "badly-aligned"),
        (spoken((PAUSE, 5), ("a", 90), (PAUSE, 50)), "badly-aligned"),  # the sound is shorter
    ],
)
def test_what_no_voice_learns_from(said: list[SpokenPhone], reason: str) -> None:
    with pytest.raises(BadRecord) as refused:
        timing(said, 60 if len(said) == 3 and said[1].frames == 90 else 120, pause=8, edge=10, longest=100)
    assert refused.value.reason == reason


def test_means_over_phones() -> None:
    values = np.array([1.0, 3.0, 5.0, 5.0, 8.0])
    assert means_of(values, np.array([2, 0, 2, 1], np.int32)).tolist() == [2.0, 5.0, 5.0, 8.0]
