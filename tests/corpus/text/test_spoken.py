"""Written and spoken forms, a table per language, and properties of any text in any script."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megahour.corpus.text.languages.lookup import fold
from megahour.corpus.text.markup import view
from megahour.corpus.text.normalise import Normalised, normalise

DATA = Path(__file__).parent / "data"
LANGUAGES = ("en", "es", "fr", "it", "ru", "de")
PAIRS = [
    (language, *line.split("\t"))
    for language in LANGUAGES
    for line in (DATA / f"spoken.{language}.tsv").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("language", LANGUAGES)
def test_tables_are_long_enough(language: str) -> None:
    assert len([pair for pair in PAIRS if pair[0] == language]) >= 40


@pytest.mark.parametrize(("language", "written", "spoken"), PAIRS)
def test_written_to_spoken(language: str, written: str, spoken: str) -> None:
    found = normalise(written, language)
    assert found.text == fold(spoken)
    check_places(written, found)


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_spoken_already_stays(language: str) -> None:
    said = [normalise(written, language).text for of, written, _ in PAIRS if of == language]
    assert [normalise(text, language).text for text in said] == said


def test_each_word_of_a_telephone_number_and_of_a_date_has_its_own_place() -> None:
    raw = "On May 3rd call 555-1234."
    found = normalise(raw)
    sources = [raw[a:b] for a, b in zip(found.offsets, found.ends, strict=True)]
    assert sources == ["On", "May", "3rd", "call", *"5551234"]


def test_a_number_has_the_elided_article_before_it() -> None:
    found = normalise("Dal 1900 all’8 marzo", "it")
    assert found.tokens == ["dal", "millenovecento", "all'otto", "marzo"]
    assert (found.offsets[2], found.ends[2]) == (9, 14)


def test_words_broken_across_lines() -> None:
    raw = "an exam-\nple, a well-\nknown one"
    found = normalise(raw)
    assert found.tokens == ["an", "example", "a", "well", "known", "one"]
    assert raw[found.offsets[1] : found.ends[1]] == "exam-\nple"
    assert normalise("Haus-\nund Gartenarbeit", "de").tokens == ["haus", "und", "gartenarbeit"]
    assert normalise("I was...\n...go-- going").tokens == ["i", "was", "go", "going"]


@pytest.mark.parametrize("language", ["xx", "tlh"])
def test_unknown_languages_keep_their_digits(language: str) -> None:
    assert normalise("5 foo, 3.5 % ١٢٣", language).text == "5 foo 3.5 ١٢٣"


# Any script: letters with and without case, marks, digits, no spaces, emoji, markup and what looks like it.
_PIECES = """
مرحبا بالعالم ١٢٣|שלום עולם|हिन्दी भाषा १२३|สวัสดีชาวโลก ๑๒|你好世界 二〇|こんにちは、世界。|Καλημέρα κόσμε|გამარჯობა 5|
👩‍👩‍👧 ok|é à̶b|ﷺ ½ x² Ⅷ ①|İstanbul ß ŉ|JOHN: hi|[music]|(laughs)|♪ la|<i>x</i>|&amp;|&#65;|$5.50|3–5 km|12:30|
3/4|a@b.co|#tag1|www.x.org|l'8|IV|XIX век|5 г.|1,2,3|--|-|№ 5|5 млн|*|{\\an8}|§ 7|+1 234 567|v1.2.3
"""
_SCRIPTS = st.sampled_from(_PIECES.replace("\n", "").split("|"))
_TEXTS = st.lists(_SCRIPTS | st.text(max_size=8) | st.sampled_from(list(" \n.-:'’()[]♪")), max_size=12).map("".join)


def check_places(raw: str, found: Normalised) -> None:
    """Sources are in order and inside; with the gaps between them they make up the raw text; none hides a letter."""
    assert found.offsets == sorted(found.offsets)
    rebuilt, done = "", 0
    for start, end in zip(found.offsets, found.ends, strict=True):
        assert 0 <= start < end <= len(raw)
        if end > done:
            rebuilt += raw[done : max(start, done)] + raw[max(start, done) : end]
            done = end
    assert rebuilt + raw[done:] == raw
    covered = bytearray(len(raw))
    for start, end in [*zip(found.offsets, found.ends, strict=True), *((s.start, s.end) for s in view(raw).hidden)]:
        covered[start:end] = b"\1" * (end - start)
    # ʼ alone is an apostrophe and ﾞ a mark, although Unicode calls them letters.
    letters = (char for char, is_covered in zip(raw, covered, strict=True) if char.isalnum() and not is_covered)
    lost = [char for char in letters if any(part.isalnum() for part in fold(char))]
    assert not lost, lost


@given(_TEXTS, st.sampled_from([*LANGUAGES, "xx", "ja", "ar"]))
@settings(max_examples=160)
def test_raw_text_is_recovered_from_the_places_of_its_words(raw: str, language: str) -> None:
    found = normalise(raw, language)
    check_places(raw, found)
    for token in found.tokens:
        assert token
        assert not re.search(r"\s", token)
        assert token == fold(token)


@given(_TEXTS, st.sampled_from([*LANGUAGES, "xx"]))
@settings(max_examples=120)
def test_reading_twice_changes_nothing(raw: str, language: str) -> None:
    once = normalise(raw, language).text
    assert normalise(once, language).text == once


@pytest.mark.parametrize(
    "piece",
    [*("a", "7", ".", "1.", "1,", "a-\n", "<a", "[", "(", "♪", "&a", "A: ", "\n", " ", "St. ", "a@", "JOHN X\n", "1-")],
)
def test_time_is_linear_in_the_text(piece: str) -> None:
    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        start = time.process_time()
        normalise(text)
        return time.process_time() - start

    seconds(1000)
    # Quadratic time would be 64 times as long; the machine may be busy.
    limit_s = 24 * max(min(seconds(4_000), seconds(4_000)), 0.002)
    assert any(seconds(32_000) < limit_s for _ in range(3))


def read_within(limit_s: float, text: str) -> int:
    """Tokens of `text`, whose reading takes less than `limit_s` of CPU in one of three attempts."""
    for _ in range(3):
        start = time.process_time()
        tokens = len(normalise(text).tokens)
        if time.process_time() - start < limit_s:
            return tokens
    pytest.fail(f"more than {limit_s} s for {len(text)} characters")


@pytest.mark.parametrize("endless", ["a" * 1_000_000, "." * 1_000_000, "x" + "\u0301" * 1_000_000])
def test_an_endless_word_is_read_at_once(endless: str) -> None:
    assert read_within(4, endless) <= 1  # a second on an idle core


def test_a_million_digits_are_read_one_by_one() -> None:
    assert read_within(2, "7" * 1_000_000) == 1_000_000
