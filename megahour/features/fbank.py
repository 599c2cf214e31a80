"""Log-mel filter banks by Kaldi's algorithm: 25 ms windows every 10 ms, no dither, with or without `snip_edges`.

Per frame: remove the mean, pre-emphasise (0.97), apply the "povey" window (Hann^0.85), zero-pad to a power of two,
power spectrum, triangular filters equally spaced in mel(f) = 1127 ln(1 + f/700), natural logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from megahour.features import kernels
from megahour.features.params import SHIFT_S

WINDOW_S = 0.025
PREEMPHASIS = kernels.PREEMPHASIS_PERCENT / 100
BLOCK_FRAMES = 512  # frames per pass: 1 MB of float32, which stays in cache
FLOOR = np.float32(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Bank:
    """Precomputed window and filters of one configuration."""

    window: NDArray[np.float32]  # (L,)
    filters: NDArray[np.float32]  # (N/2, F)
    shift: int
    size: int  # N, of the FFT

    @cached_property
    def fast(self) -> tuple[Any, ...]:
        """Arguments of the fast path: the window divided by 100, the FFT's rotations, the filters without zeros."""
        bands, weights = np.zeros((self.filters.shape[1], 3), np.uint64), []
        start = 0
        for f, column in enumerate(self.filters.T):
            used = np.flatnonzero(column)
            first, end = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
            bands[f] = first, end, start
            weights.append(column[first:end])
            start += end - first
        window = (self.window.astype(np.float64) / 100).astype(np.float32)
        return window, kernels.twiddles(), kernels.unpacking(), kernels.LANES, bands, np.concatenate(weights)


