"""espeak-ng speaks the same text in the same way, whatever it spoke before."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

from megahour.core.errors import StageError
from megahour.corpus.generate import espeak
from megahour.corpus.generate.espeak import RATE_HZ, UNSTABLE, phonemes, phonemiser, speak, speaker, variants
from megahour.corpus.generate.voices import ACCENTS, VARIANTS, voice

TEXT = "on may third twenty five people paid forty dollars."


def test_words_come_in_order_with_their_times() -> None:
    samples, rate_hz, words = speak(TEXT, "en-us")
    assert rate_hz == RATE_HZ
    assert samples.dtype == np.int16
    assert [TEXT[word.offset : word.offset + word.length] for word in words] == TEXT.rstrip(".").split()
    starts = [word.start_sample for word in words]
    assert starts == sorted(starts)
    assert 2.0 < len(samples) / rate_hz < 5.0
    assert starts[-1] < len(samples)


# f2 has breath (a random generator), Alex flutter, klatt2 another synthesiser, AnxiousAndy no flutter.
@pytest.mark.parametrize("variant", ["f2", "Alex", "klatt2", "AnxiousAndy", "Alicia", "whisper"])
def test_a_clip_does_not_depend_on_earlier_speech(variant: str) -> None:
    first, _, words = speak(TEXT, "en-us", variant)
    speak("something else altogether", "en-gb-scotland", "Demonic", words_per_minute=300, pitch=90)
    with speaker("en-029", "f5") as say:
        say("one thing")
        say("and another", pitch=10)
    phonemes("thing", "fr")
    again, _, words_again = speak(TEXT, "en-us", variant)
    assert np.array_equal(first, again)
    assert words == words_again


def test_a_speaker_says_the_same_in_the_same_order() -> None:
    def session() -> list[bytes]:
        with speaker("en", "m3") as say:
            return [say(text, 160, 45).samples.tobytes() for text in ("one", "two", "one")]

    assert session() == session()


def test_speed_and_pitch_have_an_effect() -> None:
    slow, fast = (speak(TEXT, "en", words_per_minute=speed).samples for speed in (120, 240))
    assert len(slow) > 1.4 * len(fast)
    low, high = (speak(TEXT, "en", pitch=pitch).samples for pitch in (10, 90))
    assert not np.array_equal(low, high)


@pytest.mark.parametrize(
    ("word", "language", "phones"),
    [
        ("water", "en-us", ["w", "ɔː", "ɾ", "ɚ"]),
        ("don't", "en-us", ["d", "oʊ", "n", "t"]),
        ("p m", "en-us", ["p", "iː", "ɛ", "m"]),
        ("gracias", "es", ["ɡ", "ɾ", "a", "θ", "j", "a", "s"]),
        ("", "en-us", []),
    ],
)
def test_phonemes_are_phones_without_stress(word: str, language: str, phones: list[str]) -> None:
    assert phonemes(word, language) == phones


def test_unknown_and_unstable_voices_are_refused() -> None:
    with pytest.raises(StageError, match='no voice "xx-none"'):
        speak("hello", "xx-none")
    with pytest.raises(StageError, match='no voice ""'):
        phonemes("water", "")
    with pytest.raises(StageError, match='no variant "nobody"'):
        speak("hello", "en-us", "nobody")
    for variant in UNSTABLE:
        with pytest.raises(StageError, match="never sounds the same twice"):
            speak("hello", "en-us", variant)


def test_a_call_inside_a_speaker_block_is_an_error_and_no_deadlock() -> None:
    with speaker("en-us"), pytest.raises(StageError, match="already speaking"):
        phonemes("hello", "en-us")


def test_voices_are_many_distinct_and_fixed() -> None:
    assert set(VARIANTS) <= set(variants())
    assert len(set(VARIANTS)) == len(VARIANTS) >= 60
    drawn = [voice(i) for i in range(len(VARIANTS))]
    assert len({who.variant for who in drawn}) == len(VARIANTS)  # the first ones share no vocal tract
    assert {who.accent for who in drawn} == set(ACCENTS)
    assert voice(3) == voice(3)


def test_many_words_are_pronounced_as_each_alone_and_load_the_library_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays loaded from a word of letters to the next one of the same language only."""
    words = [
        "water",
        "don't",
        "зима",
        "3.5",
        "to",
        "42",
        "the",
        "U.S.",
        "read",
        "...",
        "NASA",
        "O'Neill",
        "हिन्दी",
        "a",
        "water",
    ]
    alone = [(word, language, phonemes(word, language)) for language in ("en-us", "de") for word in words]
    loads: list[None] = []
    library = espeak._library

    def counted() -> AbstractContextManager[Any]:
        loads.append(None)
        return library()

    monkeypatch.setattr(espeak, "_library", counted)
    with phonemiser() as phones:
        assert [phones(word, language) for word, language, _ in alone] == [spoken for *_, spoken in alone]
        with pytest.raises(StageError, match="no voice"):
            phones("water", "none")
        assert phones("water", "de") == alone[-1][2] != alone[0][2]
        assert len(loads) - 2 == 2 * 9  # for the first word, the four with digits or points, and the word after each
    with phonemiser() as phones:
        loads.clear()
        assert [phones(word, "en-us") for word in ("two", "three")] == [["t", "uː"], ["θ", "ɹ", "iː"]]
        assert len(loads) == 1
