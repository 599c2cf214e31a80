"""Computes audio fingerprints that survive re-encoding, gain, resampling and shifts (Haitsma and Kalker, "A highly
robust audio fingerprinting system", ISMIR 2002, section 4).

A frame of 0.38 s gives 32 bits. Each says whether the energy difference between two neighbouring bands, from 300 to
2000 Hz, grew since the previous frame. Frames overlap so much that a copy with shifted frames has nearly the same bits.
Copies are found by frames with identical bits, and verified by the share of differing bits over their common length:
a half for unrelated sound, hardly ever above a third for copies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.fft
import soxr
from numpy.typing import NDArray

RATE_HZ = 5000
FRAME, HOP = 1920, 100  # samples
HOP_S = HOP / RATE_HZ
BANDS = 33
LOW_HZ, HIGH_HZ = 300.0, 2000.0
QUIET = 1e-4  # relative to the loudest frame: the bits of quieter frames are noise, or all equal for digital silence
BLOCK_FRAMES = 256  # transformed at once

Bits = NDArray[np.uint32]


@dataclass(frozen=True)
class Fingerprint:
    """bits: uint32 (N,), one value every 20 ms. sounding: (N,) whether the frame is loud enough to count."""

    bits: Bits
    sounding: NDArray[np.bool_]


def fingerprint(samples: NDArray[np.int16], rate_hz: int) -> Fingerprint:
    """The fingerprint of int16 [T]; empty if it is shorter than two frames, 0.4 s."""
    energy = _band_energy(samples, rate_hz)
    if len(energy) < 2:
        return Fingerprint(np.zeros(0, np.uint32), np.zeros(0, np.bool_))
    steps = energy[:, :-1] - energy[:, 1:]
    signs = (steps[1:] - steps[:-1]) > 0
    packed = np.packbits(signs, axis=1).reshape(-1).view(">u4").astype(np.uint32)
    total = energy[1:].sum(axis=1)
    return Fingerprint(packed, total > QUIET * max(float(total.max()), 1.0))


def _band_energy(samples: NDArray[np.int16], rate_hz: int) -> NDArray[np.float64]:
    """(frames, BANDS) at 5 kHz."""
    signal = samples.astype(np.float32)
    if rate_hz != RATE_HZ:
        signal = soxr.resample(signal, rate_hz, RATE_HZ, quality="HQ")
    if len(signal) < FRAME:
        return np.zeros((0, BANDS))
    windows = np.lib.stride_tricks.sliding_window_view(signal, FRAME)[::HOP]
    hanning = np.hanning(FRAME).astype(np.float32)
    edges = LOW_HZ * (HIGH_HZ / LOW_HZ) ** (np.arange(BANDS + 1) / BANDS)
    bins = np.rint(edges * FRAME / RATE_HZ).astype(np.intp)
    result = np.empty((len(windows), BANDS))
    for first in range(0, len(windows), BLOCK_FRAMES):
        block = windows[first : first + BLOCK_FRAMES] * hanning
        spectrum = scipy.fft.rfft(block, axis=1)[:, bins[0] : bins[-1]]
        power = spectrum.real.astype(np.float64) ** 2 + spectrum.imag.astype(np.float64) ** 2
        result[first : first + len(block)] = np.add.reduceat(power, bins[:-1] - bins[0], axis=1)
    return result


def landmarks(found: Fingerprint, every: int) -> Bits:
    """The values that copies are looked up by: one in `every` values of sounding frames, by hash; sorted, unique."""
    values: Bits = np.unique(found.bits[found.sounding])
    chosen: Bits = values[scattered(values.astype(np.uint64)) % np.uint64(every) == 0]
    return chosen


def scattered(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Integers that look random (splitmix64's finaliser: Steele, Lea and Flood, OOPSLA 2014)."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def common_share(one: Fingerprint, other: Fingerprint, value: int, *, least: int) -> tuple[float, int]:
    """(share of equal bits, sounding frames compared) with both aligned at frames with the bits `value`.

    Of all such alignments it takes the best; (0, 0) if no alignment has `least` frames that sound in both.
    """
    best = (0.0, 0)
    places = np.flatnonzero(one.bits == value)[:, None] - np.flatnonzero(other.bits == value)
    for shift in np.unique(places).tolist():
        first, last = max(0, shift), min(len(one.bits), len(other.bits) + shift)
        both = one.sounding[first:last] & other.sounding[first - shift : last - shift]
        frames = int(np.count_nonzero(both))
        if frames < least:
            continue
        different = np.bitwise_count(one.bits[first:last] ^ other.bits[first - shift : last - shift])[both]
        best = max(best, (1 - float(different.mean(dtype=np.float64)) / 32, frames))
    return best
