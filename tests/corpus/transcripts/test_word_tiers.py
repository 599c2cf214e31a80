"""TextGrids and CTM files as transcripts, as Praat, the Montreal Forced Aligner and megahour write them."""

from __future__ import annotations

import pytest

from megahour.core.errors import BadRecord
from megahour.corpus.interchange.subtitles import grid
from megahour.corpus.transcripts.cues import Cue
from megahour.corpus.transcripts.read import read_transcript

RATE = 1000
Tiers = dict[str, list[tuple[float, float, str]]]


def cues(text: str | bytes, suffix: str = ".textgrid") -> list[Cue]:
    return read_transcript(text if isinstance(text, bytes) else text.encode(), suffix, RATE).cues


def test_tiers_of_speakers() -> None:
    tiers: Tiers = {"ann": [(0.0, 1.0, "Hello."), (1.0, 3.0, "")], "bob": [(0.0, 1.5, ""), (1.5, 2.0, 'The "x".')]}
    assert cues(grid(tiers, 3.0)) == [Cue(0, 1000, "Hello.", "ann"), Cue(1500, 2000, 'The "x".', "bob")]
    alone: Tiers = {"ann": tiers["ann"], "phones": [(0.0, 0.1, "HH")]}
    assert cues(grid(alone, 3.0)) == [Cue(0, 1000, "Hello.")]  # a tier alone may have any name


def test_words_are_joined_and_phones_do_not_count() -> None:
    tiers: Tiers = {
        "ann - words": [(0.0, 0.4, "hello"), (0.4, 0.9, "you"), (0.9, 3.0, "sil"), (3.0, 3.5, "bye")],
        "ann - phones": [(0.0, 0.1, "HH"), (0.1, 0.4, "AH")],
    }
    assert cues(grid(tiers, 4.0)) == [Cue(0, 900, "hello you", "ann"), Cue(3000, 3500, "bye", "ann")]


def test_sentences_go_before_words() -> None:
    tiers: Tiers = {"words": [(0.0, 0.4, "hello")], "lines": [(0.0, 0.5, "Hello!")], "record": [(0.0, 1.0, "{}")]}
    assert cues(grid(tiers, 1.0)) == [Cue(0, 500, "Hello!")]


def test_the_short_form_in_utf_16_with_points() -> None:
    text = 'File type = "ooTextFile"\nObject class = "TextGrid"\n\n0\n2\n<exists>\n2\n"TextTier"\n"bell"\n0\n2\n'
    text += '1\n1\n"x"\n"IntervalTier"\n"text"\n0\n2\n2\n0\n0.75\n"3 of ""them"""\n0.75\n2\n""\n'
    assert cues(text.encode("utf-16")) == [Cue(0, 750, '3 of "them"')]


@pytest.mark.parametrize("text", ["Hello.", 'File type = "ooTextFile"\nObject class = "TextGrid"\n0\n2\n<exists>\n3\n'])
def test_what_is_no_textgrid_is_refused(text: str) -> None:
    with pytest.raises(BadRecord, match="no TextGrid"):
        cues(text)


def test_ctm_words_of_two_channels_are_not_mixed() -> None:
    text = "r A 0.0 0.5 hello\nr B 0.2 0.3 good\nr A 0.5 0.5 there\nr B 0.6 0.3 morning\n"
    cues = read_transcript(text.encode(), ".ctm", 10).cues
    assert [(cue.start_samples, cue.end_samples, cue.raw) for cue in cues] == [
        (0, 10, "hello there"),
        (2, 9, "good morning"),
    ]
    with pytest.raises(BadRecord, match=r"words of 2 recordings \(r, s …\)"):
        read_transcript(f"{text}s A 0.1 0.2 else\n".encode(), ".ctm", 10)


def test_ctm_words_of_all_channels() -> None:
    text = ";; made by hand\ntalk 1 0.50 0.25 hello 0.9\ntalk 1 0.75 0.25 you\ntalk 2 9.00 0.50 bye NA\n"
    assert cues(text, ".ctm") == [Cue(500, 1000, "hello you"), Cue(9000, 9500, "bye")]
    with pytest.raises(BadRecord, match="line 2"):
        cues("talk 1 0.5 0.2 hello\ntalk 1 soon 0.2 hello\n", ".ctm")
