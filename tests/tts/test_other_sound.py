"""The other utterances of a voice show where music, other voices or other speakers are heard."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from made_voices import RATE_HZ, corpus, spoken, voice_data
from numpy.typing import NDArray

from megahour.tts.data_stage import unlike_voices
from megahour.tts.durations import Timing
from megahour.tts.other_sound import backgrounds, loudest_db, others, quiet_db

TEXTS = ["ab ba ab", "ba ba ba", "a ab ba"] * 7


def chord(count: int) -> NDArray[np.float64]:
    time_s = np.arange(count) / RATE_HZ
    return np.sin(2 * np.pi * 262 * time_s) + np.sin(2 * np.pi * 330 * time_s) + np.sin(2 * np.pi * 392 * time_s)


def quarantined(folder: Path) -> list[dict[str, str]]:
    path = folder / "quarantine/00000.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_music_under_the_speech_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard = {n: spoken(TEXTS[n], n)[0] for n in (4, 9)}
    heard = {n: (sound + 1200 * chord(len(sound))).astype(np.int16) for n, sound in heard.items()}
    inputs = corpus(tmp_path, texts=TEXTS, heard=heard)
    data = voice_data(tmp_path / "data", inputs)
    assert data.receipt_of(0).counts.dropped == {"loud-background": 2}
    assert data.receipt_of(0).stats["unlike"] == {"s0": [21, 2, 0]}
    assert "unlike_voices" not in data.summary
    assert "under the speech" not in caplog.text, "fewer than a tenth"
    kept = voice_data(tmp_path / "all", inputs, silence_db=0)
    assert kept.receipt_of(0).counts.dropped == {}


def test_a_voice_with_music_throughout_is_kept_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sounds = [spoken(text, n)[0] for n, text in enumerate(TEXTS)]
    heard = {n: (sound + 1200 * chord(len(sound))).astype(np.int16) for n, sound in enumerate(sounds)}
    data = voice_data(tmp_path / "data", corpus(tmp_path, texts=TEXTS, heard=heard))
    assert data.receipt_of(0).counts.dropped.get("loud-background", 0) < 3
    assert data.summary["unlike_voices"]["s0"]["background"] > 0.95
    assert "of the utterances of 's0' 100 % have music, noise or a voice under the speech" in caplog.text


def test_another_speaker_is_found_whole_and_in_part(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megahour.tts.other_sound.LEAST_UTTERANCES", 60)
    long = [f"{text} {text} {text}" for text in TEXTS[:3]] * 20
    other = {n: spoken(long[n], n, tract=1.2)[0] for n in range(5, 60, 10)}
    parts = {n: spoken(long[n], n, tract=1.2)[0] for n in (8, 28)}
    for n, sound in parts.items():
        sound[: len(sound) // 2] = spoken(long[n], n)[0][: len(sound) // 2]
    inputs, keep = corpus(tmp_path, texts=long, heard=other | parts), {"least_confidence": -100, "silence_db": 0}
    data = voice_data(tmp_path / "data", inputs, **keep)
    assert {each["reason"] for each in quarantined(tmp_path / "data")} == {"another-voice"}
    assert data.receipt_of(0).counts.bad == 8
    assert data.receipt_of(0).counts.kept == 52
    assert data.summary["unlike_voices"] == {"s0": {"background": 0.0, "another-voice": round(8 / 60, 4)}}
    assert "in 13 % another speaker is heard" in caplog.text
    every = voice_data(tmp_path / "all", inputs, **keep, voice_distance=1e6)
    assert every.receipt_of(0).counts.kept == 60


def test_a_voice_alone_has_no_others() -> None:
    mels, phones, durations = drawn(np.zeros(200))
    assert (others(mels, phones, durations, 5.5) == -np.inf).all()
    assert np.isnan(others(mels[:199], phones[:199], durations[:199], 5.5)).all(), "too few to tell others from"
    phones[0], durations[0], mels[0] = phones[0][:5], durations[0][:5], mels[0][:30]
    assert np.isnan(others(mels, phones, durations, 5.5)[0]), "four phones"


@pytest.mark.parametrize(("many", "found"), [(4, 0), (5, 5), (40, 40)])
def test_speakers_of_five_utterances_are_found(many: int, found: int) -> None:
    shifts = np.zeros(200)
    shifts[10 : 10 + many] = 1.5
    odds = others(*drawn(shifts), 5.5)
    assert (odds[10 : 10 + found] > 0).all()
    assert (odds > 0).sum() - found <= 2
    assert not (others(*drawn(shifts), 100) > 0).any()


def drawn(
    shifts: NDArray[np.float64],
) -> tuple[list[NDArray[np.float32]], list[NDArray[np.int16]], list[NDArray[np.int32]]]:
    """Mels, phones and durations of utterances whose spectral slope a speaker's shift changes."""
    rng = np.random.default_rng(3)
    shapes = rng.normal(0, 2, (8, 20))
    phones = [np.array([1, *rng.integers(2, 8, 20), 1], np.int16) for _ in shifts]
    durations = [np.full(22, 6, np.int32) for _ in shifts]
    slope = np.linspace(-1, 1, 20)
    mels = [
        (np.repeat(shapes[each] + rng.normal(0, 0.5, (22, 20)), 6, axis=0) + rng.normal(0, 0.2, 20) + shift * slope)
        for each, shift in zip(phones, shifts, strict=True)
    ]
    return [each.astype(np.float32) for each in mels], phones, durations


