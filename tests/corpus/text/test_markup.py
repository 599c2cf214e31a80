"""Which parts of a transcript are not spoken, and who speaks the others."""

from __future__ import annotations

import json

import pytest

from megahour.corpus.text.markup import view
from megahour.corpus.text.normalise import normalise
from megahour.corpus.transcripts.cues import Cue, put_back
from megahour.corpus.transcripts.read import read_transcript

RATE = 1000


def vtt(*rows: tuple[float, float, str]) -> list[Cue]:
    def clock(s: float) -> str:
        return f"{int(s) // 60:02d}:{int(s) % 60:02d}.{round(s * 1000) % 1000:03d}"

    body = "\n\n".join(f"{clock(a)} --> {clock(b)}\n{text}" for a, b, text in rows)
    return read_transcript(f"WEBVTT\n\n{body}\n".encode(), ".vtt", RATE).cues


def said(cues: list[Cue]) -> list[str]:
    return [normalise(cue.raw).text for cue in cues]


@pytest.mark.parametrize(
    ("raw", "spoken"),
    [
        ("<v Ann>Hello</v> <c.loud.red>big</c> wo<b>rld</b>", "hello big world"),
        ("<00:00:01.000><c> one</c><00:00:02.000><c> two</c>", "one two"),
        ("<ruby>漢字<rt>かんじ</rt></ruby>です", "漢字です"),
        ("{\\an8\\pos(1,2)}<font color='#fff'>Top</font>\\Nline", "top line"),
        ("Q&amp;A &#65; &lt;i&gt;slanted&lt;/i&gt; &nbsp;x &bogus; y", "q and a a slanted x and bogus y"),
        (
            "don&amp;#39;t AT&amp;amp;T &amp;lt;i&amp;gt;slanted&amp;lt;/i&amp;gt;&amp;nbsp;R&amp;D",
            "don't at and t slanted r and d",
        ),
        ("Line<br/>break and a < b > c", "line break and a b c"),
        ("zero\u200bwidth \u202aleft\u202c", "zerowidth left"),
        # sounds
        ("[music] hello [LAUGHTER]", "hello"),
        ("(laughs) that is (in my opinion) good", "that is in my opinion good"),
        ("(clears throat)\nRight.", "right"),
        ("(dramatic music playing)", ""),
        ("(I don't know.)", "i don't know"),
        ("(and he was right)", "and he was right"),
        ("(somewhere in Paris)", ""),  # fills its line, and is no sentence: a description
        ("the agency (NASA) said", "the agency nasa said"),
        ("*applause* thank you *so* much", "thank you so much"),
        ("♪ we will rock you ♪", ""),
        ("♪ first line\nsecond line ♪ Thanks.", "thanks"),
        ("（笑）はい", "はい"),
        ("【拍手】 ［音楽］ ok", "ok"),
        # speakers
        ("JOHN: Hi. MARY: no label here", "hi mary no label here"),
        (">> REPORTER: it's 10:30 now", "it's ten thirty now"),
        ("DR. SMITH (on phone): yes", "yes"),
        ("[Ann] hello", "hello"),
        ("MAN #2: what", "what"),
        ("[Ann, whispering] hello", "hello"),
        ("[Music] JOHN: hello", "hello"),
        ("Thanks. (applause and cheering continue for a while)", "thanks"),
        ("# Title of #5", "title of number five"),
        ("Note: this is speech", "note this is speech"),
        ("NOTE: so is this", "note so is this"),
        ("- Hi.\n- Hello.", "hi hello"),
        ("Interviewer: why?", "why"),
    ],
)
def test_what_is_said(raw: str, spoken: str) -> None:
    assert normalise(raw).text == spoken


