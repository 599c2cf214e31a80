"""How far one recording of speech is from another that says the same: mel-cepstra, pitch and voicing along one path.

The mel-cepstral distortion is that of pymcd: WORLD's envelope every 5 ms at 22,050 Hz, 14 mel-cepstra (warped by 0.65,
the 0th among them), a path of FastDTW over those but the 0th, decibels.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from megahour.core.compiled import compiled
from megahour.features.codecs import resampled

RATE_HZ, SHIFT_MS, SIZE, ORDER, ALPHA = 22_050, 5.0, 512, 13, 0.65
RADIUS = 1
DECIBELS = 10 / np.log(10) * np.sqrt(2)
Float64 = NDArray[np.float64]


class HeardSpeech(NamedTuple):
    """One recording: mel-cepstra (T, 14) and pitch (T,) in Hz, 0 where nothing is voiced, every 5 ms."""

    cepstra: Float64
    pitch_hz: Float64


@dataclass(frozen=True)
class Distortion:
    """mcd_db; pitch_cents: root mean square where both are voiced (NaN: nowhere); voicing: share of frames where one
    is voiced and the other is not; slower: length of the second over that of the first."""

    mcd_db: float
    pitch_cents: float
    voicing: float
    slower: float


def heard(signal: NDArray[np.float32], rate_hz: int) -> HeardSpeech:
    """(samples,) in -1 … 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports the deprecated pkg_resources
        import pyworld  # type: ignore[import-untyped]
    wave = resampled(signal, rate_hz, RATE_HZ)
    pitch_hz, envelope, _ = pyworld.wav2world(wave.astype(np.float64), RATE_HZ, fft_size=SIZE, frame_period=SHIFT_MS)
    return HeardSpeech(mel_cepstra(envelope), pitch_hz)


def mel_cepstra(envelope: Float64) -> Float64:
    """(T, SIZE / 2 + 1) → (T, ORDER + 1): cepstra of the logarithm, on a frequency axis that is warped by ALPHA.

    Like pymcd, which takes the envelope's power for an amplitude: its floor of 1e-8 is then at -40 dB of full scale.
    """
    cepstra = np.fft.irfft(np.log(envelope**2 + 1e-8), axis=1)[:, : SIZE // 2 + 1]
    cepstra[:, [0, -1]] /= 2
    found: Float64 = cepstra @ _warp()
    return found


@lru_cache(maxsize=1)
def _warp() -> Float64:
    """(SIZE / 2 + 1, ORDER + 1): the frequency transform of Oppenheim and Johnson (1972), as a matrix."""
    matrix = np.zeros((SIZE // 2 + 1, ORDER + 1))
    beta = 1 - ALPHA * ALPHA
    for i in range(SIZE // 2 + 1):
        found = np.zeros(ORDER + 1)
        for n in range(i, -1, -1):
            before = found.copy()
            found[0] = (n == i) + ALPHA * before[0]
            found[1] = beta * before[0] + ALPHA * before[1]
            for k in range(2, ORDER + 1):
                found[k] = before[k - 1] + ALPHA * (before[k] - found[k - 1])
        matrix[i] = found
    return matrix


def distortion(one: HeardSpeech, other: HeardSpeech) -> Distortion:
    """Of `other` from `one`, along the path that pymcd would take."""
    i, j = coarse_to_fine_path(one.cepstra[:, 1:], other.cepstra[:, 1:])
    apart = np.sqrt(((one.cepstra[i] - other.cepstra[j]) ** 2).sum(axis=1))
    first, second = one.pitch_hz[i], other.pitch_hz[j]
    both = (first > 0) & (second > 0)
    cents = 1200 * np.log2(second[both] / first[both])
    return Distortion(
        mcd_db=float(DECIBELS * apart.mean()),
        pitch_cents=float(np.sqrt((cents**2).mean())) if both.any() else float("nan"),
        voicing=float(((first > 0) != (second > 0)).mean()),
        slower=len(other.cepstra) / len(one.cepstra),
    )


Path = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Rows of two recordings that go together, from both beginnings to both ends."""


def warping_path(x: Float64, y: Float64) -> Path:
    """Of `x` (N, D) and `y` (M, D): the path with the least sum of distances."""
    return _within(x, y, np.zeros(len(x), np.int64), np.full(len(x), len(y)))


def coarse_to_fine_path(x: Float64, y: Float64) -> Path:
    """The path that is best near that of both at half the rate (FastDTW, Salvador and Chan, 2007; radius 1).

    Its distances are some per cent above the least: figures of others are made with it.
    """
    if min(len(x), len(y)) < RADIUS + 2:
        return warping_path(x, y)
    i, j = coarse_to_fine_path(_halved(x), _halved(y))
    return _within(x, y, *_near(i, j, len(x), len(y)))


def _halved(x: Float64) -> Float64:
    whole = x[: len(x) - len(x) % 2]
    return (whole[::2] + whole[1::2]) / 2


def _within(x: Float64, y: Float64, first: NDArray[np.int64], end: NDArray[np.int64]) -> Path:
    path = _path(np.ascontiguousarray(x), np.ascontiguousarray(y), first, end)
    return path[:, 0], path[:, 1]


@compiled
def _near(i: NDArray[np.int64], j: NDArray[np.int64], n: int, m: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each of `n` rows the first column, and the one after the last, within RADIUS of a path at half the rate."""
    first, end = np.full(n, m), np.zeros(n, np.int64)
    for k in range(len(i)):
        for row in range(max(0, 2 * (i[k] - RADIUS)), min(n, 2 * (i[k] + RADIUS) + 2)):
            first[row] = min(first[row], max(0, 2 * (j[k] - RADIUS)))
            end[row] = max(end[row], min(m, 2 * (j[k] + RADIUS) + 2))
    return first, end


@compiled
def _path(x: Float64, y: Float64, first: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """The best path whose row i has columns `first[i]` to `end[i]`."""
    n, m, dims = x.shape[0], y.shape[0], x.shape[1]
    came = np.zeros((n, m), np.int8)
    cost, before = np.full(m, np.inf), np.full(m, np.inf)
    for i in range(n):
        cost, before = before, cost
        cost[:] = np.inf
        for j in range(first[i], end[i]):
            best, how = 0.0 if i == 0 and j == 0 else np.inf, 0
            if j > 0 and before[j - 1] < best:
                best, how = before[j - 1], 0
            if before[j] < best:
                best, how = before[j], 1
            if j > 0 and cost[j - 1] < best:
                best, how = cost[j - 1], 2
            total = 0.0
            for d in range(dims):
                total += (x[i, d] - y[j, d]) ** 2
            came[i, j] = how
            cost[j] = best + np.sqrt(total)
    path = np.empty((n + m - 1, 2), np.int64)
    i, j, length = n - 1, m - 1, 0
    while True:
        path[length, 0], path[length, 1] = i, j
        length += 1
        if i == 0 and j == 0:
            break
        how = came[i, j]
        if how != 2:
            i -= 1
        if how != 1:
            j -= 1
    return path[:length][::-1].copy()
