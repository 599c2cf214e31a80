"""Rooms: seeded, without clipping, as reverberant and noisy as set, and speech keeps its times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from megahour.core.errors import ConfigError
from megahour.corpus.generate.espeak import speak
from megahour.corpus.generate.rooms import CONDITIONS, apply, impulse_response, noise

RATE_HZ = 16_000


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def bursts(seconds: float = 4.0) -> NDArray[np.float32]:
    """Noise that alternates with silence every half second."""
    samples = int(seconds * RATE_HZ)
    on = (np.arange(samples) // (RATE_HZ // 2)) % 2 == 0
    return (0.2 * generator(9).standard_normal(samples) * on).astype(np.float32)


@pytest.mark.parametrize("condition", list(CONDITIONS))
def test_seeded_float32_same_length_and_peak_safe(condition: str) -> None:
    once, again = (apply(condition, bursts(), RATE_HZ, generator(5)) for _ in range(2))
    assert once.dtype == np.float32
    assert once.shape == bursts().shape
    assert np.array_equal(once, again)
    assert not np.array_equal(once, apply(condition, bursts(), RATE_HZ, generator(6)))
    assert np.abs(once).max() <= 0.951


def test_conditions_rise_in_difficulty() -> None:
    """Spectral distance between the rendered and the dry speech grows from clean to far."""
    speech = speak("the quick brown fox jumps over the lazy dog near the river bank", "en-us").samples
    dry = speech.astype(np.float32)[: len(speech) // 160 * 160] / 32768
    distances = [
        np.mean([_distance(dry, apply(name, dry, RATE_HZ, generator(seed))) for seed in range(4)])
        for name in CONDITIONS
    ]
    assert list(CONDITIONS) == ["clean", "office", "room", "noisy", "far"]
    assert distances == sorted(distances), distances
    assert distances[-1] > 2 * distances[0]


def _distance(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """RMS difference of log spectra over blocks of 10 ms in 12 bands of 500 Hz, levels set equal, floor -40 dB."""

    def log_bands(audio: NDArray[np.float32]) -> NDArray[np.float64]:
        power = np.abs(np.fft.rfft(audio.reshape(-1, 160))) ** 2
        bands = power[:, 1:61].reshape(len(power), 12, 5).sum(axis=2)
        return np.log10(np.maximum(bands / bands.mean(), 1e-4))

    return float(np.sqrt(np.mean(np.square(log_bands(one) - log_bands(other)))))


@settings(max_examples=15)
@given(rt60_s=st.floats(0.15, 1.2), direct_db=st.floats(-3, 15), seed=st.integers(0, 1000))
def test_impulse_response_has_its_decay_and_direct_ratio(rt60_s: float, direct_db: float, seed: int) -> None:
    response = impulse_response(rt60_s, direct_db, RATE_HZ, generator(seed)).astype(np.float64)
    energy = response**2
    assert np.argmax(energy) == 0 or direct_db < 3
    assert 10 * np.log10(energy[0] / energy[1:].sum()) == pytest.approx(direct_db, abs=0.1)
    # Schroeder's backward integration: the decay of the tail from 50 ms on, over the next fifth of RT60, is 12 dB.
    remaining = np.cumsum(energy[::-1])[::-1]
    start, span = int(0.05 * RATE_HZ), int(0.2 * rt60_s * RATE_HZ)
    drop_db = 10 * np.log10(remaining[start] / remaining[start + span])
    assert drop_db == pytest.approx(12, abs=3)


@pytest.mark.parametrize("kind", ["white", "pink", "hum", "babble"])
def test_noises_have_unit_power_and_their_colours(kind: str) -> None:
    wave = noise(kind, 2 * RATE_HZ, RATE_HZ, generator(1))  # type: ignore[arg-type]
    assert np.sqrt(np.mean(np.square(wave))) == pytest.approx(1, abs=1e-3)
    power = np.abs(np.fft.rfft(wave)) ** 2
    low, high = power[: len(power) // 4].sum(), power[len(power) // 4 :].sum()
    assert (low > 2 * high) == (kind != "white")


def test_speech_keeps_its_place() -> None:
    impulse = np.zeros(RATE_HZ, np.float32)
    impulse[8000] = 1
    for condition in CONDITIONS:
        found = int(np.argmax(np.abs(apply(condition, impulse, RATE_HZ, generator(2)))))
        assert abs(found - 8000) <= 8, condition


def test_silence_and_nothing_survive() -> None:
    assert np.isfinite(apply("far", np.zeros(8000, np.float32), RATE_HZ, generator(0))).all()
    assert apply("clean", np.zeros(0, np.float32), RATE_HZ, generator(0)).shape == (0,)


def test_unknown_condition() -> None:
    with pytest.raises(ConfigError, match='no condition "moon"'):
        apply("moon", bursts(), RATE_HZ, generator(0))