@pytest.mark.parametrize(
    ("language", "raw", "spoken"),
    [
        ("es", "(risas) Gracias. (Aplausos)", "gracias"),
        ("fr", "(rires)\nMerci (je crois).", "merci je crois"),
        ("it", "(applausi) Grazie", "grazie"),
        ("de", "(Gelächter) Danke (das ist wahr)", "danke das ist wahr"),
        ("ru", "(смеётся) Спасибо. [музыка]", "спасибо"),
        ("de", "SPRECHERIN: Guten Tag", "guten tag"),
        ("ru", "ВЕДУЩИЙ: Добрый день", "добрый день"),
    ],
)
def test_sounds_and_speakers_of_other_languages(language: str, raw: str, spoken: str) -> None:
    assert normalise(raw, language).text == spoken


def test_places_of_words_are_those_of_the_raw_text() -> None:
    raw = "<i>wo</i>rd &amp; [noise] A&#66;C"
    found = normalise(raw)
    assert found.tokens == ["word", "and", "abc"]
    assert [raw[a:b] for a, b in zip(found.offsets, found.ends, strict=True)] == ["wo</i>rd", "&amp;", "A&#66;C"]
    assert [(raw[span.start : span.end], span.kind) for span in view(raw).hidden] == [
        ("<i>", "tag"),
        ("</i>", "tag"),
        ("&amp;", "entity"),
        ("[noise]", "sound"),
        ("&#66;", "entity"),
    ]


def test_the_raw_text_of_a_cue_stays_as_it_is() -> None:
    text = "<v Ann Lee><i>It’s</i> 5 &lt; 6</v>\n(laughs)"
    assert vtt((1, 2, text)) == [Cue(1000, 2000, text, "Ann Lee")]


@pytest.mark.parametrize(
    ("raw", "speaker"),
    [
        ("JOHN: hi", "JOHN"),
        (">> REPORTER: hi", "REPORTER"),
        ("- SPEAKER 2: hi", "SPEAKER 2"),
        ("[Ann] hi", "Ann"),
        ("[SPEAKER_01]: hi", "SPEAKER_01"),
        ("[Speaker 1] hi", "Speaker 1"),
        ("[Speaker] hi", ""),
        ("[Speaks French] hi", ""),
        ("[Music] hi", ""),
        ("[Music] ANN: hi", "ANN"),
        ("[John] [whispering] hi", "John"),
        ("<v.loud Mary Ann>hi", "Mary Ann"),
        ("10:30 is early", ""),
        ("Note: hi", ""),
        ("THE NEWS AT TEN: WAR", ""),
    ],
)
def test_speakers_of_cues(raw: str, speaker: str) -> None:
    assert [cue.speaker for cue in vtt((0, 1, raw))] == [speaker]


def test_a_cue_of_two_named_speakers_is_parted() -> None:
    parted = vtt((0, 2, "ANN: Hi there.\nBOB: Hello."), (2, 4, "<v Cy>Yes.</v> <v Di>No.</v>"))
    assert [(cue.start_samples, cue.end_samples, cue.speaker, normalise(cue.raw).text) for cue in parted] == [
        (0, -1, "ANN", "hi there"),
        (-1, -1, "BOB", "hello"),
        (2000, -1, "Cy", "yes"),
        (-1, -1, "Di", "no"),
    ]


def test_speakers_change_inside_a_cue() -> None:
    (*found,) = vtt((0, 2, "Hello there. >> MARY: I agree. >> Yes.\n>>> BOB SMITH: No."))
    assert [(cue.start_samples, cue.speaker, cue.raw.strip(), normalise(cue.raw).text) for cue in found] == [
        (0, "", "Hello there.", "hello there"),
        (-1, "MARY", ">> MARY: I agree.", "i agree"),
        (-1, "", ">> Yes.", "yes"),
        (-1, "BOB SMITH", ">>> BOB SMITH: No.", "no"),
    ]
    assert [cue.speaker for cue in vtt((0, 2, "a >> b: c"))] == [""]


def test_scripts_and_styles_are_not_said() -> None:
    raw = "<script type='x'>var a = '</b>';\nb()</SCRIPT >Hello <style>p { }</style>all <scripture> <script>open"
    assert normalise(raw).tokens == ["hello", "all"]
    page = b"Hi.\n\n<script>\nvar a;\n\nfoo\n</script>\n\nBye."
    assert [cue.raw for cue in read_transcript(page, ".txt", RATE).cues] == ["Hi.", "Bye."]


