"""Log-mel filter banks: Kaldi's algorithm, 25 ms windows every 10 ms, no dither, `snip_edges`.

Per frame: remove the mean, pre-emphasise (0.97), apply the "povey" window (Hann^0.85), zero-pad to a power of two,
power spectrum, triangular filters equally spaced in mel(f) = 1127 ln(1 + f/700), natural logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

WINDOW_S, SHIFT_S = 0.025, 0.010
PREEMPHASIS = 0.97
BLOCK_FRAMES = 512  # frames a pass: 1 MB of float32, stays in cache
FLOOR = np.float32(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Bank:
    """Constants of one configuration."""

    window: NDArray[np.float32]  # (L,)
    filters: NDArray[np.float32]  # (N/2, F)
    shift: int
    size: int  # N, of the FFT


def frame_count(samples: int, rate_hz: int) -> int:
    """T for a signal of `samples`: whole windows only."""
    length, shift = round(WINDOW_S * rate_hz), round(SHIFT_S * rate_hz)
    return max(0, 1 + (samples - length) // shift)


def log_mel(
    samples: NDArray[Any], rate_hz: int = 16_000, mels: int = 64, low_hz: float = 20.0, high_hz: float = 0.0
) -> NDArray[np.float32]:
    """(samples,) int16, or float in the int16 scale → (T, mels) float32.

    `high_hz` ≤ 0 counts from the Nyquist frequency. Equal to kaldi-native-fbank to 1e-3 on speech.
    """
    bank = _bank(rate_hz, mels, low_hz, high_hz)
    length = bank.window.size
    frames = frame_count(samples.size, rate_hz)
    signal = np.ascontiguousarray(samples, dtype=np.float32)
    result = np.empty((frames, mels), np.float32)
    for first in range(0, frames, BLOCK_FRAMES):
        n = min(BLOCK_FRAMES, frames - first)
        part = signal[first * bank.shift : (first + n - 1) * bank.shift + length]
        windows = np.lib.stride_tricks.as_strided(part, (n, length), (4 * bank.shift, 4))
        centred = windows - windows.mean(axis=1, keepdims=True, dtype=np.float32)
        emphasised = np.zeros((n, bank.size), np.float32)
        emphasised[:, 1:length] = centred[:, 1:] - np.float32(PREEMPHASIS) * centred[:, :-1]
        emphasised[:, 0] = np.float32(1 - PREEMPHASIS) * centred[:, 0]
        emphasised[:, :length] *= bank.window
        spectrum = scipy.fft.rfft(emphasised, axis=1, overwrite_x=True)[:, : bank.size // 2]
        power = spectrum.real**2 + spectrum.imag**2
        np.log(np.maximum(power @ bank.filters, FLOOR), out=result[first : first + n])
    return result


@lru_cache(maxsize=8)
def _bank(rate_hz: int, mels: int, low_hz: float, high_hz: float) -> Bank:
    length, shift = round(WINDOW_S * rate_hz), round(SHIFT_S * rate_hz)
    size = 1 << (length - 1).bit_length()
    top = high_hz if high_hz > 0 else rate_hz / 2 + high_hz
    if not 0 <= low_hz < top <= rate_hz / 2:
        raise ValueError(f"mel filters from {low_hz} to {top} Hz do not fit under {rate_hz / 2} Hz")
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / (length - 1))
    edges = np.linspace(_mel(low_hz), _mel(top), mels + 2)
    bins = _mel(np.arange(size // 2) * rate_hz / size)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    filters = np.maximum(0.0, np.minimum(rising, falling))
    return Bank((hann**0.85).astype(np.float32), filters.astype(np.float32), shift, size)


def _mel(hz: Any) -> Any:
    return 1127.0 * np.log(1.0 + np.asarray(hz) / 700.0)
