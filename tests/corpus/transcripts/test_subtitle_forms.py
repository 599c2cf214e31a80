"""Subtitles and labels besides SRT and WebVTT: each is read with its times, and what is none of them is refused."""

from __future__ import annotations

import time

import pytest

from megahour.core.errors import BadRecord
from megahour.corpus.text.markup import spoken_text
from megahour.corpus.transcripts.cues import Cue
from megahour.corpus.transcripts.read import read_transcript
from megahour.corpus.transcripts.subtitle_forms import ass_said

RATE = 1000  # samples are milliseconds


def cues(text: str, suffix: str) -> list[Cue]:
    return read_transcript(text.encode(), suffix, RATE).cues


def problem(text: str, suffix: str) -> BadRecord:
    with pytest.raises(BadRecord) as caught:
        cues(text, suffix)
    return caught.value


def ttml(body: str, parameters: str = "") -> str:
    names = 'xmlns="http://www.w3.org/ns/ttml" xmlns:ttp="http://www.w3.org/ns/ttml#parameter"'
    return f'\n<?xml version="1.0" encoding="UTF-8"?>\n<tt {names} {parameters}><head/><body>{body}</body></tt>'


def test_ttml_paragraphs() -> None:
    body = '<div><!-- made --><p begin="1.5s" end="00:00:03.250">Rock &amp;\n   roll,<br/>she <span>said</span>.</p>'
    body += '<p begin="4s" dur="500ms">Bye.</p><p>No times.</p></div>'
    assert cues(ttml(body), ".ttml") == [
        Cue(1500, 3250, "Rock & roll,\nshe said."),
        Cue(4000, 4500, "Bye."),
        Cue(-1, -1, "No times."),
    ]


def test_ttml_times_in_frames_and_ticks_and_from_the_element_around() -> None:
    frames = ttml('<div begin="10s"><p begin="00:00:01:12" end="50f">A word.</p></div>', 'ttp:frameRate="25"')
    assert cues(frames, ".dfxp") == [Cue(11_480, 12_000, "A word.")]
    ticks = ttml('<p begin="15000000t" end="20000000t">A word.</p>', 'ttp:tickRate="10000000"')
    assert cues(ticks, ".ttml") == [Cue(1500, 2000, "A word.")]
    ntsc = ttml('<p begin="30f" end="60f">A word.</p>', 'ttp:frameRate="30" ttp:frameRateMultiplier="1000 1001"')
    assert cues(ntsc, ".ttml") == [Cue(1001, 2002, "A word.")]


def test_ttml_spans_with_times_are_cues() -> None:
    body = '<p begin="5s"><span begin="0s" end="1s">One.</span><span><span begin="1s" end="2s">Two.</span></span></p>'
    assert cues(ttml(body), ".ttml") == [Cue(5000, 6000, "One."), Cue(6000, 7000, "Two.")]


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("<tt><body><p>open", "no XML"),
        ("<html><p>A word.</p></html>", "XML of <html>"),
        ('<!DOCTYPE tt [<!ENTITY a "aaaa">]><tt><body><p>&a;</p></body></tt>', "document type"),
        ("", "no XML"),
    ],
)
def test_other_xml_is_refused(text: str, detail: str) -> None:
    bad = problem(text, ".ttml")
    assert bad.reason == "unreadable-transcript"
    assert detail in bad.detail


def test_deep_xml_is_read_without_recursion() -> None:
    deep = 20_000
    assert cues(ttml("<div>" * deep + '<p begin="1s">A word.</p>' + "</div>" * deep), ".ttml")[0].raw == "A word."


def test_ass_dialogue_by_time_with_its_speakers() -> None:
    text = """[Script Info]
[V4+ Styles]
Format: Name, Fontname
[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
Comment: 0,0:00:00.00,0:00:01.00,Default,,0,0,0,,A note.
Dialogue: 0,0:00:03.50,0:00:04.25,Sign,,0,0,0,,Later, with a comma.
Dialogue: 0,0:00:01.50,0:00:03.00,Default,Ann,0,0,0,,{\\i1}Hello,{\\i0}\\Nyou.
Dialogue: 0,0:00:02.00,0:00:03.00,Default,,0,0,0,,{\\an7\\p1}m 0 0 l 100 0
"""
    first, second = cues(text, ".ass")
    assert first == Cue(1500, 3000, "{\\i1}Hello,{\\i0}\\Nyou.", "Ann")  # markup stays in the raw text
    assert second == Cue(3500, 4250, "Later, with a comma.")


