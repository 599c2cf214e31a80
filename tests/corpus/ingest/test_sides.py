"""Calls with a speaker in each channel: whose lines each channel gets when channels become recordings of their own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from made_media import Int16, encode, murmur, put
from test_ingest import ingest, rows

from megahour.core.store import Artifact
from megahour.corpus.ingest.candidates import Candidate
from megahour.corpus.ingest.sides import ChannelLevels, channels_of_speakers, ends_of, numbers_of_channels
from megahour.corpus.transcripts.cues import Cue
from megahour.engine.local import LocalEngine

RATE_HZ = 16_000
TURNS = [("Ann", 2.0), ("Bob", 3.0), ("Ann", 1.0), ("Bob", 1.5), ("Ann", 4.0), ("Bob", 2.0), ("Ann", 1.5), ("Bob", 2.5)]
WORDS = ["good morning", "hello there", "yes", "of course", "a table for two", "for tonight", "yes please", "thank you"]
Turn = tuple[str, float, float]


def turns() -> list[Turn]:
    """Speaker, start and end in seconds."""
    ends = np.cumsum([seconds for _, seconds in TURNS]).tolist()
    return [(who, end - seconds, end) for (who, seconds), end in zip(TURNS, ends, strict=True)]


def call(leak: float = 0.0, gain: float = 1.0) -> Int16:
    """(T, 2) Ann on the left, Bob on the right; `leak` of each on the other side, and `gain` of the right one."""
    voices = {who: np.zeros(round(turns()[-1][2] * RATE_HZ)) for who in ("Ann", "Bob")}
    for number, (who, start, end) in enumerate(turns()):
        place = slice(round(start * RATE_HZ), round(end * RATE_HZ))
        voices[who][place] = murmur(end - start, seed=number)[: place.stop - place.start]
    left, right = voices["Ann"] + leak * voices["Bob"], gain * (voices["Bob"] + leak * voices["Ann"])
    return np.stack([left, right], axis=1).round().astype(np.int16)


def subtitles(shift_s: float = 0.0, named: bool = True) -> str:
    def clock(seconds: float) -> str:
        return f"00:{max(0.0, seconds):06.3f}"

    cues = (
        f"{clock(start + shift_s)} --> {clock(end + shift_s)}\n{f'<v {who}>' if named else ''}{words}\n"
        for (who, start, end), words in zip(turns(), WORDS, strict=True)
    )
    return "\n".join(["WEBVTT\n", *cues])


def sides(made: Artifact) -> list[str]:
    """The texts of each channel."""
    keys = [row["key"] for row in sorted(rows(made), key=lambda row: row["channel"])]
    cues = rows(made, ".cues.parquet")
    return [" / ".join(cue["text"] for cue in cues if cue["key"] == key) for key in keys]


def split(tmp_path: Path, engine: LocalEngine, samples: Int16, text: str, suffix: str = "vtt") -> list[str]:
    put(tmp_path / "in", "call.wav", encode(samples))
    put(tmp_path / "in", f"call.{suffix}", text)
    return sides(ingest(tmp_path / "out", engine, source=str(tmp_path / "in"), licence="CC0-1.0", channels="split"))


OWN = [" / ".join(WORDS[::2]), " / ".join(WORDS[1::2])]
WHOLE = [" / ".join(WORDS)] * 2


@pytest.mark.parametrize("shift_s", [0.0, 2.0, -3.0])
def test_each_channel_gets_the_lines_of_its_own_speaker(tmp_path: Path, engine: LocalEngine, shift_s: float) -> None:
    """Also with times that are off by more than a turn."""
    assert split(tmp_path, engine, call(leak=0.3, gain=0.25), subtitles(shift_s)) == OWN


@pytest.mark.parametrize("form", ["[{m:02.0f}:{s:05.2f}]{who}: {said}", "{m:.0f}:{s:02.0f} {who}: {said}"])
def test_a_line_without_an_end_lasts_until_the_next(tmp_path: Path, engine: LocalEngine, form: str) -> None:
    """LRC, and a text with clocks in whole seconds."""
    lines = [
        form.format(m=start // 60, s=start % 60, who=who, said=words.capitalize())
        for (who, start, _), words in zip(turns(), WORDS, strict=True)
    ]
    assert split(tmp_path, engine, call(leak=0.3), "\n".join(lines), "lrc" if form[0] == "[" else "txt") == OWN


def test_a_line_that_is_followed_by_silence_counts_no_longer_than_ten_seconds() -> None:
    """And one behind which another speaker's line has no time, as in a subtitle of two speakers, does not count."""
    starts = [("Ann", 0), ("Bob", 2), ("Ann", 40), ("Bob", -1), ("Bob", 50), ("Bob", -1), ("Ann", 52)]
    cues = [Cue(start * 10, -1, "", who) for who, start in starts]
    assert ends_of(cues, rate_hz=10) == [20, 120, -1, -1, 520, -1, -1]