def frame_count(samples: int, rate_hz: int, *, mirrored: bool = False) -> int:
    """T for a signal of `samples`: whole windows only, or one every 10 ms with `mirrored` ends.

    >>> frame_count(16_000, 16_000), frame_count(16_000, 16_000, mirrored=True)
    (98, 100)
    """
    length, shift = round(WINDOW_S * rate_hz), round(SHIFT_S * rate_hz)
    return (samples + shift // 2) // shift if mirrored else max(0, 1 + (samples - length) // shift)


def lead_samples(rate_hz: int) -> int:
    """Samples by which the first window starts before the signal when its ends are mirrored."""
    return round(WINDOW_S * rate_hz) // 2 - round(SHIFT_S * rate_hz) // 2


def with_mirrored_ends(signal: NDArray[np.float32], rate_hz: int) -> NDArray[np.float32]:
    """The signal with its ends reflected, so that whole windows give the frames of Kaldi with `snip_edges=false`.

    >>> len(with_mirrored_ends(np.zeros(16_000, np.float32), 16_000))
    16240
    """
    length, shift = round(WINDOW_S * rate_hz), round(SHIFT_S * rate_hz)
    frames, lead = frame_count(len(signal), rate_hz, mirrored=True), lead_samples(rate_hz)
    if not frames:
        return signal[:0]
    after = (frames - 1) * shift + length - lead - len(signal)
    return np.pad(signal[: len(signal) + min(0, after)], (lead, max(0, after)), mode="symmetric")


def log_mel(
    samples: NDArray[Any],
    rate_hz: int = 16_000,
    mels: int = 64,
    low_hz: float = 20.0,
    high_hz: float = 0.0,
    floor: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """(samples,) int16, or float in the int16 scale → (T, mels) float32, no lower than `floor` (mels,), if given.

    `high_hz` ≤ 0 is relative to the Nyquist frequency. On speech the result is within 1e-3 of kaldi-native-fbank,
    except at 11,025 Hz: of a window of 275.6 samples Kaldi takes 275, we take 276.

    Raises
    ------
    ValueError: the filters do not fit under the Nyquist frequency.

    >>> log_mel(np.zeros(16_000, np.int16)).shape
    (98, 64)
    """
    bank = _bank(rate_hz, mels, low_hz, high_hz)
    signal = np.ascontiguousarray(samples, dtype=np.float32)
    if bank.size != kernels.SIZE or bank.window.size % 2:
        result = plain_log_mel(signal, bank)
    else:
        result = np.empty((frame_count(signal.size, rate_hz), mels), np.float32)
        kernels.log_mel_512(signal, bank.shift, *bank.fast, FLOOR, result)
    if floor is not None:
        np.maximum(result, floor, out=result)
    return result


@lru_cache(maxsize=8)
def noise_floor(rate_hz: int, mels: int = 64, low_hz: float = 20.0, high_hz: float = 0.0) -> NDArray[np.float32]:
    """Log energies (mels,) of noise 6 dB below that of rounding to 16 bits, whose variance is 1/12.

    A floor for `log_mel` of samples in the int16 scale. Digital silence, as of a muted side of a call or a pause cut by
    an editor, is many nats below any room otherwise, and all noise above it would pass for speech. Sounds of 16 bits
    are above this floor, but for chance in bands that hold only rounding noise, such as those that resampling left
    empty.

    >>> rounding = np.random.default_rng(0).uniform(-0.5, 0.5, 16_000)
    >>> bool((log_mel(rounding).mean(0) > noise_floor(16_000)).all())
    True
    """
    bank = _bank(rate_hz, mels, low_hz, high_hz)
    turn = 2j * np.pi * np.arange(bank.size // 2) / bank.size
    emphasis = np.square(np.abs(1 - PREEMPHASIS * np.exp(-turn)))
    energy = 1 / 48 * np.square(bank.window, dtype=np.float64).sum() * (emphasis @ bank.filters)
    floor: NDArray[np.float32] = np.log(np.maximum(energy, FLOOR)).astype(np.float32)
    floor.flags.writeable = False  # the callers share it
    return floor


def empty_filters(rate_hz: int, mels: int, low_hz: float, high_hz: float) -> int:
    """The number of filters that no frequency of the FFT lies in. Raises ValueError as `log_mel` does.

    >>> empty_filters(16_000, 80, 20.0, 0.0), empty_filters(8_000, 128, 20.0, 0.0)
    (0, 4)
    """
    return int((_bank(rate_hz, mels, low_hz, high_hz).filters.sum(axis=0) == 0).sum())


def plain_log_mel(signal: NDArray[np.float32], bank: Bank) -> NDArray[np.float32]:
    """(samples,) → (T, F) float32 with SciPy's FFT, for windows of any length."""
    length = bank.window.size
    frames = max(0, 1 + (signal.size - length) // bank.shift)
    result = np.empty((frames, bank.filters.shape[1]), np.float32)
    for first in range(0, frames, BLOCK_FRAMES):
        n = min(BLOCK_FRAMES, frames - first)
        part = signal[first * bank.shift : (first + n - 1) * bank.shift + length]
        windows = np.lib.stride_tricks.sliding_window_view(part, length)[:: bank.shift]
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
    return Bank((hann**0.85).astype(np.float32), _filters(rate_hz, size, mels, low_hz, top), shift, size)


def _filters(rate_hz: int, size: int, mels: int, low_hz: float, high_hz: float) -> NDArray[np.float32]:
    """Triangular filters (N/2, F), in single precision like Kaldi's.

    A filter's weight near its edge is a small difference of large mel values. If a loud tone falls on an edge, exact
    weights would move the features by 1e-3 from Kaldi's.
    """
    one = np.float32
    low, high = _mel(one(low_hz)), _mel(one(high_hz))
    step = one((high - low) / one(mels + 1))
    bins = _mel(one(rate_hz) / one(size) * np.arange(size // 2, dtype=np.float32))[:, None]
    left, centre, right = (low + np.arange(i, mels + i, dtype=np.float32) * step for i in range(3))
    rising, falling = (bins - left) / (centre - left), (right - bins) / (right - centre)
    filters: NDArray[np.float32] = np.maximum(one(0), np.where(bins <= centre, rising, falling))
    return filters


def _mel(hz: Any) -> Any:
    """Mel value in single precision. The logarithm is computed in double and rounded, so all machines agree."""
    ratio = (np.float32(1) + np.asarray(hz, np.float32) / np.float32(700)).astype(np.float64)
    return np.float32(1127) * np.log(ratio).astype(np.float32)
