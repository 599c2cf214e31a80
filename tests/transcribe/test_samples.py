"""Samples from Python: any usual scale and container gives the same words, and what has no scale is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from exported import model, voice

from megahour.core.errors import BadRecord, ConfigError
from megahour.transcribe.parts import parts_of
from megahour.transcribe.recogniser import Recogniser
from megahour.transcribe.session import stream, transcribe

SAMPLES = voice(2.0, 1)
FLOATS = SAMPLES / 32768


@pytest.fixture(scope="module")
def recogniser(tmp_path_factory: pytest.TempPathFactory) -> Recogniser:
    folder = tmp_path_factory.mktemp("recogniser")
    model(folder / "model", "tdnn")
    return Recogniser(parts_of(str(folder / "model")))


@pytest.mark.parametrize(
    "audio", [FLOATS, FLOATS.astype(np.float32), torch.tensor(FLOATS), SAMPLES.astype(np.int64), FLOATS.tolist()]
)
def test_floats_in_one_and_integers_are_the_same_sound(recogniser: Recogniser, audio: Any) -> None:
    expected = transcribe(SAMPLES, recogniser, rate_hz=8000)
    assert expected.text
    assert transcribe(audio, recogniser, rate_hz=8000) == expected


def test_a_path_is_a_path(recogniser: Recogniser, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", SAMPLES, 8000)
    heard = transcribe(tmp_path / "a.wav", recogniser)
    assert (heard.text, heard.name) == (transcribe(SAMPLES, recogniser, rate_hz=8000).text, str(tmp_path / "a.wav"))


def test_a_file_in_place_of_raw_samples_is_named(recogniser: Recogniser, tmp_path: Path) -> None:
    """It was "standard input", of which a program has none."""
    soundfile.write(tmp_path / "a.wav", SAMPLES, 8000)
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path / 'a.wav'}: an audio file")):
        transcribe(tmp_path / "a.wav", recogniser, rate_hz=8000)


def test_channels_have_numbers_from_1(recogniser: Recogniser, tmp_path: Path) -> None:
    """-1 was the first one."""
    soundfile.write(tmp_path / "a.wav", np.stack([SAMPLES, SAMPLES], axis=1), 8000)
    with pytest.raises(BadRecord, match="channel -1 of 2"):
        transcribe(tmp_path / "a.wav", recogniser, channel=-1)


def test_a_recording_that_was_interrupted_is_read_with_a_remark(recogniser: Recogniser, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", SAMPLES, 8000)
    data = bytearray((tmp_path / "a.wav").read_bytes())
    data[40:44] = bytes(4)  # the length of the samples
    (tmp_path / "a.wav").write_bytes(data)
    heard = transcribe(tmp_path / "a.wav", recogniser)
    assert heard.text == transcribe(SAMPLES, recogniser, rate_hz=8000).text
    assert "the recorder was interrupted" in heard.remarks[0]


def test_a_path_is_watched_too(recogniser: Recogniser, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", SAMPLES, 8000)
    seen: list[float] = []
    transcribe(tmp_path / "a.wav", recogniser, watch=seen.append)
    assert seen[-1] == len(SAMPLES) / 8000


def test_long_samples_are_processed_in_parts(recogniser: Recogniser) -> None:
    seen: list[float] = []
    transcribe(np.tile(SAMPLES, 11), recogniser, rate_hz=8000, watch=seen.append)
    assert seen == [10.0, 20.0, 22.0]


def test_a_mean_is_settled_unless_the_model_learnt_without(tmp_path: Path) -> None:
    """As in a stream: with `settled` off, in chunks, and for features that were made with `restarts`."""
    learnt, cold = (model(tmp_path / name, "tdnn") for name in ("speakers", "restarts"))
    config = Path(cold.path("shards/00000.model.json"))
    values = json.loads(config.read_text("utf-8"))
    config.write_text(json.dumps(values | {"audio": values["audio"] | {"restarts": 0.5}}), "utf-8")
    texts = [
        transcribe(SAMPLES, Recogniser(parts_of(each.url)), rate_hz=8000, settled=settled).text
        for each, settled in ((learnt, True), (learnt, False), (cold, True))
    ]
    assert texts[0] != texts[1] == texts[2]


@pytest.mark.parametrize(
    "audio",
    [SAMPLES.astype(np.float32), SAMPLES.astype(np.int32) << 16, np.full(800, np.nan), np.zeros(800, np.complex64)],
)
def test_samples_in_no_scale_are_refused(recogniser: Recogniser, audio: Any) -> None:
    with pytest.raises(BadRecord, match="give int16, or floats from -1 to 1") as caught:
        transcribe(audio, recogniser, rate_hz=8000)
    assert caught.value.reason == "sample-scale"


@pytest.mark.parametrize(("audio", "rate_hz"), [(SAMPLES, 0), (SAMPLES, 16), (SAMPLES[:, None], 8000)])
def test_a_rate_in_kilohertz_none_or_two_axes_are_refused(recogniser: Recogniser, audio: Any, rate_hz: int) -> None:
    """At 16 Hz half a minute of samples would be eight hours of audio."""
    with pytest.raises(BadRecord, match="give mono ones, and rate_hz from 4000 to 384000"):
        transcribe(audio, recogniser, rate_hz=rate_hz)


def test_no_samples_are_no_words(recogniser: Recogniser) -> None:
    assert transcribe(np.zeros(0), recogniser, rate_hz=8000).text == ""


def test_an_hour_is_not_one_utterance(recogniser: Recogniser) -> None:
    """Attention over an hour used to take 16 GB, until the machine had no more."""
    hour = np.broadcast_to(np.int16(0), 3600 * 8000)
    with pytest.raises(BadRecord, match="more than 600 s, the limit of one utterance; without --whole any length"):
        transcribe(hour, recogniser, rate_hz=8000, whole=True)


@pytest.mark.parametrize(
    ("gain", "remark"),
    [
        (0, ["it is silent: all samples are 0"]),
        (0.002, ["the level is very low: it peaks at -55 dBFS"]),
        (1, []),
        (4, ["% of the samples are at full scale (clipped)"]),
        (32768, ["where full scale is 1"]),
    ],
)
def test_clipped_and_very_low_files_are_recognised_with_a_remark(
    gain: float, remark: list[str], recogniser: Recogniser, tmp_path: Path
) -> None:
    """Floats in the scale of int16 used to be clipped to a square wave without a word."""
    soundfile.write(tmp_path / "a.wav", FLOATS / np.abs(FLOATS).max() * 0.9 * gain, 8000, subtype="FLOAT")
    remarks = transcribe(tmp_path / "a.wav", recogniser).remarks
    assert len(remarks) == len(remark)
    assert all(words in given for words, given in zip(remark, remarks, strict=True))


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (np.array([0.0, np.nan]), "nan-audio: NaN or infinity within 2 samples after 0.5 s"),
        (np.array([np.inf]), "nan-audio"),
        (np.zeros((80, 2)), r"sample-shape: a block of shape \(80, 2\)"),
    ],
)
def test_a_block_of_a_stream_that_would_silence_the_rest_is_named(
    recogniser: Recogniser, block: np.ndarray, reason: str
) -> None:
    with pytest.raises(BadRecord, match=reason):
        list(stream(recogniser, [voice(0.5, 1).astype(np.float32), block]))
    lists = [voice(0.5, 1).tolist(), []]
    assert list(stream(recogniser, lists)) == list(stream(recogniser, [np.array(each) for each in lists]))
