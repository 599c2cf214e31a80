"""Small recordings and files that the tests of `corpus` are made of."""

from __future__ import annotations

import io
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

Int16 = npt.NDArray[np.int16]


def murmur(seconds: float, rate_hz: int = 16_000, seed: int = 0) -> Int16:
    """A wandering tone with noise: int16 [T], peak near 0.3, never silent, never clipped."""
    rng = np.random.default_rng(seed)
    n = round(seconds * rate_hz)
    pitch_hz = 200 + 60 * np.sin(2 * np.pi * np.arange(n) / rate_hz / 3 + seed)
    tone = np.sin(2 * np.pi * np.cumsum(pitch_hz) / rate_hz)
    return (8000 * tone + rng.normal(0, 300, n)).astype(np.int16)


def encode(
    samples: npt.NDArray[np.generic], rate_hz: int = 16_000, kind: str = "WAV", subtype: str = "PCM_16"
) -> bytes:
    """int16 or float [T] or [T, C] as the bytes of a file."""
    target = io.BytesIO()
    soundfile.write(target, samples, rate_hz, format=kind, subtype=subtype)
    return target.getvalue()


def most_memory(call: Callable[[], object]) -> int:
    """Bytes that Python's objects took at most during a call."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def put(folder: Path, name: str, data: bytes | str) -> Path:
    """Write a file, making its folder."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path