CHANNELS = [("1", "2"), ("A", "B"), ("2", "1"), ("B", "A")]


@pytest.mark.parametrize(("ann", "bob"), CHANNELS)
def test_channels_named_in_a_ctm_alone_decide(tmp_path: Path, engine: LocalEngine, ann: str, bob: str) -> None:
    """Even against the sound, and for words that are spoken at once."""
    lines = [
        f"call {ann if who == 'Ann' else bob} {start + 0.1 * number:.2f} 0.10 {word}"
        for (who, start, _), words in zip(turns(), WORDS, strict=True)
        for number, word in enumerate(words.split())
    ]
    lines += [f"call {channel} 17.20 0.30 bye" for channel in (ann, bob)]
    joined = [f"{own} bye" for own in OWN]  # there is no pause before it
    found = split(tmp_path, engine, call(), "\n".join(lines), "ctm")
    assert [text.replace(" / bye", " bye") for text in found] == (joined if ann < bob else joined[::-1])


def test_channels_named_in_an_stm_decide(tmp_path: Path, engine: LocalEngine) -> None:
    """Although both lines on the left have a speaker who is on the right, too."""
    lines = [
        f"call {'A' if who == 'Ann' else 'B'} unknown {start:.2f} {end:.2f} <o> {words}"
        for (who, start, end), words in zip(turns(), WORDS, strict=True)
    ]
    assert split(tmp_path, engine, call(), "\n".join(lines), "stm") == OWN


def test_a_recogniser_that_heard_each_channel_names_it(tmp_path: Path, engine: LocalEngine) -> None:
    """As `transcribe --channel each --format json` writes it."""
    words = [
        {"word": word, "start": start + 0.1 * number, "end": start + 0.1 * number + 0.1, "channel": 1 + (who == "Bob")}
        for (who, start, _), said in zip(turns(), WORDS, strict=True)
        for number, word in enumerate(said.split())
    ]
    assert split(tmp_path, engine, call(), json.dumps({"text": "", "words": words}), "json") == OWN


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        ("A B A", {"A": 0, "B": 1}),
        ("1 2", {"1": 0, "2": 1}),
        ("0 1", {"0": 0, "1": 1}),
        ("ch_0 ch_1", {"ch_0": 0, "ch_1": 1}),
        ("B", {"B": 1}),  # only the right side was transcribed
        ("1", {}),  # what programs write that know of no channels
        ("A", {}),
        ("0", {}),
        ("1 3", {}),  # of two channels
        ("1 2 mix", {}),
    ],
)
def test_names_of_channels(names: str, numbers: dict[str, int]) -> None:
    assert numbers_of_channels(names.split(), 2) == numbers


def test_lines_without_a_speaker_go_to_both_channels(tmp_path: Path, engine: LocalEngine) -> None:
    text = subtitles().replace("<v Bob>of course", "of course")
    assert split(tmp_path, engine, call(), text) == [
        f"{WORDS[0]} / {WORDS[2]} / of course / {WORDS[4]} / {WORDS[6]}",
        OWN[1],
    ]


def test_a_channel_without_anybody_takes_no_lines(tmp_path: Path, engine: LocalEngine) -> None:
    """A microphone on the left heard both, Ann from near and Bob from far; the right channel is noise."""
    samples = call(leak=0.1)
    samples[:, 1] = np.random.default_rng(0).normal(0, 20, len(samples))
    assert split(tmp_path, engine, samples, subtitles()) == WHOLE


@pytest.mark.parametrize("leak", [0.8, 0.0])
def test_speakers_who_cannot_be_told_apart_share_the_transcript(
    tmp_path: Path, engine: LocalEngine, leak: float
) -> None:
    """Both speakers are on both channels, or neither is named."""
    assert split(tmp_path, engine, call(leak), subtitles(named=leak > 0)) == WHOLE


@pytest.mark.parametrize("plain", ["call.en.srt", "call.srt"])
def test_a_transcript_that_names_speakers_comes_before_one_that_does_not(
    tmp_path: Path, engine: LocalEngine, plain: str
) -> None:
    """Without speakers, both channels would have all lines; without `split`, the documented order stays."""
    srt = "\n\n".join(subtitles(named=False).replace(".", ",").split("\n\n")[1:])
    for name, data in (("call.wav", encode(call())), (plain, srt), ("call.vtt", subtitles())):
        put(tmp_path / "in", name, data)

    def made(channels: str) -> Artifact:
        return ingest(tmp_path / channels, engine, source=str(tmp_path / "in"), licence="CC0-1.0", channels=channels)

    assert {row["speaker"] for row in rows(made("mix"), ".cues.parquet")} == {""}
    assert unread(made("mix")) == ["call.vtt"]
    both = made("split")
    cues = rows(both, ".cues.parquet")
    assert {row["speaker"] for row in cues if row["transcript"] == 0} == {"Ann", "Bob"}
    key = next(row["key"] for row in rows(both) if row["channel"] == 0)
    first = [row["text"] for row in cues if (row["key"], row["transcript"]) == (key, 0)]
    assert " / ".join(first) == OWN[0]
    assert {row["transcript"] for row in cues} == {0, 1}, "`align` may find that the other one matches the audio better"
    assert unread(both) == []
    assert "recordings with a transcript that names speakers or channels" in both.summary["remark"]


