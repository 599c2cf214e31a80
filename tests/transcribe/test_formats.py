"""Transcripts as text, subtitles, JSON and CTM, and audio from pipes."""

from __future__ import annotations

import io
import json
import os

import numpy as np
import pytest
import soundfile

from megahour.core.errors import ConfigError
from megahour.transcribe.channels import merged
from megahour.transcribe.formats import as_json, ctm, srt, text, vtt
from megahour.transcribe.live import live_blocks
from megahour.transcribe.recogniser import TimedWord
from megahour.transcribe.session import Transcription

WORDS = [
    TimedWord("a", 0.0, 0.25, 0.9),
    TimedWord("<b>", 0.3, 1.0, 0.5),
    TimedWord("c", 3661.5, 3662.0, 1.0),
]


def transcript(words: list[TimedWord]) -> Transcription:
    return Transcription("my talk.wav", "student", 3700.0, words)


def test_a_pause_ends_a_subtitle() -> None:
    made = transcript(WORDS)
    assert text(made) == "a <b>\nc\n"
    assert srt(made) == ("1\n00:00:00,000 --> 00:00:01,000\na <b>\n\n2\n01:01:01,500 --> 01:01:02,000\nc\n\n")
    assert vtt(made) == ("WEBVTT\n\n00:00:00.000 --> 00:00:01.000\na &lt;b&gt;\n\n01:01:01.500 --> 01:01:02.000\nc\n\n")
    assert ctm(made).splitlines()[1:] == ["my_talk.wav 1 0.300 0.700 <b> 0.5", "my_talk.wav 1 3661.500 0.500 c 1.0"]
    assert json.loads(as_json(made))["words"][0] == {"word": "a", "start": 0.0, "end": 0.25, "confidence": 0.9}
    made.remarks.append("the file ends early")
    assert json.loads(as_json(made))["remarks"] == ["the file ends early"], "for programs that see no standard error"


def test_a_subtitle_ends_when_it_is_full() -> None:
    long = [TimedWord("word", n * 0.5, n * 0.5 + 0.4, 1.0) for n in range(40)]
    lines = text(transcript(long)).splitlines()
    assert [len(line.split()) for line in lines] == [12, 12, 12, 4]  # 6 s each
    wide = [TimedWord("x" * 30, n * 0.5, n * 0.5 + 0.4, 1.0) for n in range(4)]
    assert [len(line.split()) for line in text(transcript(wide)).splitlines()] == [2, 2]


def test_words_without_times_have_a_line_for_the_whole_recording() -> None:
    made = transcript([TimedWord("a"), TimedWord("b")])
    assert srt(made) == "1\n00:00:00,000 --> 01:01:40,000\na b\n\n"
    assert ctm(made) == ""
    assert json.loads(as_json(made))["words"] == [{"word": "a"}, {"word": "b"}]


def test_a_name_that_is_no_utf8_makes_valid_json_and_ctm() -> None:
    made = Transcription(os.fsdecode(b"talks/\xff talk.wav"), "student", 1.0, WORDS[:1])
    assert json.loads(as_json(made).encode("utf-8"))["file"] == r"talks/\xff talk.wav"
    assert ctm(made).encode("utf-8").startswith(rb"\xff_talk.wav 1 0.000")


def test_the_channel_that_was_heard_is_named() -> None:
    """The two people of a call, with the same file name, are two sides for sclite."""
    made = transcript(WORDS[:1])
    assert ctm(made) == "my_talk.wav 1 0.000 0.250 a 0.9\n"
    assert "channel" not in json.loads(as_json(made))
    made.channel = 2
    assert ctm(made) == "my_talk.wav 2 0.000 0.250 a 0.9\n"
    assert json.loads(as_json(made))["channel"] == 2


def test_lines_and_words_of_several_channels_name_theirs() -> None:
    """A person is interrupted: subtitles are those of one voice each."""
    one = Transcription("call.wav", "student", 2.0, [TimedWord("a", 0.0, 0.3, 1.0), TimedWord("<b>", 0.5, 0.9, 1.0)])
    other = Transcription("call.wav", "student", 2.5, [TimedWord("c", 0.4, 0.6, 1.0)], ["1.00 s: no path"])
    one.channel, other.channel = 1, 2
    one.remarks, other.remarks = ["the file ends early"], ["the file ends early", "clipped"]
    made = merged([one, other])
    assert text(made) == "1: a <b>\n2: c\n"
    assert srt(made).splitlines()[1:3] == ["00:00:00,000 --> 00:00:00,900", "1: a <b>"]
    assert "<v Channel 1>a &lt;b&gt;\n" in vtt(made)
    assert [line.split()[1:3] for line in ctm(made).splitlines()] == [["1", "0.000"], ["1", "0.500"], ["2", "0.400"]]
    found = json.loads(as_json(made))
    assert [(word["word"], word["channel"]) for word in found["words"]] == [("a", 1), ("c", 2), ("<b>", 1)]
    assert (found["text"], found["seconds"]) == ("1: a <b>\n2: c", 2.5)
    assert "channel" not in found
    assert found["lost"] == ["channel 2: 1.00 s: no path"]
    assert found["remarks"] == ["the file ends early", "channel 2: clipped"]
    one.words = [TimedWord("a"), TimedWord("b")]
    assert text(merged([one, other])) == "1: a b\n2: c\n", "words without times are not mixed"


