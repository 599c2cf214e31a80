"""The pitch of speech, by WORLD (Morise et al., 2016; package pyworld)."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

FRAME_MS = 10.0


def pitch(signal: NDArray[np.float32], rate_hz: int, low_hz: float, high_hz: float) -> NDArray[np.float64]:
    """(samples,) in -1 … 1 → (1 + samples // shift,) Hz every 10 ms, 0 where nothing is voiced."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports the deprecated pkg_resources
        import pyworld  # type: ignore[import-untyped]
    wave = signal.astype(np.float64)
    hz, times = pyworld.dio(wave, rate_hz, f0_floor=low_hz, f0_ceil=high_hz, frame_period=FRAME_MS)
    return pyworld.stonemask(wave, hz, times, rate_hz)  # type: ignore[no-any-return]


def filled(hz: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithms of `hz` (T,), in straight lines over what is not voiced; zeros where nothing is."""
    voiced = np.flatnonzero(hz > 0)
    if not len(voiced):
        return np.zeros(len(hz))
    return np.interp(np.arange(len(hz)), voiced, np.log(hz[voiced]))
