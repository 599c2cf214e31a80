"""Transcripts as they are found in the wild: what is said, when, and which files are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megahour.core.errors import BadRecord
from megahour.core.unicode import load_json
from megahour.corpus.text.markup import spoken_text
from megahour.corpus.text.normalise import normalise
from megahour.corpus.text.speaker_labels import names_nobody
from megahour.corpus.transcripts.cues import Cue, check_order, fit_to_length, without_hours
from megahour.corpus.transcripts.encodings import decode_text
from megahour.corpus.transcripts.read import read_table, read_transcript

RATE = 16_000


def cues(text: str | bytes, suffix: str = ".srt", language: str = "en") -> list[Cue]:
    data = text.encode() if isinstance(text, str) else text
    return read_transcript(data, suffix, RATE, language=language).cues


def raws(text: str | bytes, suffix: str = ".srt", language: str = "en") -> list[str]:
    return [cue.raw for cue in cues(text, suffix, language)]


def reason(text: str | bytes, suffix: str = ".srt", language: str = "en") -> str:
    with pytest.raises(BadRecord) as caught:
        cues(text, suffix, language)
    return caught.value.reason


def srt(*rows: tuple[float, float, str]) -> str:
    def clock(s: float) -> str:
        return f"{int(s) // 3600:02d}:{int(s) // 60 % 60:02d}:{int(s) % 60:02d},{round(s * 1000) % 1000:03d}"

    return "\n".join(f"{i}\n{clock(a)} --> {clock(b)}\n{text}\n" for i, (a, b, text) in enumerate(rows, 1))


def test_srt_times_are_samples() -> None:
    assert cues(srt((1.5, 3.25, "Hello there."), (3661.001, 3662, "Bye."))) == [
        Cue(24_000, 52_000, "Hello there."),
        Cue(3661 * RATE + 16, 3662 * RATE, "Bye."),
    ]


def test_srt_as_it_is_written_by_hand() -> None:
    careless = "1\r\n0:01.5 --> 0:02.0\r\nno hours, dots\r\n\r\nblank line before\r\n\r\n"
    careless += "2\r\n00:00:03,000 -> 00:00:04,000 X1:100\r\n12\r\n"
    assert raws(careless) == ["no hours, dots\nblank line before", "12"]
    no_numbers = "00:00:01,000 --> 00:00:02,000\none\n00:00:03,000 --> 00:00:04,000\ntwo"
    assert raws(no_numbers) == ["one", "two"]


def test_srt_times_with_any_number_of_decimals_and_files_joined() -> None:
    """Without them, "00:00:03 --> 00:00:04" was spoken; the mark of the second file made its number a word."""
    text = "\ufeff1\n00:00:01,250000 --> 00:00:02\nOne.\n\n"
    text += "\ufeff2\n00:00:03 --> 00:00:04.5\nAt 10:30,11:45.\n10:30,11:45\n"
    cues = read_transcript(text.encode(), ".srt", 22_050).cues
    assert [(cue.start_samples, cue.end_samples, cue.raw) for cue in cues] == [
        (27_562, 44_100, "One."),
        (66_150, 99_225, "At 10:30,11:45.\n10:30,11:45"),
    ]


def test_youtubes_first_caption_has_its_time() -> None:
    """A line of one space stands above it; it had the time of the copy that stays on the screen below the next one."""
    text = "WEBVTT\n\n" + "".join(
        f"00:00:0{start}.000 --> 00:00:0{end} align:start position:0%\n{shown}\n\n"
        for start, end, shown in [
            (1, "2.990", " \nOne<00:00:01.500><c> two</c><00:00:02.000><c> three</c>"),
            (3, "3.010", "One two three\n "),
            (4, "5.990", "One two three\nfour<00:00:04.500><c> five</c><00:00:05.000><c> six</c>"),
            (6, "6.010", "four five six\n "),
            (7, "8.990", "four five six\nseven<00:00:07.500><c> eight</c>"),
        ]
    )
    found = [(cue.start_samples // 16, spoken_text(cue.raw).split()) for cue in cues(text, ".vtt")]
    assert found == [(1000, ["One", "two", "three"]), (4000, ["four", "five", "six"]), (7000, ["seven", "eight"])]


def test_vtt_with_everything_in_it() -> None:
    text = """WEBVTT - a title
Kind: captions

STYLE
::cue(b) { color: red }

NOTE a remark
over two lines

intro
00:01.000 --> 00:02.500 align:start position:0%
<v.loud Esme>It’s <b>cold</b> &amp; <c.yellow>wet</c>

NOTE nobody says this