def test_sbv_of_youtube() -> None:
    text = "0:00:01.500,0:00:03.000\nOne line,\nand another.\n\n0:00:03.000,0:00:04.000\nBye.\n"
    assert cues(text, ".sbv") == [Cue(1500, 3000, "One line,\nand another."), Cue(3000, 4000, "Bye.")]


def test_tables_of_times_and_text() -> None:
    whisper = "start\tend\ttext\n0\t2680\tHello there.\n2680\t5880\tBye.\n"
    assert cues(whisper, ".tsv") == [Cue(0, 2680, "Hello there."), Cue(2680, 5880, "Bye.")]
    audacity = "0.500000\t1.250000\tHello there.\n2.000000\t3.000000\tBye.\n"
    assert cues(audacity, ".txt") == [Cue(500, 1250, "Hello there."), Cue(2000, 3000, "Bye.")]
    assert [cue.raw for cue in cues(f"{audacity}and more\n", ".txt")][-1] == "and more"  # a text that has such lines
    assert problem("name\tage\nann\t7\n", ".tsv").reason == "unreadable-transcript"


def test_frequencies_of_audacitys_labels_are_no_text() -> None:
    """They made a plain text of the file, whose times were spoken."""
    text = "0.5\t1.25\tHello there.\n\\\t100.0\t2000.0\n2.0\t3.0\tBye.\n"
    cues = read_transcript(text.encode(), ".txt", 100).cues
    assert [(cue.start_samples, cue.end_samples, cue.raw) for cue in cues] == [
        (50, 125, "Hello there."),
        (200, 300, "Bye."),
    ]


def test_lab_is_a_text_but_not_htk_labels() -> None:
    assert cues("the quick brown fox\n", ".lab") == [Cue(-1, -1, "the quick brown fox")]
    assert "HTK" in problem("0 500000 sil\n500000 900000 dh\n", ".lab").detail


def test_the_range_of_samples_before_a_text_of_timit_is_not_spoken() -> None:
    assert cues("0 54682 She had your dark suit.\n", ".txt") == [Cue(-1, -1, "She had your dark suit.")]
    numbers = "0 54682 is a number\nand so is 7\n", "0 547 She had", "1 54682 She had"
    assert [cues(text, ".txt")[0].raw.split()[0] for text in numbers] == ["0", "0", "1"]


CLOCKED = {
    "before the text": "0:01 Hello there.\n0:03.5 How are you?\n1:00:04 Bye.",
    "on lines of their own": "0:01\nHello there.\n0:03.5\nHow are you?\n1:00:04\nBye.",
    "in brackets": "[00:00:01] Hello there.\n\n[00:00:03,5] How are you?\n\n[01:00:04] Bye.",
    "with colons": "0:01: Hello there.\n0:03.5: How are you?\n1:00:04: Bye.",
    "with dashes": "(0:01) - Hello there.\n(0:03.5) – How are you?\n(1:00:04) — Bye.",
}


@pytest.mark.parametrize("text", CLOCKED.values(), ids=CLOCKED)
def test_clocks_before_most_lines_of_a_text_are_times(text: str) -> None:
    """They were spoken, "zero five Good bye"."""
    said = [(1000, "Hello there."), (3500, "How are you?"), (3_604_000, "Bye.")]
    assert cues(text, ".txt") == [Cue(start, -1, line) for start, line in said]


@pytest.mark.parametrize(
    "text",
    [
        "[00:01.0 --> 00:03.2]  Hello there.\n[00:03.5 --> 00:04.0]  How are you?\n[01:00:04.0 --> 01:00:05.0]  Bye.",
        "(0:01 - 0:03.2) Hello there.\n(0:03.5–0:04) How are you?\n(1:00:04 - 1:00:05) Bye.",
    ],
    ids=["as Whisper prints it", "with dashes"],
)
def test_a_start_and_an_end_in_brackets_are_times(text: str) -> None:
    """They were spoken, "zero oh three two hundred hello there"."""
    said = [(1000, 3200, "Hello there."), (3500, 4000, "How are you?"), (3_604_000, 3_605_000, "Bye.")]
    assert cues(text, ".txt") == [Cue(*each) for each in said]


