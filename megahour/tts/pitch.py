"""Track the pitch of speech with WORLD (Morise et al., 2016; package pyworld)."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

FRAME_MS = 10.0


def pitch(signal: NDArray[np.float32], rate_hz: int, low_hz: float, high_hz: float) -> NDArray[np.float64]:
    """Pitch in Hz every 10 ms, (1 + samples // shift,), of a signal (samples,) in -1 … 1; 0 in unvoiced frames."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyworld imports the deprecated pkg_resources
        import pyworld  # type: ignore[import-untyped]
    wave = signal.astype(np.float64)
    hz, times = pyworld.dio(wave, rate_hz, f0_floor=low_hz, f0_ceil=high_hz, frame_period=FRAME_MS)
    return pyworld.stonemask(wave, hz, times, rate_hz)  # type: ignore[no-any-return]


def filled(hz: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural log of `hz` (T,), linearly interpolated over unvoiced frames; zeros if no frame is voiced."""
    voiced = np.flatnonzero(hz > 0)
    if not len(voiced):
        return np.zeros(len(hz))
    return np.interp(np.arange(len(hz)), voiced, np.log(hz[voiced]))