00:03.000 --> 00:04.000
<00:00:03.000><c> word</c><00:00:03.500><c> by word</c>
"""
    first, second = cues(text, ".vtt")
    assert first == Cue(RATE, 40_000, "<v.loud Esme>It’s <b>cold</b> &amp; <c.yellow>wet</c>", "Esme")
    assert normalise(first.raw).text == "it's cold and wet"
    assert (second.start_samples, normalise(second.raw).text) == (48_000, "word by word")


def test_plain_text_is_paragraphs_or_lines() -> None:
    assert cues("One\ntwo.\n\nThree.\n", ".txt") == [Cue(-1, -1, "One\ntwo."), Cue(-1, -1, "Three.")]
    assert raws("One two.\nThree.\n", ".txt") == ["One two.", "Three."]


def test_json_in_its_usual_shapes() -> None:
    segments = [{"start": 0.5, "end": 1.0, "text": " Hi."}, {"start": 1, "end": 0.5, "text": "Ho.", "speaker": "Ann"}]
    expected = [Cue(8000, 16000, " Hi."), Cue(16000, -1, "Ho.", "Ann")]
    assert cues(json.dumps({"segments": segments, "language": "en"}), ".json") == expected
    assert cues(json.dumps(segments), ".json") == expected
    assert raws(json.dumps({"text": "only text"}), ".json") == ["only text"]
    assert reason("{not json", ".json") == "unreadable-transcript"
    assert reason("3", ".json") == "unreadable-transcript"
    assert reason("[" * 100_000, ".json") == "unreadable-transcript"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("JOHN: Hi there", "Hi there"),
        (">> MARY ANN: so", "so"),
        ("- Yes.\n- No.", "- Yes. - No."),
        ("Speaker 2: ok", "ok"),
        ("Note: this is speech", "Note: this is speech"),
        ("at 10:30 we met", "at 10:30 we met"),
        ("THE NEWS AT TEN: WAR", "THE NEWS AT TEN: WAR"),
        ("[music] and [ laughter ] so", "and so"),
        ("(applause)\nThank you (laughs).", "Thank you ."),
        ("he said (and I agree with him) no", "he said (and I agree with him) no"),
        ("♪ la la\nla ♪", ""),
        ("Stop! ♪ la la ♪ Go!", "Stop! Go!"),
        ("# we will rock you #", ""),
        ("item #5 and #6", "item #5 and #6"),
        ("{\\an8}<i>Top</i>", "Top"),
        ("&lt;i&gt;twice&lt;/i&gt; a < b", "twice a < b"),
        ("*sighs* well", "well"),
        ("...", ""),
    ],
)
def test_what_is_not_speech_is_taken_out(raw: str, said: str) -> None:
    assert spoken_text(raw) == said


def test_transcripts_without_words_are_empty() -> None:
    assert reason("") == "empty-transcript"
    assert reason("WEBVTT\n\nNOTE nothing\n", ".vtt") == "empty-transcript"
    assert reason(srt((0, 1, "[music]"), (1, 2, "<i></i>"), (2, 3, "♪♪"))) == "empty-transcript"
    assert reason("(applause)\n", ".txt") == "empty-transcript"


def test_a_file_without_times_is_no_subtitle() -> None:
    assert reason("once upon a time\nthere was") == "unreadable-transcript"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252", "utf-32"])
def test_encodings_of_western_text(encoding: str) -> None:
    text = "Où est le café naïf? Il coûte 5 €."
    assert decode_text(text.encode(encoding), "fr") == text


def test_a_byte_that_is_not_utf_8_does_not_turn_the_other_letters_into_those_of_a_code_page() -> None:
    text = "Où est le café naïf? Il coûte cher, là-bas.\n"
    mixed = text.encode() + "à côté".encode("cp1252") + b" x\n"
    assert decode_text(mixed, "fr") == f"{text}à côté x\n"
    assert decode_text(text.encode("utf-8-sig") + b"caf\xe9 \x81.", "fr") == f"{text}café \ufffd."
    assert (
        decode_text("caf\xe9, na\xefve, caf\xe9".encode("cp1252"), "fr") == "café, naïve, café"
    )  # a cut é is no proof
    assert (
        decode_text("Ü”, très café".encode("cp1252"), "fr") == "Ü”, très café"
    )  # its first two letters are UTF-8, too


@pytest.mark.parametrize(
    ("text", "page", "language"),
    [
        ("Où est le café? Voilà… l’été, «ici» — Ça coûte 5 €. ♪", "cp1252", "fr"),
        ("Привет, как дела? Всё хорошо — «да».", "cp1251", "ru"),
        ("Zażółć gęślą jaźń.", "cp1250", "pl"),
    ],
)
def test_text_that_was_encoded_twice_is_read_as_it_was_meant(text: str, page: str, language: str) -> None:
    shown = "".join(bytes([b]).decode(page, "replace").replace("\ufffd", chr(b)) for b in text.encode())
    assert shown != text
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert decode_text(shown.encode(encoding), language) == text


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("NÃO É, Â, à 20 °C – «x» Ã", "pt"),
        ("Ні. Ні, Різдво!", "uk"),
        ("Où est l’été? Ã© is é.", "fr"),
        ("联通 你好", "zh"),
    ],
)
def test_text_that_looks_as_if_encoded_twice_stays(text: str, language: str) -> None:
    assert decode_text(text.encode(), language) == text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_text_that_ends_within_a_character_keeps_the_others(encoding: str) -> None:
    text = "Où est le café naïf? Là-bas. Voilà"
    assert decode_text(text.encode(encoding)[:-1], "fr") == f"{text[:-1]}\ufffd"
    assert decode_text((text + "\ud83d").encode(encoding, "surrogatepass")[:-1], "fr") == f"{text}\ufffd"


def test_a_stray_nul_is_replaced_and_is_no_sign_of_utf_16() -> None:
    for data in (b"x\0y hello\n", b"hello there\0 and so on\n", b'{"text": "x\\u0000y hello"}'):
        (cue,) = read_transcript(data, ".json" if data[:1] == b"{" else ".txt", RATE).cues
        assert cue.raw.count("\ufffd") == 1, data
    for text in ("Привет, как дела? Всё хорошо.", "שלום וברכה לכולם", "Γειά σου κόσμε"):
        assert decode_text(text.encode("utf-16-be")) == text
    assert load_json('["\\u0000", "\\\\u0000"]') == ["\ufffd", "\\u0000"]


def test_code_pages_follow_the_language_and_are_never_guessed_across_scripts() -> None:
    text = "Привет, как дела сегодня?"
    assert decode_text(text.encode("cp1251"), "ru") == text
    assert reason(text.encode("cp1251"), ".txt", "en") == "unreadable-encoding"
    assert decode_text("Zażółć gęślą jaźń".encode("cp1250"), "pl") == "Zażółć gęślą jaźń"


@pytest.mark.parametrize(
    "data", [bytes(range(256)) * 4, b"\x00\x01\x02" * 99, b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR" * 9]
)
def test_binary_files_are_no_text(data: bytes) -> None:
    assert reason(data, ".txt") == "unreadable-encoding"


@given(st.binary(max_size=200), st.sampled_from([".srt", ".vtt", ".txt", ".json"]))
@settings(max_examples=80)
def test_any_bytes_give_cues_or_a_reason(data: bytes, suffix: str) -> None:
    try:
        found = read_transcript(data, suffix, RATE).cues
    except BadRecord:
        return
    assert found
    assert all(cue.raw.strip() for cue in found)


def test_a_few_cues_out_of_order_lose_their_times_and_keep_their_place() -> None:
    rows = [(float(i), i + 0.9, f"line {i}") for i in range(20)]
    rows[7] = (3600.0, 3601.0, "a typing error")
    found = cues(srt(*rows))
    assert found[7] == Cue(-1, -1, "a typing error")
    assert [cue.start_samples for cue in found if cue.start_samples >= 0] == [i * RATE for i in range(20) if i != 7]


def test_many_cues_out_of_order_are_refused() -> None:
    assert reason(srt(*[(float(20 - i), 21.0 - i, f"line {i}") for i in range(20)])) == "cues-out-of-order"
    two_parts = [(float(i % 10), i % 10 + 0.5, f"line {i}") for i in range(20)]
    assert reason(srt(*two_parts)) == "cues-out-of-order"


@given(st.lists(st.integers(-1, 50), max_size=30))
def test_order_holds_after_the_repair(starts: list[int]) -> None:
    before = [Cue(start, -1, "x") for start in starts]
    try:
        after = check_order(before)
    except BadRecord:
        return
    kept = [cue.start_samples for cue in after if cue.start_samples >= 0]
    assert kept == sorted(kept)
    assert len(after) == len(before)


def test_overlapping_cues_are_a_dialogue_and_stay() -> None:
    assert [cue.start_samples for cue in cues(srt((0, 5, "I say"), (2, 6, "and I say")))] == [0, 2 * RATE]


def test_negative_and_absurd_times_are_unknown() -> None:
    text = "\n\n".join(
        [
            "1\n-00:00:01,000 --> 00:00:02,000\nminus",
            "2\n00:00:05,000 --> 00:00:04,000\nends before it starts",
            "3\n00:00:06,000 --> 00:00:07,000\nright",
            "4\n00:00:08,000 --> 00:00:09,000\nright too",
        ]
    )
    assert [(cue.start_samples, cue.end_samples) for cue in cues(text)] == [
        (-1, -1),
        (80_000, -1),
        (96_000, 112_000),
        (128_000, 144_000),
    ]
    assert (
        reason("1\n00:99:00,000 --> 999:00:02,000\nall\n\n2\n1234:00:00,000 --> 1234:00:01,000\nabsurd")
        == "absurd-cue-times"
    )


def test_rolling_captions_say_each_word_once() -> None:
    rolling = srt(
        (0, 1, "so today"), (1, 2, "so today\nwe will look"), (2, 3, "we will look\nat birds"), (3, 4, "at birds")
    )
    assert raws(rolling) == ["so today", "we will look", "at birds"]
    growing = srt((0, 1, "so"), (1, 2, "so today"), (2, 3, "so today we"), (3, 4, "so today we go"))
    assert " ".join(raws(growing)) == "so today we go"


def test_words_that_a_speaker_repeats_are_left_alone() -> None:
    assert raws(srt((0, 1, "No."), (1, 2, "No."), (2, 3, "I said it."), (3, 4, "Well then."))) == [
        "No.",
        "No.",
        "I said it.",
        "Well then.",
    ]
    assert raws(srt((0, 1, "Twice written."), (0, 1, "Twice written."), (2, 3, "Once."))) == ["Twice written.", "Once."]


def test_times_behind_the_end_of_the_audio() -> None:
    found = [Cue(0, 10, "a"), Cue(5, 30, "b"), Cue(40, 50, "c")]
    assert fit_to_length(found, 20) == [Cue(0, 10, "a"), Cue(5, 20, "b"), Cue(-1, -1, "c")]
    with pytest.raises(BadRecord, match="transcript-too-long: 2 of 3"):
        fit_to_length(found, 4)


def test_times_of_a_broadcast_begin_at_a_whole_hour() -> None:
    hour, ten = 3600, 36_000
    of_tv = [Cue(ten + 5, ten + 8, "a"), Cue(-1, -1, "b"), Cue(ten + 30, -1, "c")]
    assert without_hours(of_tv, 60, 1) == [Cue(5, 8, "a"), Cue(-1, -1, "b"), Cue(30, -1, "c")]
    for cues_, seconds in ((of_tv, 30), ([Cue(10, 20, "a"), *of_tv], 60), ([Cue(hour + 5, -1, "a")], 2 * hour)):
        assert without_hours(cues_, seconds, 1) == cues_  # still past the end, partly within it, or a long recording
    assert without_hours([], 60, 1) == []


def test_repairs_are_counted() -> None:
    found = read_transcript(srt((0, 1, "[music]"), (1, 2, "a"), (1, 2, "a"), (3, 4, "b")).encode(), ".srt", RATE)
    assert found.repairs == {"cues_without_words": 1, "cues_repeated": 1}


def test_one_file_of_many_transcripts() -> None:
    text = "; core sounds\nactivated: Activated.\ndigits/1: One: the first\nplain\tTab text\nbroken line\n"
    named = {"activated": "Activated.", "digits/1": "One: the first", "plain": "Tab text"}
    assert dict(read_table(text.encode())) == named
    assert read_table("a|One\u2028line\u0085of\x0ba file\nb|Two".encode()) == [
        ("a", "One\u2028line\u0085of\x0ba file"),
        ("b", "Two"),
    ]


def test_a_table_with_further_columns_or_with_spaces() -> None:
    of_lj_speech = "LJ1|Printing, in 1450|Printing, in fourteen fifty\nLJ2|has|has\n"
    assert dict(read_table(of_lj_speech.encode())) == {"LJ1": "Printing, in 1450", "LJ2": "has"}
    of_kaldi = "ann-1 HE SAID: NO\nann-2\tAND SO\nann-3 ON\nann-4\nann-5 NOW\n"
    assert dict(read_table(of_kaldi.encode())) == {
        "ann-1": "HE SAID: NO",
        "ann-2": "AND SO",
        "ann-3": "ON",
        "ann-5": "NOW",
    }


def test_labels_that_name_nobody() -> None:
    assert all(map(names_nobody, ["SPEAKER_01", "spk_0", "0", "Speaker 2", "Interviewer", "B", "ведущий"]))
    assert not any(map(names_nobody, ["Ann", "DR. SMITH", "R2D2", "Maria 2", ""]))
