"""TextGrids, ELAN's files, CTM and STM as transcripts, as Praat, aligners and those who label by hand write them."""

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
    assert cues(text, ".ctm") == [Cue(500, 1000, "hello you", channel="1"), Cue(9000, 9500, "bye", channel="2")]
    with pytest.raises(BadRecord, match="line 2"):
        cues("talk 1 0.5 0.2 hello\ntalk 1 soon 0.2 hello\n", ".ctm")


def elan(tiers: str) -> str:
    slots = "".join(f'<TIME_SLOT TIME_SLOT_ID="ts{n}" TIME_VALUE="{n}00"/>' for n in range(1, 9))
    order = f'<TIME_ORDER>{slots}<TIME_SLOT TIME_SLOT_ID="free"/></TIME_ORDER>'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<ANNOTATION_DOCUMENT>{order}{tiers}</ANNOTATION_DOCUMENT>'


def timed(name: str, start: str, end: str, text: str) -> str:
    at = f'ANNOTATION_ID="{name}" TIME_SLOT_REF1="{start}" TIME_SLOT_REF2="{end}"'
    value = f"<ANNOTATION_VALUE>{text}</ANNOTATION_VALUE>"
    return f"<ANNOTATION><ALIGNABLE_ANNOTATION {at}>{value}</ALIGNABLE_ANNOTATION></ANNOTATION>"


def below(name: str, above: str, text: str) -> str:
    value = f"<ANNOTATION_VALUE>{text}</ANNOTATION_VALUE>"
    where = f'ANNOTATION_ID="{name}" ANNOTATION_REF="{above}"'
    return f"<ANNOTATION><REF_ANNOTATION {where}>{value}</REF_ANNOTATION></ANNOTATION>"


def test_elans_tiers_of_speakers_without_translations() -> None:
    tiers = (
        f'<TIER TIER_ID="A" PARTICIPANT="Ann">{timed("a2", "ts5", "free", "Bye.")}{timed("a1", "ts1", "ts3", "Hi!")}'
    )
    tiers += f'</TIER><TIER TIER_ID="A en" PARENT_REF="A">{below("e1", "a1", "Hello!")}</TIER>'
    tiers += f'<TIER TIER_ID="Bob">{timed("b1", "ts2", "ts4", "Yes &amp; no.")}{timed("b2", "ts4", "ts5", " ")}</TIER>'
    assert cues(elan(tiers), ".eaf") == [
        Cue(100, 300, "Hi!", "Ann"),
        Cue(200, 400, "Yes & no.", "Bob"),
        Cue(500, -1, "Bye.", "Ann"),
    ]


def test_elans_texts_below_a_tier_of_numbers() -> None:
    """Corpora from Toolbox keep the times in `ref@Ann` and the words in `text@Ann`."""
    tiers = (
        f'<TIER TIER_ID="ref@Ann">{timed("r1", "ts1", "ts3", "ann.001")}{timed("r2", "ts4", "ts6", "ann.002")}</TIER>'
    )
    tiers += (
        f'<TIER TIER_ID="text@Ann" PARENT_REF="ref@Ann">{below("t1", "r1", "one")}{below("t2", "r2", "two")}</TIER>'
    )
    tiers += f'<TIER TIER_ID="gloss@Ann" PARENT_REF="text@Ann">{below("g1", "t1", "eins")}</TIER>'
    assert cues(elan(tiers), ".eaf") == [Cue(100, 300, "one", "Ann"), Cue(400, 600, "two", "Ann")]


def test_annotations_of_elan_that_hang_on_themselves_have_no_times() -> None:
    tiers = f'<TIER TIER_ID="text">{below("a", "b", "One.")}{below("b", "a", "Two.")}</TIER>'
    assert cues(elan(tiers), ".eaf") == [Cue(-1, -1, "One."), Cue(-1, -1, "Two.")]
    with pytest.raises(BadRecord, match="XML of <tt>, not of ELAN's <ANNOTATION_DOCUMENT>"):
        cues("<tt/>", ".eaf")


