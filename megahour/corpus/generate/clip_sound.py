"""Decode a clip, bring it to a common level, and find its audible part."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

from megahour.core.errors import BadRecord
from megahour.corpus.generate.clips import Clip
from megahour.corpus.media.audio import decode
from megahour.corpus.text.normalise import normalise

_AUDIBLE = 10 ** (-35 / 20)  # of the clip's peak
_BLOCK_S = 0.005
_LEVEL = 0.08  # RMS of the audible part


class Sound(NamedTuple):
    """A clip decoded: `samples` float32 (N,), audible from `start` up to `end`, and its normalised `words`."""

    samples: NDArray[np.float32]
    start: int
    end: int
    words: tuple[str, ...]
    raw: str


def load_sound(clip: Clip, read: Callable[[str], bytes], rate_hz: int, longest_s: float, language: str) -> Sound:
    """Decode a clip and bring its audible part to one level.

    Raises
    ------
    BadRecord: ``empty-transcript``, ``too-long``, ``silent-audio``, and those of `audio.decode`.
    """
    words = tuple(normalise(clip.text, language).tokens)
    if not words:
        raise BadRecord("empty-transcript", clip.text, record=clip.name)
    samples = decode(io.BytesIO(read(clip.name)), rate_hz)[:, 0].astype(np.float32) / np.float32(32768)
    if len(samples) > longest_s * rate_hz:
        raise BadRecord("too-long", f"{len(samples) / rate_hz:.1f} s", record=clip.name)
    start, end = audible(samples, rate_hz)
    level = float(np.sqrt(np.mean(np.square(samples[start:end]))))
    return Sound(samples * np.float32(_LEVEL / level), start, end, words, clip.text)


def at_speed(sound: Sound, speed: float, parts: int = 40) -> Sound:
    """The sound replayed at `speed` (rounded to 1/`parts`), as a tape would be: tempo and pitch change together."""
    down = round(speed * parts)
    if down == parts:
        return sound
    samples = resample_poly(sound.samples, parts, down).astype(np.float32)
    start, end = (edge * parts // down for edge in (sound.start, sound.end))
    return sound._replace(samples=samples, start=start, end=min(end, len(samples)))


def audible(samples: NDArray[np.float32], rate_hz: int) -> tuple[int, int]:
    """(start, end) samples of the part between the first and the last block of 5 ms within 35 dB of the peak.

    Raises
    ------
    BadRecord: ``silent-audio``.
    """
    block = max(1, int(rate_hz * _BLOCK_S))
    peaks = np.abs(samples[: len(samples) // block * block]).reshape(-1, block).max(axis=1)
    if not len(peaks) or peaks.max() < 1e-3:
        raise BadRecord("silent-audio", f"peak {float(peaks.max(initial=0)):.5f} in {len(samples)} samples")
    loud = np.flatnonzero(peaks >= _AUDIBLE * peaks.max())
    return int(loud[0]) * block, (int(loud[-1]) + 1) * block
