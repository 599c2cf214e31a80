"""Conditions simulated on cepstra: what a channel, noise and a room do to the log mel energies behind them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from megahour.features import simulated as module
from megahour.features.cepstra_mels import mel_matrix
from megahour.features.params import Simulated
from megahour.features.simulated import simulated

FRAME_S = 0.01


def utterance(frames: int = 60, dims: int = 40) -> NDArray[np.float32]:
    """As many cepstra as mels, so that nothing of the energies is lost: a pause, a word, a pause."""
    rng = np.random.default_rng(1)
    logs = rng.normal(0, 0.5, (frames, dims)) + np.where(np.arange(frames) % frames < frames // 2, 1.0, 12.0)[:, None]
    return (logs @ np.linalg.pinv(mel_matrix(dims, dims).astype(np.float64))).astype(np.float32)


def mels(cepstra: NDArray[np.float32]) -> NDArray[np.float64]:
    return cepstra.astype(np.float64) @ mel_matrix(cepstra.shape[1], 40).astype(np.float64)


@pytest.mark.parametrize("condition", ["channel", "noise", "reverb"])
def test_a_key_always_draws_the_same_and_another_key_something_else(condition: Simulated) -> None:
    x = utterance()
    before = x.copy()
    one, again, other = (simulated(condition, x, key, FRAME_S) for key in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    np.testing.assert_array_equal(x, before)
    assert one.dtype == np.float32
    assert np.abs(one - other).max() > 0.1


def test_a_channel_adds_one_smooth_curve_to_every_frame() -> None:
    change = mels(simulated("channel", utterance(), 1, FRAME_S)) - mels(utterance())
    np.testing.assert_allclose(change, np.broadcast_to(change[0], change.shape), atol=1e-4)
    assert np.abs(np.diff(change[0])).max() < 0.5 < np.ptp(change[0])


def test_the_curves_of_channels_deviate_by_one_neper() -> None:
    x = utterance(frames=1)
    curves = [mels(simulated("channel", x, key, FRAME_S))[0] - mels(x)[0] for key in range(400)]
    assert np.std(curves) == pytest.approx(module.CHANNEL, rel=0.1)


def test_noise_fills_the_pauses_and_leaves_loud_speech(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SNR_DB", (10.0, 10.0))
    x = utterance(frames=2000)
    noisy, clean = mels(simulated("noise", x, 1, FRAME_S)), mels(x)
    speech = np.exp(clean[1000:]).mean()
    assert np.exp(noisy[:1000]).mean() / speech == pytest.approx(0.1, rel=0.03)  # 10 dB
    assert np.exp(noisy[1000:]).mean() / speech == pytest.approx(1.1, rel=0.03)
    assert (noisy >= clean - 1e-3).all()
    low, high = (np.exp(noisy[:1000, f]).mean() for f in (0, -1))
    assert 1 <= low / high <= 10**1.2
    fluctuation = np.exp(noisy[:1000, 5])
    assert fluctuation.std() / fluctuation.mean() == pytest.approx(1 / np.sqrt(module.BINS), rel=0.1)


def test_a_room_adds_the_decaying_energy_of_the_frames_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RT60_S", (0.3, 0.3))
    monkeypatch.setattr(module, "DIRECT_DB", (3.0, 3.0))
    x = utterance(frames=80)
    power, wet = np.exp(mels(x)), np.exp(mels(simulated("reverb", x, 1, FRAME_S)))
    fall = 10 ** (-6 * FRAME_S / 0.3)  # 60 dB of energy in 0.3 s
    weights = fall ** np.arange(1, 2000)
    weights *= 10**-0.3 / weights.sum()  # the tail has half the energy of the direct sound
    expected = [
        power[t] + sum((weights[k - 1] * power[t - k] for k in range(1, t + 1)), np.zeros(40)) for t in range(80)
    ]
    np.testing.assert_allclose(wet, expected, rtol=1e-3)
