"""Log-mel spectra that can be inverted to audio. Voices are trained on them (stage `tts-data`).

Unlike `fbank`, there is no pre-emphasis, and frames every 10 ms are centred on their times. The Hann window is long
enough to recover phases from neighbouring frames (Griffin and Lim, 1984).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import ConfigError

FLOOR = 1e-4
"""Smallest magnitude of a mel filter, for samples in -1 … 1. It is below the quantisation noise of 16 bits."""


@dataclass(frozen=True)
class MelSpectrum:
    """Spectra at `rate_hz` with `mels` filters from `low_hz` to `high_hz`, windows of `window_s`, a frame every 10 ms.

    `high_hz` ≤ 0 is relative to the Nyquist frequency.

    >>> spectrum = MelSpectrum(rate_hz=16_000, mels=80)
    >>> spectrum.shift, spectrum.size, spectrum.of(np.zeros(16_000, np.float32)).shape
    (160, 1024, (101, 80))
    """

    rate_hz: int
    mels: int = 80
    low_hz: float = 30.0
    high_hz: float = 0.0
    window_s: float = 0.04

    @staticmethod
    def from_config(config: dict[str, Any]) -> MelSpectrum:
        return MelSpectrum(**config)

    @property
    def shift(self) -> int:
        """Samples between frames."""
        return self.rate_hz // 100

    @property
    def length(self) -> int:
        """Samples per window."""
        return round(self.window_s * self.rate_hz)

    @property
    def size(self) -> int:
        """Points of the FFT: the next power of two."""
        return 1 << (self.length - 1).bit_length()

    @cached_property
    def window(self) -> NDArray[np.float32]:
        """(size,): periodic Hann window, padded with zeros on both sides."""
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.length) / self.length)
        padded = np.zeros(self.size, np.float32)
        start = (self.size - self.length) // 2
        padded[start : start + self.length] = hann
        return padded

    @property
    def top_hz(self) -> float:
        """Upper edge of the highest filter."""
        return self.high_hz if self.high_hz > 0 else self.rate_hz / 2 + self.high_hz

    def check(self) -> None:
        """Raise ConfigError if a filter has no frequency of the FFT, or the filters are not below the Nyquist one."""
        if not 0 <= self.low_hz < self.top_hz <= self.rate_hz / 2:
            what = f"mel filters from {self.low_hz:g} to {self.top_hz:g} Hz at a rate of {self.rate_hz} Hz"
            raise ConfigError(what, remedy="give low_hz below high_hz, and high_hz up to half the rate")
        if empty := int((self.filters.max(axis=1) == 0).sum()):
            what = f"{empty} of {self.mels} mel filters lie between two frequencies of the FFT"
            raise ConfigError(what, remedy="give fewer mels or a longer window_s")

    @cached_property
    def filters(self) -> NDArray[np.float32]:
        """(mels, size / 2 + 1): triangular filters, equally spaced in mel(f) = 1127 ln(1 + f / 700)."""
        low, high = (1127 * np.log1p(hz / 700) for hz in (self.low_hz, self.top_hz))
        edges = np.linspace(low, high, self.mels + 2)[:, None]
        mel = 1127 * np.log1p(np.linspace(0, self.rate_hz / 2, self.size // 2 + 1) / 700)[None, :]
        rising = (mel - edges[:-2]) / (edges[1:-1] - edges[:-2])
        falling = (edges[2:] - mel) / (edges[2:] - edges[1:-1])
        return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)  # type: ignore[no-any-return]

    def frames(self, samples: int) -> int:
        """T for a signal of `samples`."""
        return 1 + samples // self.shift

    def of(self, signal: NDArray[np.float32]) -> NDArray[np.float32]:
        """(samples,) in -1 … 1 → (T, mels): log magnitudes of the filters. The ends of the signal are reflected."""
        half = self.size // 2
        padded = np.pad(signal, half, mode="reflect" if len(signal) > half else "constant")
        count = self.frames(len(signal))
        frames = np.lib.stride_tricks.sliding_window_view(padded, self.size)[:: self.shift][:count]
        magnitudes = np.abs(np.fft.rfft(frames * self.window, axis=1)).astype(np.float32)
        return np.log(np.maximum(magnitudes @ self.filters.T, FLOOR))  # type: ignore[no-any-return]
