"""Log-mel spectra that can be made into sound again: what voices are trained on (stage `tts-data`).

Unlike `fbank` there is no pre-emphasis and no window of Kaldi's: a frame every 10 ms, centred on its time, of a Hann
window long enough that phases can be found from neighbouring frames (Griffin and Lim, 1984).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

FLOOR = 1e-4
"""Of the magnitudes of a mel filter, samples in -1 … 1: below the noise of 16 bits."""


@dataclass(frozen=True)
class MelSpectrum:
    """One analysis: `rate_hz`, `mels` filters from `low_hz` to `high_hz`, windows of `window_s`, frames 10 ms apart.

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
        """Samples of a window."""
        return round(self.window_s * self.rate_hz)

    @property
    def size(self) -> int:
        """Samples of the FFT: the next power of two."""
        return 1 << (self.length - 1).bit_length()

    @cached_property
    def window(self) -> NDArray[np.float32]:
        """(size,): periodic Hann, zeros on both sides."""
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.length) / self.length)
        padded = np.zeros(self.size, np.float32)
        start = (self.size - self.length) // 2
        padded[start : start + self.length] = hann
        return padded

    @cached_property
    def filters(self) -> NDArray[np.float32]:
        """(mels, size / 2 + 1): triangles, equally spaced in mel(f) = 1127 ln(1 + f / 700)."""
        high_hz = self.high_hz if self.high_hz > 0 else self.rate_hz / 2 + self.high_hz
        low, high = (1127 * np.log1p(hz / 700) for hz in (self.low_hz, high_hz))
        edges = np.linspace(low, high, self.mels + 2)[:, None]
        mel = 1127 * np.log1p(np.linspace(0, self.rate_hz / 2, self.size // 2 + 1) / 700)[None, :]
        rising = (mel - edges[:-2]) / (edges[1:-1] - edges[:-2])
        falling = (edges[2:] - mel) / (edges[2:] - edges[1:-1])
        return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)  # type: ignore[no-any-return]

    def frames(self, samples: int) -> int:
        """T of a signal of `samples`."""
        return 1 + samples // self.shift

    def of(self, signal: NDArray[np.float32]) -> NDArray[np.float32]:
        """(samples,) in -1 … 1 → (T, mels): logarithms of the filters' magnitudes; the ends are reflected."""
        half = self.size // 2
        padded = np.pad(signal, half, mode="reflect" if len(signal) > half else "constant")
        count = self.frames(len(signal))
        frames = np.lib.stride_tricks.sliding_window_view(padded, self.size)[:: self.shift][:count]
        magnitudes = np.abs(np.fft.rfft(frames * self.window, axis=1)).astype(np.float32)
        return np.log(np.maximum(magnitudes @ self.filters.T, FLOOR))  # type: ignore[no-any-return]
