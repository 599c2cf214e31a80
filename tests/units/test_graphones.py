"""The joint n-gram model of letters and phones: it learns a spelling with digraphs, silent letters and contexts."""

from __future__ import annotations

import random

import pytest

from megahour.core.errors import StageError
from megahour.units.graphones import END, START, Pronouncer


def said(word: str) -> list[str]:
    """A spelling: `sh` is one sound, `x` two, `c` depends on what follows, a last `e` is silent."""
    phones, at = [], 0
    while at < len(word):
        if word[at : at + 2] == "sh":
            phones, at = [*phones, "SH"], at + 2
            continue
        letter = word[at]
        if letter == "x":
            phones += ["K", "S"]
        elif letter == "c":
            phones.append("S" if word[at + 1 : at + 2] in ("e", "i") else "K")
        elif letter != "e" or at < len(word) - 1:
            phones.append(letter.upper())
        at += 1
    return phones


def words(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    syllables = [c + v for c in ["sh", "x", "c", "t", "m", "s", "l"] for v in "aieo"]
    return ["".join(rng.choices(syllables, k=rng.randint(2, 4))) for _ in range(count)]


@pytest.fixture(scope="module")
def pronouncer() -> Pronouncer:
    return Pronouncer({word: [said(word)] for word in words(600, 1)})


def test_new_words_are_pronounced_as_the_spelling_has_it(pronouncer: Pronouncer) -> None:
    new = sorted(set(words(150, 2)) - set(words(600, 1)))
    right = sum(pronouncer.pronounce(word) == [said(word)] for word in new)
    assert right > 0.95 * len(new)


def test_case_does_not_matter_and_unknown_letters_have_no_pronunciation(pronouncer: Pronouncer) -> None:
    assert pronouncer.pronounce("SHIMA") == pronouncer.pronounce("shima") == [["SH", "I", "M", "A"]]
    assert pronouncer.pronounce("shimq") == []
    assert pronouncer.pronounce("") == []


def test_probabilities_after_every_history_sum_to_one(pronouncer: Pronouncer) -> None:
    model = pronouncer.model
    every = [*sorted({g for each in pronouncer._spelled.values() for g in each}), END]
    for history in [(), (START,), (START, every[0]), (every[3], every[5]), (every[2],)]:
        known = model.history(history)
        assert sum(model.probability(graphone, known) for graphone in every) == pytest.approx(1)


def test_a_dictionary_that_no_spelling_fits_is_refused() -> None:
    with pytest.raises(StageError, match="no word of the dictionary has letters for its phones"):
        Pronouncer({"a": [["A", "B", "C"]]})