def unread(made: Artifact) -> list[str]:
    has_some = bool(made.summary["not_read"])
    return [row["source"] for row in rows(made, ".not_read.parquet")] if has_some else []


def test_a_further_transcript_without_speakers_stays_unread(tmp_path: Path, engine: LocalEngine) -> None:
    """It is not in the declared language's name, and says no more than the one that is."""
    names = ("call.en.srt", "call.vtt", "call.pt.vtt")
    put(tmp_path / "in", "call.wav", encode(call()))
    put(tmp_path / "in", "call.json", '{"licence": "CC0-1.0"}')
    for name in names:
        put(tmp_path / "in", name, subtitles(named=False))
    made = ingest(tmp_path / "out", engine, source=str(tmp_path / "in"), licence="CC0-1.0", channels="split")
    assert {row["transcript"] for row in rows(made, ".cues.parquet")} == {0}
    assert unread(made) == ["call.pt.vtt", "call.vtt"]
    assert "names speakers or channels" not in made.summary["remark"]
    (receipt,) = made.receipts()
    assert not any(name.startswith("candidates_") for name in receipt.stats), "a further form is no bad transcript"


def test_a_copy_with_a_better_transcript_gives_each_channel_its_own_lines(tmp_path: Path, engine: LocalEngine) -> None:
    for name in "ab":
        put(tmp_path / "in", f"{name}.wav", encode(call()))
    put(tmp_path / "in", "a.txt", "good morning")
    put(tmp_path / "in", "b.vtt", subtitles())
    made = ingest(tmp_path / "out", engine, source=str(tmp_path / "in"), licence="CC0-1.0", channels="split")
    assert made.manifest.counts.dropped == {"same-audio": 1}
    assert sides(made) == OWN


def test_speakers_on_one_channel_are_not_torn_apart() -> None:
    """Three speakers, two of whom share a telephone."""
    levels = ChannelLevels(RATE_HZ)
    levels.add(call())
    three = [
        Cue(int(s * RATE_HZ), int(e * RATE_HZ), "", "Ann" if who == "Ann" else f"Bob{int(s) % 2}")
        for who, s, e in turns()
    ]
    found = channels_of_speakers(Candidate(three, [], "en", None), levels.in_db(), RATE_HZ)  # type: ignore[arg-type]
    assert found == {"Ann": 0, "Bob0": 1, "Bob1": 1}


@pytest.mark.parametrize("late_s", [6.0, 10.0, -12.0])
def test_times_that_are_far_off_swap_nobody(late_s: float) -> None:
    """Turns alternate: a shift of some seconds has each speaker's lines in the other's turns."""
    ends = np.cumsum([4, 5, 4, 6, 5, 4, 5, 5, 4, 6, 5, 4, 5, 4])
    in_db = np.full((ends[-1] * 10, 2), 20.0)
    cues = []
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        in_db[start * 10 : end * 10, number % 2] = 60
        times = (round((edge + late_s) * RATE_HZ) for edge in (start, end))
        cues.append(Cue(*times, "", ("Ann", "Bob")[number % 2]))
    found = channels_of_speakers(Candidate(cues, [], "en", None), in_db, RATE_HZ)  # type: ignore[arg-type]
    assert found == {}


def test_statistics_and_examples_say_which_transcripts_were_divided(tmp_path: Path, engine: LocalEngine) -> None:
    for name, named in (("a", True), ("b", False), ("c", True)):
        put(tmp_path / "in", f"{name}.wav", encode(call(gain=0.5 if name == "a" else 1.0)[: 250_000 + ord(name)]))
        put(tmp_path / "in", f"{name}.vtt", subtitles(named=named))
    made = ingest(tmp_path / "out", engine, source=str(tmp_path / "in"), licence="CC0-1.0", channels="split")
    (receipt,) = made.receipts()
    assert (receipt.stats["transcripts_divided"], receipt.stats["transcripts_on_every_channel"]) == (2, 1)
    (example,) = receipt.stats["examples"]["not-divided"]
    assert example["name"] == "b"
    assert example["detail"].startswith("1 of 1 transcripts")
    assert "divided between channels: 2; transcripts given whole" in made.summary["remark"]


def test_levels_do_not_depend_on_blocks() -> None:
    samples, whole, parts = call(), ChannelLevels(RATE_HZ), ChannelLevels(RATE_HZ)
    whole.add(samples)
    for start in range(0, len(samples), 7777):
        parts.add(samples[start : start + 7777])
    assert np.array_equal(whole.in_db(), parts.in_db())
    assert whole.in_db().shape == (len(samples) // 1600, 2)
