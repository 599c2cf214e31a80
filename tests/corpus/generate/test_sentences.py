"""Generated sentences: written and spoken forms agree, and the splits share no sentence."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megahour.core.errors import ConfigError
from megahour.corpus.generate.numbers import KINDS, cardinal, ordinal, written_ordinal, year
from megahour.corpus.generate.sentences import SPLITS, Sentence, parse_grammar, sentences, split_of, vocabulary
from megahour.corpus.text.normalise import normalise


def drawn(split: str, seed: int, count: int) -> list[Sentence]:
    return list(itertools.islice(sentences(split, seed), count))


def test_the_same_seed_gives_the_same_sentences() -> None:
    assert drawn("train", 7, 50) == drawn("train", 7, 50)
    assert drawn("train", 7, 50) != drawn("train", 8, 50)


def test_no_sentence_is_in_two_splits() -> None:
    spoken = {split: {sentence.spoken for sentence in drawn(split, 1, 300)} for split in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not spoken[one] & spoken[other]
    assert all(split_of(text) == split for split, texts in spoken.items() for text in texts)


def test_the_written_form_is_read_as_the_spoken_one() -> None:
    """The two come from different code: the grammar's number words, and ingest's normaliser."""
    several = drawn("train", 3, 1500)
    wrong = [sentence for sentence in several if " ".join(normalise(sentence.raw).tokens) != sentence.spoken]
    assert len(wrong) <= 3, wrong[:5]
    assert sum(any(c.isdigit() for c in sentence.raw) for sentence in several) > 200
    assert all(sentence.raw[0].isupper() or sentence.raw[0].isdigit() for sentence in several)


def test_spoken_words_are_plain() -> None:
    words = {word for sentence in drawn("lm", 2, 2000) for word in sentence.spoken.split()}
    assert all(re.fullmatch(r"[a-z]+('[a-z]+)?", word) for word in words), sorted(words)[:20]
    assert 500 < len(words) < 900
    assert len(vocabulary()) < 900


def test_unknown_split_and_broken_grammar() -> None:
    with pytest.raises(ConfigError, match='no sentence set "dev"'):
        next(sentences("dev", 0))
    with pytest.raises(ConfigError, match="no rule defines"):
        parse_grammar("sentence: the {animal} sleeps")


@pytest.mark.parametrize(
    ("number", "words"), [(0, "zero"), (17, "seventeen"), (40, "forty"), (1250, "one thousand two hundred fifty")]
)
def test_cardinals(number: int, words: str) -> None:
    assert cardinal(number) == words


def test_ordinals_and_years() -> None:
    assert [ordinal(n) for n in (1, 12, 20, 23)] == ["first", "twelfth", "twentieth", "twenty third"]
    assert [written_ordinal(n) for n in (1, 11, 22, 103)] == ["1st", "11th", "22nd", "103rd"]
    assert [year(n) for n in (1905, 1984, 2000, 2004, 2015)] == [
        "nineteen oh five",
        "nineteen eighty four",
        "two thousand",
        "two thousand four",
        "twenty fifteen",
    ]


@settings(max_examples=60)
@given(kind=st.sampled_from(sorted(KINDS)), seed=st.integers(0, 2**32))
def test_every_number_is_spoken_in_words(kind: str, seed: int) -> None:
    written, spoken = KINDS[kind](np.random.Generator(np.random.PCG64(seed)))
    assert written
    assert re.fullmatch(r"[a-z ]+", spoken)
