"""Changes of audio before features are computed: levels, times, and clips that are too short or silent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.signal
from made_audio import RATE_HZ, audio_artifact, speech

from megahour.core.errors import StoreError
from megahour.corpus.generate.rooms import speech_rms
from megahour.features.clips import Clips
from megahour.features.codecs import FORMATS, apply_codec
from megahour.features.params import WaveformParams
from megahour.features.perturb import Perturb, at_speed

SPEECH = speech(1, 1.2).astype(np.float32) / 32768
SILENCE = np.zeros(RATE_HZ, np.int16)


def clips(folder: Path, *sounds: np.ndarray, rate_hz: int = RATE_HZ) -> Clips:
    return Clips(audio_artifact(folder, [[sound] for sound in sounds], rate_hz), "noises")


def tone(hz: float, seconds: float, rate_hz: int = RATE_HZ) -> np.ndarray:
    return (9000 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate_hz)) / rate_hz)).astype(np.int16)


def loudest_hz(signal: np.ndarray) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(signal))) * RATE_HZ / len(signal))


def lag(one: np.ndarray, other: np.ndarray) -> int:
    """The delay of `other` in samples."""
    size = 2 * len(one)
    found = int(np.argmax(np.fft.irfft(np.fft.rfft(other, size) * np.conj(np.fft.rfft(one, size)))))
    return found - size if found > size // 2 else found


@pytest.mark.parametrize("generated", [True, False])
def test_noise_has_the_given_level(tmp_path: Path, generated: bool) -> None:
    noises = None if generated else clips(tmp_path, tone(5000, 0.3))
    perturb = Perturb(WaveformParams(noise=1.0, snr_db=(7.0, 7.0)), 1, noises)
    added = perturb.augmented(SPEECH, RATE_HZ, 5, 0) - SPEECH
    snr_db = 20 * np.log10(speech_rms(SPEECH, RATE_HZ) / np.sqrt(np.mean(added**2)))
    assert snr_db == pytest.approx(7.0, abs=0.01)
    if not generated:
        assert loudest_hz(added[-4000:]) == pytest.approx(5000, abs=10), "a clip that is too short is repeated"


def test_a_long_clip_is_read_from_any_place_and_at_any_rate(tmp_path: Path) -> None:
    rising = np.concatenate([tone(hz, 0.5, 24_000) for hz in range(500, 5500, 500)])
    noises = clips(tmp_path, rising, rate_hz=24_000)
    found = [noises.excerpt(2000, RATE_HZ, np.random.default_rng(i)) for i in range(12)]
    assert {len(each) for each in found} == {2000}
    heard = {round(loudest_hz(each) / 500) for each in found}
    assert len(heard) > 4
    assert heard <= set(range(1, 11))


def test_another_rate_is_resampled(tmp_path: Path) -> None:
    found = clips(tmp_path, tone(3000, 1.0, 24_000), rate_hz=24_000).excerpt(8000, RATE_HZ, np.random.default_rng(0))
    assert loudest_hz(found) == pytest.approx(3000, abs=3)


def test_what_is_silent_stays_and_silent_noise_is_drawn_again(tmp_path: Path) -> None:
    quiet = np.zeros(8000, np.float32)
    only_silence = Perturb(WaveformParams(noise=1.0), 1, clips(tmp_path / "a", SILENCE))
    assert only_silence.augmented(SPEECH, RATE_HZ, 1, 0) is SPEECH
    half_silence = Perturb(WaveformParams(noise=1.0), 1, clips(tmp_path / "b", SILENCE, tone(300, 1.0)))
    changed = [half_silence.augmented(SPEECH, RATE_HZ, key, 0) is not SPEECH for key in range(12)]
    assert sum(changed) > 9
    silent_rooms = Perturb(WaveformParams(reverb=1.0), 1, None, clips(tmp_path / "c", SILENCE))
    assert silent_rooms.augmented(SPEECH, RATE_HZ, 1, 0) is SPEECH
    everything = Perturb(WaveformParams(noise=1.0, reverb=1.0), 1)
    assert not everything.augmented(quiet, RATE_HZ, 1, 0).any()


@pytest.mark.parametrize("generated", [True, False])
def test_a_room_keeps_time_and_level(tmp_path: Path, generated: bool) -> None:
    response = np.zeros(9000, np.int16)
    response[[700, 1500, 3100]] = -30000, 12000, 8000  # the direct sound comes late, and upside down
    rooms = None if generated else clips(tmp_path, response)
    wet = Perturb(WaveformParams(reverb=1.0), 1, None, rooms).augmented(SPEECH, RATE_HZ, 3, 0)
    assert np.sqrt(np.mean(wet**2)) == pytest.approx(np.sqrt(np.mean(SPEECH**2)), rel=1e-4)
    assert lag(SPEECH, wet if generated else -wet) == 0
    assert not np.allclose(wet, SPEECH, atol=0.01)


@pytest.mark.parametrize("codec", [*FORMATS, "packet-loss"])
@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050])
def test_codecs_lose_something_and_keep_time(codec: str, rate_hz: int) -> None:
    hiss = np.random.default_rng(1).normal(0, 0.1, 12_001)
    band = scipy.signal.butter(4, (600, 2500), "bandpass", fs=rate_hz, output="sos")
    signal = scipy.signal.sosfilt(band, hiss).astype(np.float32)
    out = apply_codec(codec, signal, rate_hz, np.random.default_rng(3))
    assert (out.dtype, len(out)) == (np.float32, len(signal))
    assert not np.array_equal(out, signal)
    assert abs(lag(signal, out)) <= rate_hz / 4000, "a quarter of a millisecond"
    np.testing.assert_array_equal(out, apply_codec(codec, signal, rate_hz, np.random.default_rng(3)))


def test_lost_packets_are_a_few_in_bursts() -> None:
    out = apply_codec("packet-loss", np.ones(320 * 20_000, np.float32), RATE_HZ, np.random.default_rng(2))
    lost = out.reshape(-1, 320).max(axis=1) == 0
    assert 0.01 < lost.mean() < 0.1
    bursts = np.flatnonzero(np.diff(np.concatenate([[False], lost]).astype(int)) == 1)
    assert lost.sum() / len(bursts) == pytest.approx(2.0, abs=0.3)


def test_speed_shifts_time_and_pitch_together() -> None:
    fast = at_speed(tone(1000, 1.0).astype(np.float32), 1.25)
    assert len(fast) == RATE_HZ / 1.25
    assert loudest_hz(fast) == pytest.approx(1250, abs=3)


def test_each_kind_is_drawn_with_its_share_independently_of_the_others() -> None:
    keys = np.arange(2000)
    speeds = Perturb(WaveformParams(speed=0.6), 1).speeds(keys, 0)
    assert [np.mean(speeds == speed) for speed in (0.9, 1.0, 1.1)] == pytest.approx([0.3, 0.4, 0.3], abs=0.04)
    one = Perturb(WaveformParams(volume=0.4), 1)
    two = Perturb(WaveformParams(volume=0.4, noise=0.4, speed=0.4), 1)
    gains = [one.gain_db(key, 0) for key in range(500)]
    assert gains == [two.gain_db(key, 0) for key in range(500)]
    loud = np.array(gains) != 0
    assert loud.mean() == pytest.approx(0.4, abs=0.07)
    short = SPEECH[:400]
    noisy = np.array([two.augmented(short, RATE_HZ, key, 0) is not short for key in range(500)])
    for other in (noisy, two.speeds(np.arange(500), 0) != 1):
        assert (loud & other).mean() == pytest.approx(0.16, abs=0.05)


@pytest.mark.parametrize(("seed", "epoch"), [(1, 1), (2, 0)])
def test_another_epoch_or_seed_draws_other_changes(seed: int, epoch: int) -> None:
    everything = WaveformParams(speed=0.5, noise=1.0, volume=0.5)
    first, other = Perturb(everything, 1), Perturb(everything, seed)
    keys = np.arange(100)
    assert not np.array_equal(first.speeds(keys, 0), other.speeds(keys, epoch))
    assert [first.gain_db(key, 0) for key in range(100)] != [other.gain_db(key, epoch) for key in range(100)]
    assert not np.allclose(first.augmented(SPEECH, RATE_HZ, 7, 0), other.augmented(SPEECH, RATE_HZ, 7, epoch))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speeds": [0.9, 3.0]}, "from 0.5 to 2"),
        ({"snr_db": (20, 5)}, "give the lower end first"),
        ({"rt60_s": (0.01, 0.3)}, "between 0.05 and 5"),
        ({"codecs": []}, "at least 1"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WaveformParams.model_validate(options)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    noises = audio_artifact(tmp_path, [[tone(300, 1.0)]])
    path = Path(noises.shard_path(0, ".tar"))
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(StoreError, match=r"shard 0: the tar ends before byte"):
        Clips(noises, "noises").excerpt(100, RATE_HZ, np.random.default_rng(0))
