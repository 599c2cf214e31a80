"""Log-mel features: Kaldi's values for any length, level and rate."""

from __future__ import annotations

from typing import Any

import kaldi_native_fbank as knf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from megahour.features.extract import energies
from megahour.features.fbank import _bank, frame_count, log_mel, noise_floor, plain_log_mel, with_mirrored_ends
from megahour.features.frontend import _Mels
from megahour.features.kernels import _log
from megahour.features.params import FeaturesParams

RATE_HZ = 16_000


def kaldi(
    samples: NDArray[Any], rate_hz: int = RATE_HZ, mels: int = 64, high_hz: float = 0.0, *, snip_edges: bool = True
) -> NDArray[np.float32]:
    options = knf.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.samp_freq = rate_hz
    options.frame_opts.snip_edges = snip_edges
    options.mel_opts.num_bins = mels
    options.mel_opts.high_freq = high_hz
    options.energy_floor = 0
    bank = knf.OnlineFbank(options)
    bank.accept_waveform(rate_hz, samples.astype(np.float32).tolist())
    bank.input_finished()
    return np.array([bank.get_frame(i) for i in range(bank.num_frames_ready)], np.float32).reshape(-1, mels)


def voice(seconds: float, rate_hz: int = RATE_HZ, seed: int = 0, level: float = 3000.0) -> NDArray[np.int16]:
    """A gliding harmonic tone that comes and goes, over noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate_hz)) / rate_hz
    phase = 2 * np.pi * np.cumsum(120 + 40 * np.sin(3 * t)) / rate_hz
    tone = sum(np.sin(k * phase) / k for k in range(1, 20)) * (np.sin(5 * t) > -0.3)
    return (level * tone + rng.normal(0, level / 50, t.size)).clip(-32768, 32767).astype(np.int16)


@pytest.mark.parametrize("mels", [23, 40, 64, 80])
def test_equal_to_kaldi_to_a_thousandth(mels: int) -> None:
    samples = voice(3.0)
    np.testing.assert_allclose(log_mel(samples, mels=mels), kaldi(samples, mels=mels), atol=1e-3, rtol=0)


@pytest.mark.parametrize("rate_hz", [8_000, 16_040, 22_050, 44_100])
def test_other_rates_equal_to_kaldi_too(rate_hz: int) -> None:
    samples = voice(1.0, rate_hz)
    np.testing.assert_allclose(log_mel(samples, rate_hz), kaldi(samples, rate_hz), atol=2e-3, rtol=0)


def test_upper_edge_counts_down_from_nyquist() -> None:
    samples = voice(1.0)
    np.testing.assert_allclose(log_mel(samples, high_hz=-400), kaldi(samples, high_hz=-400), atol=1e-3, rtol=0)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050])
@pytest.mark.parametrize("samples", [0, 39, 40, 100, 199, 5_333, 16_013])
def test_mirrored_ends_are_kaldis_frames_without_snip_edges(rate_hz: int, samples: int) -> None:
    signal = voice(0.75, rate_hz)[:samples].astype(np.float32) / 32768
    got, want = (
        log_mel(with_mirrored_ends(signal, rate_hz), rate_hz, high_hz=-400),
        kaldi(signal, rate_hz, high_hz=-400, snip_edges=False),
    )
    assert len(got) == len(want) == frame_count(len(signal), rate_hz, mirrored=True)
    np.testing.assert_allclose(got, np.maximum(want, np.log(np.finfo(np.float32).eps)), atol=2e-3, rtol=0)


def test_silence_with_an_offset_is_silence() -> None:
    flat = log_mel(np.full(8000, 1234, np.int16))
    assert flat == pytest.approx(np.log(np.finfo(np.float32).eps))


@pytest.mark.parametrize("offset", [0, 3, -500])
def test_digital_silence_is_heard_as_very_quiet_noise(offset: int) -> None:
    """Of a muted side of a call; it was many nats below. In streams, too; the other scale has a higher floor."""
    p, still = FeaturesParams(), np.full(RATE_HZ, offset, np.int16)
    heard, noise = energies(p, still, RATE_HZ), np.random.default_rng(0).normal(0, (1 / 48) ** 0.5, RATE_HZ)
    assert np.ptp(heard, axis=0).max() == 0.0
    assert np.abs(heard[0] - np.log(np.exp(log_mel(noise)).mean(0))).max() < 0.5
    mels = _Mels(RATE_HZ, p.mels, p.low_hz, p.high_hz, floor=noise_floor(RATE_HZ))
    blocks = np.array_split(still.astype(np.float32), 7)
    assert np.array_equal(np.concatenate([mels.push(block) for block in blocks]), heard)
    assert (energies(FeaturesParams(scale="unit"), still, RATE_HZ) == np.log(np.finfo(np.float32).eps)).all()


@pytest.mark.parametrize("rate_hz", [8000, 16_000, 44_100])
@pytest.mark.parametrize("level", [100.0, 3000.0])
def test_a_recording_is_above_the_floor(rate_hz: int, level: float) -> None:
    """Its features stay as they were, to the last bit, even if its noise is two steps of 16 bits."""
    p, recording = FeaturesParams(mels=40), voice(2.0, rate_hz, level=level)
    assert np.array_equal(energies(p, recording, rate_hz), log_mel(recording, rate_hz, 40))


@settings(max_examples=30)
@given(length=st.integers(0, 16_000), level=st.floats(1, 30_000), seed=st.integers(0, 99))
def test_fast_path_equals_the_plain_one(length: int, level: float, seed: int) -> None:
    samples = voice(1.0, seed=seed, level=level)[:length]
    fast = log_mel(samples)
    assert fast.shape == (frame_count(length, RATE_HZ), 64)
    plain = plain_log_mel(samples.astype(np.float32), _bank(RATE_HZ, 64, 20.0, 0.0))
    np.testing.assert_allclose(fast, plain, atol=2e-3, rtol=0)


@settings(max_examples=15)
@given(start=st.integers(0, 150), frames=st.integers(1, 100))
def test_a_frame_does_not_depend_on_its_neighbours(start: int, frames: int) -> None:
    """So features computed in pieces have the same bits."""
    samples = voice(3.0)
    piece = samples[start * 160 : (start + frames - 1) * 160 + 400]
    np.testing.assert_array_equal(log_mel(piece), log_mel(samples)[start : start + frames])


def test_integer_and_float_samples_agree() -> None:
    samples = voice(0.5)
    np.testing.assert_array_equal(log_mel(samples), log_mel(samples.astype(np.float32)))


def test_filters_narrower_than_a_bin_are_empty_on_both_paths() -> None:
    samples = voice(0.2)
    fast, bank = log_mel(samples, mels=200, low_hz=0.0), _bank(RATE_HZ, 200, 0.0, 0.0)
    assert (bank.filters.max(axis=0) == 0).any()
    np.testing.assert_allclose(fast, plain_log_mel(samples.astype(np.float32), bank), atol=2e-3, rtol=0)


def test_filters_above_nyquist_are_refused() -> None:
    with pytest.raises(ValueError, match="9000"):
        log_mel(voice(0.1), high_hz=9000)


def test_logarithms_are_those_of_numpy_to_the_last_bits() -> None:
    """The comparison with Kaldi's features has a tolerance of 0.001, which might hide a wrong coefficient."""
    values = np.exp(np.linspace(-80, 80, 20_001)).astype(np.float32)
    values[:3] = 0.0, 1e-30, 1.0
    floor = np.float32(1e-10)
    expected = np.log(np.maximum(values, floor).astype(np.float64))
    scratch = np.empty_like(values)
    _log(values, values.view(np.int32), floor, scratch, scratch.view(np.int32))
    np.testing.assert_allclose(values, expected, rtol=3e-7, atol=1e-7)
