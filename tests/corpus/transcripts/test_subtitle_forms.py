"""Subtitles and labels besides SRT and WebVTT: each is read with its times, and what is none of them is refused."""

from __future__ import annotations

import pytest

from megahour.core.errors import BadRecord
from megahour.corpus.transcripts.cues import Cue
from megahour.corpus.transcripts.read import read_transcript

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