def test_lines_without_a_clock_belong_to_the_one_before_and_a_heading_is_text() -> None:
    text = "The interview\n0:01 ANN: Hello.\nCome in.\n0:03 BOB: Yes.\n0:05 ANN: Sit down."
    read = [(cue.start_samples, cue.speaker, cue.raw.removeprefix(f"{cue.speaker}: ")) for cue in cues(text, ".txt")]
    assert read == [
        (-1, "", "The interview"), (1000, "ANN", "Hello.\nCome in."), (3000, "BOB", "Yes."), (5000, "ANN", "Sit down."),
    ]  # fmt: skip


def test_only_the_first_sentence_of_a_long_clocked_part_has_its_time() -> None:
    long = "This is one sentence of many that the speaker says. " * 8
    read = cues(f"0:00 Hello.\n0:02 {long}\n0:40 Bye.", ".txt")
    assert [cue.start_samples for cue in read] == [0, 2000, *[-1] * 7, 40000]


NOT_CLOCKED = {
    "times of day": "12:30 Lunch.\n13:00 A meeting.\n14:15 Tea.",
    "falling": "0:05 is late.\n0:03 is early.\n0:09 is noon.",
    "on few lines": "0:01 Hello.\nOne.\nTwo.\n0:03 How are you?\nThree.\nFour.\n0:09 Bye.",
    "chapter and verse": "\n".join(f"1:{verse} It came to pass." for verse in range(1, 32)),
    "two alone": "0:05 is a time.\n0:09 is another.",
}


@pytest.mark.parametrize("text", NOT_CLOCKED.values(), ids=NOT_CLOCKED)
def test_clocks_that_are_said_stay_in_the_text(text: str) -> None:
    read = cues(text, ".txt")
    assert {cue.start_samples for cue in read} == {-1}
    assert "\n".join(cue.raw for cue in read) == text


def test_subtitles_under_the_name_of_a_text_keep_their_times() -> None:
    """Numbers and times were spoken."""
    said = [Cue(1000, 2000, "Hello."), Cue(3000, 4500, "Bye.")]
    assert cues("1\n00:00:01,000 --> 00:00:02,000\nHello.\n\n2\n00:00:03,000 --> 00:00:04,500\nBye.\n", ".txt") == said
    assert cues("WEBVTT\n\n00:01.000 --> 00:02.000\nHello.\n\n00:03.000 --> 00:04.500\nBye.\n", ".txt") == said


SAMI = """<SAMI><HEAD><STYLE TYPE="text/css"><!--
.KRCC { Name:Korean; lang:ko-KR; SAMIType:CC; }
.ENCC { Name:English; lang:en-US; SAMIType:CC; }
--></STYLE></HEAD><BODY>
<SYNC Start=1000><P Class=KRCC>안녕하세요<P Class=ENCC>Hello,<br>everyone.
<SYNC Start=2500><P Class=KRCC>&nbsp;<P Class=ENCC>&nbsp;
<sync start="3000"><p class='ENCC'><font color=red>Bye.</font>
</BODY></SAMI>"""


def test_sami_of_the_language_until_the_next_cue() -> None:
    english = read_transcript(SAMI.encode(), ".smi", RATE).cues
    assert [(cue.start_samples, cue.end_samples, spoken_text(cue.raw)) for cue in english] == [
        (1000, 2500, "Hello, everyone."),
        (3000, -1, "Bye."),
    ]
    korean = read_transcript(SAMI.encode(), ".sami", RATE, language="ko").cues
    assert [(cue.start_samples, cue.end_samples, cue.raw) for cue in korean] == [(1000, 2500, "안녕하세요")]
    assert "no <SYNC" in problem("<smil><body/></smil>", ".smi").detail


def test_lyrics_with_several_clocks_and_an_offset() -> None:
    text = "[ti:A song]\n[offset:500]\n[00:02.50][00:06.50]Again and again\n[00:04.5]<00:04.50>Only <00:04.90>once\n"
    assert cues(text + "[00:08.00]\nNot sung.\n", ".lrc") == [
        Cue(2000, -1, "Again and again"),
        Cue(4000, -1, "Only once"),
        Cue(6000, 7500, "Again and again"),
    ]
    assert "no line with a clock" in problem("Only words.\n", ".lrc").detail