def test_a_wave_from_a_pipe_has_the_samples_of_the_file() -> None:
    samples = np.arange(-4000, 4000, dtype=np.int16)
    file = io.BytesIO()
    soundfile.write(file, np.stack([samples, samples], axis=1), 8000, format="WAV", subtype="PCM_16")
    data = bytearray(file.getvalue())
    data[4:8] = data[40:44] = b"\xff\xff\xff\xff"  # as a recorder writes it that does not know its end
    assert np.array_equal(np.concatenate(list(live_blocks(io.BytesIO(data), 8000))), samples)
    raw = np.concatenate(list(live_blocks(io.BytesIO(samples.tobytes() + b"x"), 8000, rate_hz=8000)))
    assert np.array_equal(raw, samples)
    slower = np.concatenate(list(live_blocks(io.BytesIO(samples.tobytes()), 4000, rate_hz=8000)))
    assert len(slower) == 4000


def test_what_follows_the_samples_of_a_wave_is_not_heard() -> None:
    """A title or cover: it was noise at the end of a stream, with words."""
    samples = np.arange(-4000, 4000, dtype=np.int16)
    file = io.BytesIO()
    soundfile.write(file, samples, 8000, format="WAV", subtype="PCM_16")
    data = bytearray(file.getvalue()) + b"id3 " + (3000).to_bytes(4, "little") + bytes(range(1, 251)) * 12
    assert np.array_equal(np.concatenate(list(live_blocks(io.BytesIO(data), 8000))), samples)
    for unknown in (0, 0x7FFFFFFF - 36, 0x80000000, 0xFFFFFFFF):  # of recorders, which go on
        data[40:44] = unknown.to_bytes(4, "little")
        heard = np.concatenate(list(live_blocks(io.BytesIO(data), 8000)))
        assert len(heard) == len(samples) + 1504
        assert np.array_equal(heard[: len(samples)], samples)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "talk.mp3: no audio arrived"),
        (b"ID3" + bytes(100), "talk.mp3: not a WAV file"),
        (b"RIFF\0\0\0\0WAVEdata\0\0\0\0", "damaged"),
        (b"RIFF\0\0\0\0WAVEjunk\xff\xff\xff\x7f", "damaged"),
        (b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\6\0\1\0" + bytes(10) + b"\x08\0", "kind 6, 8 bits"),
    ],
)
def test_what_is_no_wave_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list(live_blocks(io.BytesIO(data), 8000, where="talk.mp3"))


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
@pytest.mark.parametrize("form", ["WAV", "WAVEX"])  # WAVEX: with an extensible header
def test_a_wave_of_any_samples_has_the_scale_of_16_bits(form: str, subtype: str) -> None:
    samples = np.arange(-32768, 32768, 256, dtype=np.float32)  # what 8 bits can hold
    file = io.BytesIO()
    soundfile.write(file, np.stack([samples, samples], axis=1) / 32768, 8000, format=form, subtype=subtype)
    heard = list(live_blocks(io.BytesIO(file.getvalue()), 8000))
    assert np.array_equal(np.concatenate(heard), samples)
    assert {block.dtype for block in heard} == {np.dtype(np.float32)}


def test_floats_beyond_full_scale_are_clipped_and_those_that_are_no_numbers_are_named() -> None:
    def heard(values: list[float]) -> np.ndarray:
        file = io.BytesIO()
        soundfile.write(file, np.array(values, np.float32), 8000, format="WAV", subtype="FLOAT")
        return np.concatenate(list(live_blocks(io.BytesIO(file.getvalue()), 8000)))

    assert heard([0.5, 3.0, -1e20]).tolist() == [16384.0, 32767.0, -32768.0]
    for wrong in (np.nan, np.inf):
        with pytest.raises(ConfigError, match="standard input: NaN or infinity among the samples"):
            heard([0.5] * 2000 + [wrong])


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG"])
def test_a_file_is_not_taken_for_raw_samples(form: str) -> None:
    """Its header and, of eight bits or floats, all of it would be heard as noise."""
    file = io.BytesIO()
    soundfile.write(file, np.zeros(8000), 8000, format=form, subtype="PCM_U8" if form == "WAV" else None)
    with pytest.raises(ConfigError, match=r"standard input: an audio file .* in place of raw 16-bit samples"):
        list(live_blocks(io.BytesIO(file.getvalue()), 8000, rate_hz=8000))
