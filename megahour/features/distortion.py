"""Compares two recordings of the same text: mel-cepstral distortion, pitch and voicing along a time-warping path.

The mel-cepstral distortion (MCD) equals pymcd's: WORLD's envelope every 5 ms at 22,050 Hz, 14 mel-cepstra (c_0 to c_13,
warped by 0.65), aligned by FastDTW over c_1 to c_13, in decibels.
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


class SpeechAnalysis(NamedTuple):
    """Mel-cepstra (T, 14) and pitch (T,) in Hz, 0 where unvoiced, every 5 ms of one recording."""

    cepstra: Float64
    pitch_hz: Float64


@dataclass(frozen=True)
class Distortion:
    """Distances between two recordings.

    mcd_db: mel-cepstral distortion. pitch_cents: root mean square difference where both are voiced (NaN: nowhere).
    voicing: share of frames where only one is voiced. slower: length of the second divided by that of the first.
    """

    mcd_db: float
    pitch_cents: float
    voicing: float
    slower: float


def analyse(signal: NDArray[np.float32], rate_hz: int) -> SpeechAnalysis:
    """Mel-cepstra and pitch of a signal (samples,) in -1 … 1, by WORLD."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyworld imports the deprecated pkg_resources
        import pyworld  # type: ignore[import-untyped]
    wave = resampled(signal, rate_hz, RATE_HZ)
    pitch_hz, envelope, _ = pyworld.wav2world(wave.astype(np.float64), RATE_HZ, fft_size=SIZE, frame_period=SHIFT_MS)
    return SpeechAnalysis(mel_cepstra(envelope), pitch_hz)


def mel_cepstra(envelope: Float64) -> Float64:
    """Power envelope (T, SIZE / 2 + 1) → cepstra (T, ORDER + 1) of its logarithm, on a frequency axis warped by ALPHA.

    As in pymcd, the power is treated as an amplitude, which puts the floor of 1e-8 at -40 dB of full scale.
    """
    cepstra = np.fft.irfft(np.log(envelope**2 + 1e-8), axis=1)[:, : SIZE // 2 + 1]
    cepstra[:, [0, -1]] /= 2
    warped: Float64 = cepstra @ _warp()
    return warped


@lru_cache(maxsize=1)
def _warp() -> Float64:
    """(SIZE / 2 + 1, ORDER + 1): the frequency transform of Oppenheim and Johnson (1972), as a matrix."""
    matrix = np.zeros((SIZE // 2 + 1, ORDER + 1))
    beta = 1 - ALPHA * ALPHA
    for i in range(SIZE // 2 + 1):
        row = matrix[i]
        for n in range(i, -1, -1):
            before = row.copy()
            row[0] = (n == i) + ALPHA * before[0]
            row[1] = beta * before[0] + ALPHA * before[1]
            for k in range(2, ORDER + 1):
                row[k] = before[k - 1] + ALPHA * (before[k] - row[k - 1])
    return matrix


def distortion(one: SpeechAnalysis, other: SpeechAnalysis) -> Distortion:
    """How far `other` is from `one`, along the path that pymcd takes."""
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
"""Aligned frames (rows) of two recordings, from the beginning of both to the end of both."""


def warping_path(x: Float64, y: Float64) -> Path:
    """Dynamic time warping: the path through `x` (N, D) and `y` (M, D) with the least sum of distances."""
    return _within(x, y, np.zeros(len(x), np.int64), np.full(len(x), len(y)))


def coarse_to_fine_path(x: Float64, y: Float64) -> Path:
    """FastDTW (Salvador and Chan, 2007; radius 1): searches near the path of both signals at half their rate.

    Its sum of distances is a few percent above that of `warping_path`. Published figures use it.
    """
    if min(len(x), len(y)) < RADIUS + 2:
        return warping_path(x, y)
    i, j = coarse_to_fine_path(_halved(x), _halved(y))
    return _within(x, y, *_near(np.ascontiguousarray(i), np.ascontiguousarray(j), len(x), len(y)))


def _halved(x: Float64) -> Float64:
    whole = x[: len(x) - len(x) % 2]
    return (whole[::2] + whole[1::2]) / 2


def _within(x: Float64, y: Float64, first: NDArray[np.int64], end: NDArray[np.int64]) -> Path:
    path = _path(np.ascontiguousarray(x), np.ascontiguousarray(y), first, end)
    return path[:, 0], path[:, 1]


@compiled
def _near(i: NDArray[np.int64], j: NDArray[np.int64], n: int, m: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and end column for each of `n` rows, within RADIUS of a path at half the rate."""
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
