"""Acoustic conditions from clean to noisy and reverberant: s(t) → band-pass(s * h + n), without clipping, seeded.

A room's impulse response is h(t) = δ(t) + a few early echoes + a noise tail whose energy falls by 60 dB in RT60
seconds, scaled so that 10 log10(direct energy / reverberant energy) is the chosen direct-to-reverberant ratio. The
direct path has no delay, so word times do not change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from megahour.core.errors import ConfigError

Audio = NDArray[np.float32]
Noise = Literal["white", "pink", "hum", "babble"]
Draw = Callable[[int, np.random.Generator], Audio]
"""Draws noise float32 (N,) of RMS 1 for N samples."""

_PEAK = 0.95
_EARLY_ECHOES = 6
_EARLY_S = 0.04
_LEVEL = 0.08  # RMS of the speech at gain 0 dB, about -22 dB full scale
_NOISE_BLOCK = 1 << 20  # samples; a Fourier transform of a whole long recording would take gigabytes
_SYLLABLES_HZ = 4.0  # rate at which babble rises and falls


@dataclass(frozen=True)
class Condition:
    """One acoustic condition; each recording draws uniformly from the ranges.

    rt60_s: reverberation time. direct_db: direct-to-reverberant ratio. snr_db: reverberant speech over the sum of all
    noises. noises: kinds and their shares of the noise energy. band_hz: pass band. gain_db: level.
    """

    rt60_s: tuple[float, float] | None
    direct_db: tuple[float, float]
    snr_db: tuple[float, float]
    noises: tuple[tuple[Noise, float], ...]
    band_hz: tuple[float, float]
    gain_db: tuple[float, float]


CONDITIONS: dict[str, Condition] = {
    "clean": Condition(None, (0, 0), (38, 45), (("pink", 1.0),), (50, 7800), (-2, 4)),
    "office": Condition((0.2, 0.3), (8, 12), (24, 30), (("pink", 0.7), ("hum", 0.3)), (60, 7600), (-3, 3)),
    "room": Condition((0.35, 0.5), (4, 7), (18, 24), (("pink", 0.6), ("babble", 0.4)), (70, 7400), (-5, 2)),
    "noisy": Condition((0.25, 0.4), (5, 8), (11, 16), (("pink", 0.5), ("babble", 0.5)), (90, 7000), (-5, 3)),
    "far": Condition(
        (0.5, 0.7), (0, 3), (10, 14), (("pink", 0.6), ("white", 0.1), ("babble", 0.3)), (100, 6500), (-12, -5)
    ),
}


def impulse_response(rt60_s: float, direct_db: float, rate_hz: int, rng: np.random.Generator) -> Audio:
    """Room impulse response float32 (R,) with h[0] = 1; R is `rt60_s` in samples.

    Parameters
    ----------
    rt60_s: seconds in which the tail falls by 60 dB, between 0.05 and 5.
    direct_db: energy of the direct path over that of the rest of the response.

    Raises
    ------
    ValueError: `rt60_s` is out of range.
    """
    if not 0.05 < rt60_s < 5:
        raise ValueError(f"RT60 must be between 0.05 and 5 s, got {rt60_s}")
    samples = int(rt60_s * rate_hz)
    seconds = np.arange(samples) / rate_hz
    decay = np.exp(-np.log(1000.0) * seconds / rt60_s)  # amplitude: 60 dB = a factor of 1000
    tail = rng.standard_normal(samples) * decay
    onset = int(0.005 * rate_hz)
    tail[:onset] = 0.0
    echoes = rng.integers(onset, int(_EARLY_S * rate_hz), _EARLY_ECHOES)
    np.add.at(tail, echoes, rng.choice([-1.0, 1.0], _EARLY_ECHOES) * decay[echoes] * np.sqrt(0.02 * rate_hz))
    response = tail * (10 ** (-direct_db / 20) / np.sqrt(np.sum(tail**2)))
    response[0] = 1.0
    return np.asarray(response, dtype=np.float32)


def noise(kind: Noise, samples: int, rate_hz: int, rng: np.random.Generator) -> Audio:
    """Noise float32 (samples,) of RMS 1: white; pink (1/f power above 20 Hz); hum (50 Hz and harmonics); babble
    (noise with the spectrum of speech, rising and falling at the rate of syllables)."""
    if kind == "hum":
        cycles = 2 * np.pi * 50.0 * np.arange(samples, dtype=np.float32) / rate_hz
        phases = rng.uniform(0, 2 * np.pi, 5)
        wave = sum(np.sin((2 * k + 1) * cycles + phase) / (k + 1) for k, phase in enumerate(phases))
    else:
        starts = range(0, max(samples, 1), _NOISE_BLOCK)
        blocks = [_coloured(kind, min(_NOISE_BLOCK, samples - start), rate_hz, rng) for start in starts]
        wave = np.concatenate(blocks)
        if kind == "babble":
            wave = wave * _syllables(samples, rate_hz, rng)
    return np.asarray(wave / max(float(np.sqrt(np.mean(np.square(wave)))), 1e-9), dtype=np.float32)


def _coloured(kind: Noise, samples: int, rate_hz: int, rng: np.random.Generator) -> Audio:
    """Gaussian noise (samples,) through `_colour`."""
    length = scipy.fft.next_fast_len(samples, real=True)
    spectrum = scipy.fft.rfft(rng.standard_normal(length, dtype=np.float32))
    hz = scipy.fft.rfftfreq(length, 1 / rate_hz).astype(np.float32)
    return np.asarray(scipy.fft.irfft(spectrum * _colour(kind, hz), length)[:samples], dtype=np.float32)


def _colour(kind: Noise, hz: Audio) -> Audio:
    """Amplitude response (bins,)."""
    if kind == "white":
        return np.ones_like(hz)
    if kind == "pink":
        return np.where(hz < 20, 0, 1 / np.sqrt(np.maximum(hz, 20))).astype(np.float32)
    # Long-term average speech: flat to 500 Hz, then falling by 9 dB an octave (Byrne et al. 1994, figure 2).
    return np.where(hz < 80, 0, np.minimum(1, (np.maximum(hz, 1) / 500) ** -1.5)).astype(np.float32)


def _syllables(samples: int, rate_hz: int, rng: np.random.Generator) -> Audio:
    """Envelope (samples,) of several talkers at once: between 0.3 and 1.7, interpolated between syllables."""
    knots = rng.uniform(0.3, 1.7, int(samples / rate_hz * _SYLLABLES_HZ) + 2)
    wave = np.interp(np.arange(samples) * (_SYLLABLES_HZ / rate_hz), np.arange(len(knots)), knots)
    return np.asarray(wave, dtype=np.float32)


def apply(condition: str, audio: Audio, rate_hz: int, rng: np.random.Generator, recorded: Draw | None = None) -> Audio:
    """Put float32 speech (N,) into a condition of `CONDITIONS`; float32 (N,), peak at most 0.95.

    recorded: draws the noise, as loud as the condition's own kinds, which it replaces.

    Raises
    ------
    ConfigError: unknown condition.
    """
    if condition not in CONDITIONS:
        raise ConfigError(f'there is no condition "{condition}"', remedy=f"use one of {', '.join(CONDITIONS)}")
    import scipy.signal  # takes a second of CPU, which most processes spare

    chosen = CONDITIONS[condition]
    wet = np.array(audio, dtype=np.float32)
    if not len(wet):
        return wet
    if chosen.rt60_s:
        response = impulse_response(rng.uniform(*chosen.rt60_s), rng.uniform(*chosen.direct_db), rate_hz, rng)
        wet = scipy.signal.oaconvolve(wet, response)[: len(audio)].astype(np.float32)
    wet = wet * np.float32(_LEVEL / max(speech_rms(wet, rate_hz), 1e-6))
    noise_rms = _LEVEL * 10 ** (-rng.uniform(*chosen.snr_db) / 20)
    if recorded is not None:
        wet += np.float32(noise_rms) * recorded(len(wet), rng)
    for kind, share in chosen.noises if recorded is None else ():
        wet += np.float32(noise_rms * np.sqrt(share)) * noise(kind, len(wet), rate_hz, rng)
    wet *= np.float32(10 ** (rng.uniform(*chosen.gain_db) / 20))
    low_hz, high_hz = chosen.band_hz[0], min(chosen.band_hz[1], 0.47 * rate_hz)
    sections = scipy.signal.butter(2, (low_hz, high_hz), "bandpass", fs=rate_hz, output="sos").astype(np.float32)
    wet = np.asarray(scipy.signal.sosfilt(sections, wet), dtype=np.float32)
    return wet * np.float32(min(1.0, _PEAK / max(float(np.max(np.abs(wet), initial=0.0)), 1e-9)))


def speech_rms(audio: Audio, rate_hz: int) -> float:
    """RMS over the blocks of 50 ms within 30 dB of the loudest, which leaves pauses out."""
    block = rate_hz // 20
    whole = len(audio) // block * block
    if whole == 0:
        return float(np.sqrt(np.mean(np.square(audio)))) if len(audio) else 0.0
    power = np.mean(np.square(audio[:whole].reshape(-1, block)), axis=1)
    return float(np.sqrt(np.mean(power[power >= 1e-3 * power.max()])))