def test_sami_names_speakers_and_has_comments() -> None:
    text = """<SAMI><BODY><!-- <SYNC Start=0><P>Old. --><SYNC Start=1000><P Class=ENCC ID=Source>Ann
<P Class=ENCC>Hello<P Class=ENCC>there.<SYNC Start=2000><P Class=ENCC>&nbsp<SYNC Start=3000><P>Bye.<!-- cut -->"""
    assert cues(text, ".smi") == [
        Cue(1000, 2000, "Hello", "Ann"),
        Cue(1000, 2000, "there.", "Ann"),
        Cue(3000, -1, "Bye."),
    ]
    assert cues("<SYNC Start=0><P ID=Source>Ann<SYNC Start=1000><P>Hello.", ".smi") == [Cue(1000, -1, "Hello.")]


@pytest.mark.parametrize("part", ["<sync ", "<!--", ".a{", "<p "])
def test_sami_of_tags_that_never_end_is_read_at_once(part: str) -> None:
    began = time.perf_counter()
    cues(part * 100_000 + "<SYNC Start=0><P>Hello.", ".smi")
    assert time.perf_counter() - began < 10  # a search from each to the end takes minutes


def test_lyrics_of_an_hour() -> None:
    assert cues("[00:00:12.50]One.\n[01:02:03.50]<01:02:03.50>Two.\n", ".lrc") == [
        Cue(12_500, -1, "One."),
        Cue(3_723_500, -1, "Two."),
    ]
    assert cues("[00:12:50]One.\n", ".lrc") == [Cue(12_500, -1, "One.")]  # hundredths behind a colon


def test_a_sami_cue_ends_where_it_says() -> None:
    text = '<SYNC Start=1000 End=2000><P>One.<SYNC Start=3000><P>Two.<SYNC End="9000" Start="5000"><P>Three.'
    assert [(cue.start_samples, cue.end_samples) for cue in cues(text, ".smi")] == [
        (1000, 2000),
        (3000, 5000),
        (5000, 9000),
    ]


CHINESE = ["你好，世界", "我们今天去公园散步", "再见，我的老朋友", "明天太阳还会升起来"]
ENGLISH = ["Hello, world", "Today we go for a walk", "Goodbye, my old friend", "Tomorrow the sun will rise again"]
FRENCH = ["Bonjour, tout le monde", "Aujourd'hui nous allons nous promener", "Adieu, mon vieil ami", "Demain, encore"]
Lines = list[str]


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize(
    ("sung", "language", "kept"),
    [
        (CHINESE, "zh", CHINESE),
        (CHINESE, "en", ENGLISH),
        (FRENCH, "en", ENGLISH),
        (FRENCH, "fr", FRENCH),
        (CHINESE, "und", None),
        (CHINESE, "ar", None),
    ],
)
def test_lyrics_with_translations(in_blocks: bool, sung: Lines, language: str, kept: Lines | None) -> None:
    """Two lines at one time; where the language does not tell which of them is sung, both stay."""
    songs = [[f"[00:0{n}.00]{line}" for n, line in enumerate(lines)] for lines in (sung, ENGLISH)]
    pairs = [line for pair in zip(*songs, strict=True) for line in pair]
    text = "\n".join(songs[0] + songs[1] if in_blocks else pairs)
    found = [cue.raw for cue in read_transcript(text.encode(), ".lrc", 1000, language=language).cues]
    assert found == (kept or [line for pair in zip(sung, ENGLISH, strict=True) for line in pair])


def test_two_lines_that_are_sung_at_once_stay() -> None:
    text = "[00:01.00]Hello, world\n[00:01.00]你好，世界\n" + "".join(
        f"[00:0{n}.00]{line}\n" for n, line in enumerate(ENGLISH[1:], 2)
    )
    assert len(cues(text, ".lrc")) == 5


MICRODVD = "{0}{0}25.000\n{25}{50}{y:i}Hello|there.\n{75}{}How are you?\n"


def test_microdvd_counts_frames() -> None:
    assert cues(MICRODVD, ".sub") == [Cue(1000, 2000, "Hello\nthere."), Cue(3000, -1, "How are you?")]


def test_without_a_frame_rate_the_frames_of_microdvd_are_no_times() -> None:
    text = MICRODVD.partition("\n")[2]
    assert cues(text, ".sub") == [Cue(-1, -1, "Hello\nthere."), Cue(-1, -1, "How are you?")]
    for title in ("Year 1984", "300", "0"):
        assert cues(f"{{0}}{{9}}{title}\n{text}", ".sub")[0] == Cue(-1, -1, title)


