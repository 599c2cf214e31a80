"""Texts and SSML become phones and pauses; what cannot be said is counted."""

from __future__ import annotations

import pytest

from megahour.core.errors import BadRecord, ConfigError
from megahour.tts.durations import PAUSE
from megahour.tts.phones import Pronounce, from_x_sampa, known_phones
from megahour.tts.script import MOST_SYMBOLS, MOST_WORDS, PARAGRAPH_S, SENTENCE_S, Reader, SpokenPiece

SYMBOLS = ["", PAUSE, *"abcdefghijklmnopqrstuvwxyz", "ə"]


def reader() -> Reader:
    """Spells."""
    return Reader(Pronounce(SYMBOLS, {"LATIN"}, list, {}), "en")


def said(text: str) -> list[SpokenPiece]:
    return list(reader().pieces(text))


def shown(piece: SpokenPiece) -> str:
    return "".join("_" if symbol == PAUSE else symbol for symbol in piece.symbols)


def test_signs_without_words_are_counted() -> None:
    read = reader()
    (piece,) = read.pieces("☃ hi → $5, 20 % «x» ☃")
    assert shown(piece) == "_hi_fivedollars_twentypercent_x_".replace("hi_", "hi")
    assert read.unread == {"☃": 2, "→": 1}
    assert not read.left_out


def test_marks_make_pauses_and_pieces() -> None:
    first, second, third = said("Hi, you (there)!  A cat.\n\nIt sat")
    assert [shown(piece) for piece in (first, second, third)] == ["_hi_you_there_", "_acat_", "_itsat_"]
    assert (first.after_s, second.after_s, third.after_s) == (SENTENCE_S, PARAGRAPH_S, 0.0)
    assert first.text == "hi you there"


def test_numbers_and_abbreviations_are_read_aloud() -> None:
    (only,) = said("Dr. Lee has 2.5 cats")
    assert only.text == "doctor lee has two point five cats"


def test_a_speaker_label_is_spoken() -> None:
    assert [piece.text for piece in said("Mary: come here")] == ["mary come here"]


def test_a_long_sentence_is_spoken_in_parts() -> None:
    parts = said("word " * (2 * MOST_WORDS + 3))
    assert [len(piece.text.split()) for piece in parts] == [MOST_WORDS, MOST_WORDS, 3]
    (one, _) = said("word " * MOST_WORDS + ". Next")
    assert one.after_s == SENTENCE_S


def test_many_phones_are_spoken_in_parts() -> None:
    """A piece is held in memory as a whole."""
    spelt = said("{" + "a " * (2 * MOST_SYMBOLS + 1) + "}. b")
    assert [(len(piece.symbols) - 2, piece.after_s) for piece in spelt] == [
        (MOST_SYMBOLS, 0.0),
        (MOST_SYMBOLS, 0.0),
        (1, SENTENCE_S),
        (1, 0.0),
    ]
    assert max(len(piece.symbols) for piece in said("{h ə} {l o}, " * MOST_SYMBOLS)) < MOST_SYMBOLS


def test_a_full_stop_before_a_comma_ends_no_piece() -> None:
    (only,) = said("Cats etc., and the U.S.A.; then")
    assert shown(only) == "_catsetcetera_andtheusa_then_"


def test_paragraphs_of_files_from_windows() -> None:
    one, other = said("a cat.\r\n\r\nit sat\r\n")
    assert (one.text, one.after_s, other.text) == ("a cat", PARAGRAPH_S, "it sat")


def test_open_braces_are_read_at_once() -> None:
    assert said("{ " * 100_000) == []  # trying each of them with all that follow takes minutes


def test_phones_in_braces() -> None:
    (only,) = said("say {h ə l o}, {b @ t} {ˈhə.lo}")
    assert shown(only) == "_sayhəlo_bəthəlo_"
    assert from_x_sampa('h @ "l @U tS') == ["h", "ə", "l", "əʊ", "tʃ"]


def test_a_brace_among_x_sampa_phones_is_the_vowel_of_cat() -> None:
    own = Reader(Pronounce([*SYMBOLS, "æ"], {"LATIN"}, list, {}), "en")
    ssml = '<speak>a <phoneme alphabet="x-sampa" ph="k { t">cat</phoneme></speak>'
    for text in ("a {k { t}", "a {kæt}", ssml):
        assert [shown(piece) for piece in own.pieces(text)] == ["_akæt_"]
    assert [shown(piece) for piece in own.pieces("{{ n d} {a }b{ c }")] == ["_ændabc_"]
    assert [shown(piece) for piece in own.pieces("} {a {b {c} d} {e")] == ["_abcde_"]  # the innermost


