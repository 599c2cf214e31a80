"""The rules by which a voice pronounces words that its lexicon lacks."""

from __future__ import annotations

import pytest

from megahour.corpus.generate import espeak
from megahour.tts.speaking import rules_of


def test_a_word_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def phonemes(word: str, language: str) -> list[str]:
        asked.append(word)
        return [language]

    monkeypatch.setattr(espeak, "phonemes", phonemes)
    rules = rules_of("en-us")
    assert rules is not None
    assert [rules(word) for word in ("hello", "you", "hello")] == [["en-us"]] * 3
    assert asked == ["hello", "you"]