def test_subviewers_files_have_the_same_suffix() -> None:
    text = "[INFORMATION]\n[TITLE]talk\n[SUBTITLE]\n00:00:01.00,00:00:02.50\nHello[br]there.\n"
    assert cues(text, ".sub") == [Cue(1000, 2500, "Hello\nthere.")]


def at(*clocks: str) -> str:
    return "\n\n".join(f"{clock},000 --> {clock},500\nLine {chr(97 + n)}." for n, clock in enumerate(clocks))


def test_a_clock_of_the_day_goes_on_behind_midnight() -> None:
    text = at("23:59:57", "23:59:59", "00:00:03", "00:00:06")
    starts = [86_397_000, 86_399_000, 86_403_000, 86_406_000]
    assert [cue.start_samples for cue in cues(text, ".srt")] == starts
    assert [cue.end_samples for cue in cues(text, ".srt")] == [start + 500 for start in starts]


@pytest.mark.parametrize(
    "clocks",
    [
        ["23:59:59", *(f"00:00:0{n}" for n in range(1, 9))],  # a title
        ["23:50:00", "23:59:59", *(f"00:0{n}:00" for n in range(1, 9)), "13:00:00"],
    ],
)
def test_other_clocks_that_fall_are_out_of_order(clocks: list[str]) -> None:
    assert max(cue.start_samples for cue in cues(at(*clocks), ".srt")) < 86_400_000


@pytest.mark.parametrize("head", ["{who}  {clock}  ", "{who} ({clock})", "{who} [00:{clock}]:"])
def test_turns_below_a_name_and_a_clock(head: str) -> None:
    """As Otter, Rev and Zoom's editors export them; the name and the clock were spoken."""
    long = " ".join(["We walk to the garden and back again."] * 12)
    turns = [("Ann Smith", "00:00", "Hello there."), ("Bob", "00:02", long), ("Ann Smith", "00:40", "Fine.\n\nBye.")]
    text = "\n\n".join(f"{head.format(who=who, clock=clock)}\n{said}" for who, clock, said in turns)
    found = cues(text, ".txt")
    assert [(cue.start_samples, cue.speaker) for cue in found if cue.start_samples >= 0] == [
        (0, "Ann Smith"),
        (2000, "Bob"),
        (40_000, "Ann Smith"),
    ]
    assert {cue.speaker for cue in found[1:-1]} == {"Bob"}, "also of the sentences behind the first"
    assert " ".join(cue.raw for cue in found[1:-1]) == long


@pytest.mark.parametrize(
    "text",
    [
        "Beginnings 0:00\nHello.\n\nMiddles 0:20\nHow are you?\n\nEnds 0:40\nBye.",  # chapters
        "Ann 0:40\nHello.\n\nBob 0:20\nHow are you?\n\nAnn 0:50\nBye.",
        "Ann 0:00\nAnn 0:20\nHow are you?\n\nAnn 0:50\nBye.",
        "We met\n\nat noon\n\nin May\n\nAnn 0:00\nHello.\n\nBob 0:20\nHi.\n\nAnn 0:50\nBye.",
    ],
)
def test_other_lines_that_end_in_a_clock_are_text(text: str) -> None:
    assert {cue.start_samples for cue in cues(text, ".txt")} == {-1}


@pytest.mark.parametrize(
    ("data", "what"),
    [("{\\rtf1\\ansi Hello.\\par}", "RTF"), ("version https://git-lfs.github.com/spec/v1\noid x\n", "git lfs pull")],
)
def test_files_that_are_no_text_are_named(data: str, what: str) -> None:
    assert what in problem(data, ".txt").detail
    assert what in problem(data, ".srt").detail


def test_the_head_of_a_web_page_is_not_spoken() -> None:
    page = "<!DOCTYPE html>\n<html><head>\n<title>Talk</title>\n</head>\n<body><p>Hello.</p>\n\n<p>Bye.</p></body>"
    assert [cue.raw for cue in cues(page, ".txt")] == ["<html>\n<body><p>Hello.</p>", "<p>Bye.</p></body>"]


def test_many_braces_of_ass_that_never_close_are_read_at_once() -> None:
    began = time.perf_counter()
    (cue,) = ass_said("Dialogue: 0,0:00:01.00,0:00:02.00,D,,0,0,0,,Hello" + "{\\p" * 100_000)
    assert cue.text.startswith("Hello")
    assert time.perf_counter() - began < 10  # a search from each to the end takes minutes