def test_names_in_mixed_case_are_labels_where_a_file_uses_them_so() -> None:
    talk = ["Ann: Hello.", "Bob: Hi Ann.", "Ann: Listen: it rains.", "Note: an umbrella.", "Bob: True."]
    found = read_transcript("\n".join(talk).encode(), ".txt", RATE).cues
    assert [(cue.speaker, cue.raw) for cue in found] == [
        ("Ann", "Hello."),
        ("Bob", "Hi Ann."),
        ("Ann", "Listen: it rains."),
        ("", "Note: an umbrella."),
        ("Bob", "True."),
    ]
    once = read_transcript(b"Ann: Hello.\nThen: nothing.", ".txt", RATE).cues
    assert [cue.speaker for cue in once] == ["", ""]


def test_speakers_of_json() -> None:
    data = json.dumps([{"start": 0, "end": 1, "text": "hi", "speaker": "SPEAKER_00"}]).encode()
    assert read_transcript(data, ".json", RATE).cues == [Cue(0, 1000, "hi", "SPEAKER_00")]


def test_blocks_that_are_no_cues() -> None:
    text = """WEBVTT
X-TIMESTAMP-MAP=MPEGTS:900000,LOCAL:00:00:00.000

REGION
id:fred width:40%

STYLE
::cue { color: red }

NOTE nobody says this

00:01.000 --> 00:02.000
one

WEBVTT
X-TIMESTAMP-MAP=MPEGTS:990000,LOCAL:00:00:00.000

NOTE
nor this

00:02.000 --> 00:03.000
two
"""
    assert [cue.raw for cue in read_transcript(text.encode(), ".vtt", RATE).cues] == ["one", "two"]


def test_rolling_captions_with_timed_words() -> None:
    rolled = vtt(
        (0, 2, "so<00:00:01.000><c> today</c>"),
        (2, 2.01, "so today"),
        (2.01, 4, "so today\nwe<00:00:03.000><c> look</c>"),
        (4, 4.01, "we look"),
        (4.01, 6, "we look\nat<00:00:05.000><c> birds</c>"),
        (6, 6.01, "at birds"),
        (6.01, 8, "at birds\nbirds birds"),
    )
    assert " ".join(said(rolled)) == "so today we look at birds birds birds"


def test_copies_are_said_once_and_repetitions_as_often_as_they_are_said() -> None:
    copies = vtt((0, 2, "Hello."), (0, 2, "<i>Hello.</i>"), (0.1, 2.2, "Hello."), (3, 4, "Bye."))
    assert said(copies) == ["hello", "bye"]
    assert copies[0].end_samples == 2200
    repeated = vtt((0, 1, "No, no, no."), (1, 2, "No, no, no."), (2, 3, "Go."), (3, 4, "Go."), (4, 5, "Go. Go."))
    assert said(repeated) == ["no no no", "no no no", "go", "go", "go go"]


def test_a_stretch_that_scrolls_in_a_file_that_does_not() -> None:
    plain = [(float(i), i + 0.9, f"line {i} of the talk ends") for i in range(40)]
    scroll = [(50.0 + i, 50.9 + i, f"caption part {i}\ncaption part {i + 1}") for i in range(20)]
    found = said(vtt(*plain, *scroll))
    assert len(found) == 60
    assert found[41] == "caption part two"
    assert found[39] == "line thirty nine of the talk ends"


def test_cues_a_little_out_of_order_go_to_their_time() -> None:
    rows = [(float(i), i + 0.9, f"line {i}") for i in range(20)]
    rows[7], rows[8] = rows[8], rows[7]
    found = vtt(*rows)
    assert [cue.start_samples for cue in found] == [i * RATE for i in range(20)]
    far = [Cue(0, 1, "a"), Cue(90_000, 90_001, "b"), Cue(10, 11, "c"), Cue(20, 21, "d")]
    assert put_back(far, 1000) == far