def test_stm_segments_by_speaker() -> None:
    text = ";; LABEL\ntalk 1 ann 0.50 1.25 <o,f0,female> hello there\ntalk 1 inter_segment_gap 1.25 2.00 <o,,> \n"
    text += "talk 1 bob 2.00 2.75 goodbye\ntalk 1 bob 3.0 4.0 <o,f0,male> ignore_time_segment_in_scoring\n"
    assert cues(text, ".stm") == [Cue(500, 1250, "hello there", "ann", "1"), Cue(2000, 2750, "goodbye", "bob", "1")]
    with pytest.raises(BadRecord, match="line 2: not recording, channel, speaker"):
        cues("talk 1 ann 0.5 1.2 hello\ntalk 1 ann soon 2 hello\n", ".stm")
    with pytest.raises(BadRecord, match=r"segments of 2 recordings \(talk, other …\)"):
        cues("talk 1 ann 0.5 1.2 hello\nother 1 ann 2 3 hello\n", ".stm")


def test_elans_tiers_that_are_named_as_kinds() -> None:
    tiers = (
        '<TIER TIER_ID="ref@A" PARTICIPANT="Ann">' + timed("a1", "ts1", "ts2", "AB.001") + "</TIER>"
        '<TIER TIER_ID="tx@A" PARTICIPANT="Ann" PARENT_REF="ref@A">' + below("b1", "a1", "Hello.") + "</TIER>"
        '<TIER TIER_ID="comments" PARTICIPANT="Kim">' + timed("a2", "ts1", "ts4", "check this") + "</TIER>"
    )
    assert cues(elan(tiers), ".eaf") == [Cue(100, 200, "Hello.", "Ann")]


def test_annotations_of_elan_without_times_stay_in_place() -> None:
    told = (
        timed("a1", "ts1", "free", "One.") + timed("a2", "free", "free", "Two.") + timed("a3", "ts3", "ts4", "Three.")
    )
    read = cues(elan(f'<TIER TIER_ID="x">{told}</TIER>'), ".eaf")
    assert [cue.raw for cue in read] == ["One.", "Two.", "Three."]


def test_tiers_of_elan_within_tiers_are_not_repeated() -> None:
    inner = "<TIER TIER_ID='x'>" * 300 + timed("a1", "ts1", "ts2", "One.") + "</TIER>" * 300
    outer = f'<TIER TIER_ID="x">{timed("a2", "ts3", "ts4", "Two.")}{inner}</TIER>'
    assert cues(elan(outer), ".eaf") == [Cue(300, 400, "Two.")]


def test_stm_as_scorers_and_ted_lium_write_it() -> None:
    text = "r 1 ann 0 1 <o, f0, male> I { gonna / going to } {@ / eat} it 's {NOISE} the(2)\nr 1 ann 1 2 <NA> @\n"
    assert cues(text, ".stm") == [Cue(0, 1000, "I gonna it's the", "ann", "1")]
    spaces = " " * 200_000  # a search from each of them would take minutes
    assert cues(f"r 1 ann 0 1 one{spaces}two", ".stm") == [Cue(0, 1000, "one two", "ann", "1")]


@pytest.mark.parametrize("name", ["A_Transcription", "default", "utterance", "tx@A"])
def test_the_participant_of_a_tier_is_its_speaker(name: str) -> None:
    """Also of the only tier, whatever its name."""
    tiers = f'<TIER TIER_ID="{name}" PARTICIPANT="Ann Smith">{timed("a1", "ts1", "ts3", "Hi!")}</TIER>'
    assert cues(elan(tiers), ".eaf") == [Cue(100, 300, "Hi!", "Ann Smith")]


def test_of_alternatives_in_a_ctm_the_first_is_taken() -> None:
    """As in the references that NIST's scorer reads."""
    marked = {"<ALT_BEGIN>": "* *", "<ALT>": "* *", "<ALT_END>": "* *"}
    said = ["well", "<ALT_BEGIN>", "gonna", "<ALT>", "going", "to", "<ALT_END>", "go"]
    text = "\n".join(f"talk 1 {marked.get(word, f'{n}.0 0.9')} {word}" for n, word in enumerate(said))
    assert [cue.raw for cue in cues(text, ".ctm")] == ["well", "gonna", "go"]