def test_phones_that_a_voice_has_not_heard() -> None:
    assert known_phones("ʒ", {"ʃ"}) == ["ʃ"]
    assert known_phones("aɪə", {"aɪ", "ə"}) == ["aɪ", "ə"]
    assert known_phones("iː", {"i"}) == ["i"]
    assert known_phones("ǃ", {"k"}) == []
    russian = {"a", "ʌ", "ɭ", "ɭʲ", "ts", "tʃʲ", "n", "nʲ"}  # as espeak-ng names them
    near = {"ə": "ʌ", "ɐ": "ʌ", "ɫ": "ɭ", "l": "ɭ", "lʲ": "ɭʲ", "t͡s": "ts", "tɕ": "tʃʲ", "ɲ": "nʲ", "næ": "n a"}
    assert {each: " ".join(known_phones(each, russian)) for each in near} == near
    assert [known_phones(each, {"a", "e", "k"}) for each in ("ə", "ʌ", "ɑ̃", "kʰ")] == [["e"], ["a"], ["a"], ["k"]]


def test_phones_without_spaces_are_parted_into_the_fewest() -> None:
    symbols = {"h", "ə", "l", "o", "oʊ", "ʊ", "k", "æ", "t", "s", "tʃ"}
    assert known_phones("həloʊ", symbols) == ["h", "ə", "l", "oʊ"]
    assert known_phones("kætʃts", symbols) == ["k", "æ", "tʃ", "t", "s"]
    assert known_phones("lə" * 90 + "ǃ", symbols) == []  # at once: not by trying all ways to part it


def test_words_of_another_script_are_left_out_by_name() -> None:
    own = reader()
    assert [piece.text for piece in own.pieces("hello мир")] == ["hello"]
    assert own.left_out == {"other-script": 1}
    assert "'мир' has cyrillic letters" in own.details[0]


def test_a_word_without_a_pronunciation() -> None:
    with pytest.raises(BadRecord, match="no-pronunciation"):
        Pronounce(SYMBOLS, {"LATIN"}, None, {"a": [["a"]]}).word("b")


@pytest.mark.parametrize("nothing", ["", "…!?", "[]", "\n\n", "\u200d"])
def test_nothing_to_say(nothing: str) -> None:
    assert said(nothing) == []


def test_ssml() -> None:
    text = (
        '<speak xmlns="http://www.w3.org/2001/10/synthesis"><s>one <break time="300ms"/>two</s><prosody rate="150%">six'
        '</prosody> <phoneme alphabet="ipa" ph="ə b">ignored</phoneme><sub alias="three">3rd</sub></speak>'
    )
    pieces = said(text)
    assert [(shown(piece), piece.pace, piece.after_s) for piece in pieces] == [
        ("_one_", 1.0, 0.0),
        ("", 1.0, 0.3),
        ("_two_", 1.0, 0.0),
        ("", 1.0, SENTENCE_S),
        ("_six_", 1.5, 0.0),
        ("_əbthree_", 1.0, 0.0),
    ]


def test_elements_within_a_sentence_do_not_part_it() -> None:
    (only,) = said('<speak>the <emphasis>big</emphasis>\n  <sub alias="cat">C</sub><break time="0s"/> sat</speak>')
    assert shown(only) == "_thebigcatsat_"
    (longest,) = said('<speak><break time="10s"/></speak>')
    assert longest.after_s == 10


def test_text_without_its_replacement_is_spoken() -> None:
    (only,) = said('<speak>a <sub>cat</sub> <phoneme alphabet="ipa" ph="">sat</phoneme> <sub alias="">up</sub></speak>')
    assert shown(only) == "_acatsatup_"


@pytest.mark.parametrize("head", ['<?xml version="1.0"?>\n', "<!-- a note -->", " \n"])
def test_ssml_may_begin_as_xml_documents_do(head: str) -> None:
    assert [piece.text for piece in said(head + "<speak>hi <!-- no --><![CDATA[<you>]]></speak>")] == ["hi you"]


def test_full_stops_of_abbreviations_end_no_piece() -> None:
    (only,) = said("at 3 p.m. on version 1.2.3")
    assert only.text == "at three p m on version one point two point three"
    assert [piece.text for piece in said("It is 3 p.m. Go.")] == ["it is three p m", "go"]


@pytest.mark.parametrize(
    "wrong",
    [
        "<speak>one",
        '<speak><prosody rate="9000%">one</prosody></speak>',
        '<speak><break time="soon"/></speak>',
        '<speak><break time="3600s"/></speak>',
        '<speak><prosody rate="400%"><prosody rate="fast">one</prosody></prosody></speak>',
        '<speak><phoneme alphabet="cmu-arpabet" ph="HH AY">hi</phoneme></speak>',
        "<speak>" + 4000 * "<p>" + 4000 * "</p>" + "</speak>",
        '<!DOCTYPE a [<!ENTITY b "c">]><speak>&b;</speak>',
        '<?xml version="1.0"?><html>one</html>',
        '<speak><!DOCTYPE a [<!ENTITY b "c">]>&b;</speak>',
        "x" * (1 << 21),
    ],
)
def test_what_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError) as refused:
        said(wrong)
    assert refused.value.remedy