def test_the_quietest_moments_within_the_speech_or_around_it() -> None:
    times = Timing([" ", "a", " ", "b", " "], np.array([20, 20, 10, 30, 10], np.int32), first=5)
    level = np.full(100, 0.5)
    level[45:55] = 0.005  # 40 dB below, the pause
    signal = np.repeat(level, 80).astype(np.float32)
    assert quiet_db(signal, 80, times) == pytest.approx(-40, abs=0.1)
    level[45:55], level[:20], level[86:] = 0.5, 0.0005, 0.0005  # only the edges are quiet, by 60 dB
    assert quiet_db(np.repeat(level, 80).astype(np.float32), 80, times) == pytest.approx(-56, abs=0.1)
    level[:20], level[86:] = 0.5, 0.5
    assert quiet_db(np.repeat(level, 80).astype(np.float32), 80, times) == pytest.approx(0, abs=0.1)


def test_voiced_frames_where_the_phone_is_not_count() -> None:
    phones, durations = [np.array([1, 2, 3, 2, 3, 2, 1], np.int16)] * 21, [np.full(7, 10, np.int32)] * 21
    usual = np.repeat([False, True, False, True, False, True, False], 10)
    voiced = [usual] * 20 + [usual | (np.arange(70) % 10 == 3)]
    found = backgrounds([-30.0] * 21, phones, durations, voiced)
    assert found[:20] == pytest.approx(-30)
    assert found[20] == pytest.approx(-30 + 60 * 0.05, abs=0.6)
    all_voiced = backgrounds([-30.0] * 21, phones, durations, [usual] * 20 + [np.ones(70, bool)])
    assert all_voiced[20] == pytest.approx(-30 + 60 * 0.07)
    assert np.isnan(backgrounds([-30.0], [np.array([1, 2, 3, 2, 3, 1], np.int16)], [np.full(6, 10)], [usual[:60]])[0])


def test_the_limit_of_a_noisy_voice() -> None:
    assert loudest_db(np.full(20, -14.0), 18) == -6
    assert loudest_db(np.full(19, -14.0), 18) == -18, "too few to know what is usual"
    assert loudest_db(np.append(np.full(30, -30.0), np.nan), 18) == -18
    assert loudest_db(np.full(20, -14.0), 0) == np.inf


def test_a_tenth_of_other_sound_is_named() -> None:
    assert unlike_voices([{"a": [15, 1, 0]}, {"a": [15, 1, 1], "b": [19, 19, 0]}]) == {
        "a": {"background": 0.0667, "another-voice": 0.0333}
    }
    assert unlike_voices([{"a": [31, 2, 1]}]) == {}
