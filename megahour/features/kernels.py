"""The fast path of `fbank`: LANES frames of 512 points side by side, so that vector instructions serve many frames.

A block of LANES frames is stored as rows of LANES values: row i holds sample (bin, filter) i of every frame. Loops run
over neighbouring values, and the compiler vectorises most of them:

1. gather the windows, mean removed, pre-emphasised and weighted, as 256 complex rows z_i = x_{2i} + j x_{2i+1};
2. four radix-4 Stockham passes (Cooley and Tukey 1965; self-sorting order after Stockham, see Van Loan 1992, 1.7);
3. unpack the real spectrum and its power, apply the filters, take the logarithm, transpose the block.

Lanes never mix: a frame's values do not depend on its position in a block.

Indices are unsigned: a signed index could be negative, and the check that Python then needs would keep loops scalar.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import uint64
from numpy.typing import NDArray

from megahour.core.compiled import compiled, put

Float32 = NDArray[np.float32]

LANES = 32  # two complex buffers of 64 KB and the samples fit the second-level cache
SIZE = 512
HALF = SIZE // 2
PAD = 48  # keeps real and imaginary rows out of the same cache sets
ROWS = 2 * (HALF * LANES + PAD)
PREEMPHASIS_PERCENT = 97

_LANES, _HALF, _IMAGINARY = uint64(LANES), uint64(HALF), uint64(HALF * LANES + PAD)
# Fused multiply-add is allowed. Reordering sums is not: the result would depend on the compiler.
_FAST = {"contract"}
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)


def twiddles() -> Float32:
    """cos and sin of the passes' rotations, 6 for each of 64 + 16 + 4 + 1 butterflies."""
    rows = []
    for n in (256, 64, 16, 4):
        angle = -2 * np.pi * np.arange(n // 4)[:, None] * np.array([1, 2, 3]) / n
        rows.append(np.stack([np.cos(angle), np.sin(angle)], axis=2).reshape(-1, 6))
    return np.concatenate(rows).astype(np.float32).reshape(-1)


def unpacking() -> Float32:
    """cos and sin of 2πk/512 for k ≤ 128."""
    angle = 2 * np.pi * np.arange(HALF // 2 + 1) / SIZE
    return np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32).reshape(-1)


@compiled(fastmath=_FAST)
def log_mel_512(
    samples: Float32,
    shift: int,
    window: Float32,
    rotations: Float32,
    unpack: Float32,
    lanes: int,
    bands: NDArray[np.uint64],
    weights: Float32,
    floor: np.float32,
    out: Float32,
) -> None:
    """Log-mel features of all frames.

    Parameters
    ----------
    samples: (N,) in the int16 scale, with at least (T − 1) · shift + length values.
    window: (length,), length even and at most SIZE, divided by 100 (pre-emphasis works in whole percents).
    lanes: LANES.
    bands: (F, 3): first bin, end bin and start in `weights` of each filter.
    out: (T, F).
    """
    length, frames, mels = window.size, out.shape[0], out.shape[1]
    span = (LANES - 1) * shift + length
    plain, sharp = np.zeros(span, np.float32), np.zeros(span, np.float32)
    means = np.zeros(LANES, np.float32)
    a, b = np.empty(ROWS, np.float32), np.empty(ROWS, np.float32)
    power = np.empty(HALF * LANES, np.float32)
    energy, scratch = np.empty(mels * LANES, np.float32), np.empty(mels * LANES, np.float32)
    for first in range(0, frames, LANES):
        count = min(LANES, frames - first)
        start, size = first * shift, (count - 1) * shift + length
        _emphasise(samples[start : start + size], plain, sharp, uint64(size))
        _means(plain, uint64(shift), uint64(length), uint64(count), means)
        _gather(plain, sharp, means, uint64(shift), window, a)
        _radix4(a, b, rotations, uint64(0), uint64(256), uint64(1))
        _radix4(b, a, rotations, uint64(6 * 64), uint64(64), uint64(4))
        _radix4(a, b, rotations, uint64(6 * 80), uint64(16), uint64(16))
        _radix4(b, a, rotations, uint64(6 * 84), uint64(4), uint64(64))
        _power(a, unpack, uint64(lanes), power)
        _filter(power, bands, weights, uint64(lanes), energy)
        _log(energy, energy.view(np.int32), floor, scratch, scratch.view(np.int32))
        for t in range(uint64(count)):
            for f in range(uint64(mels)):
                out[uint64(first) + t, f] = energy[f * _LANES + t]


@compiled(fastmath=_FAST)
def _emphasise(samples: Float32, plain: Float32, sharp: Float32, size: Any) -> None:
    """sharp = 100 x_i − 97 x_{i−1}: exact for 16-bit samples, so that silence with an offset becomes exactly zero."""
    now, before = samples[1:], samples[:-1]
    later = sharp[1:]
    put(plain, samples)
    for i in range(size - uint64(1)):
        later[i] = np.float32(100) * now[i] - np.float32(PREEMPHASIS_PERCENT) * before[i]


@compiled(fastmath={"reassoc", "nsz"})
def _means(plain: Float32, shift: Any, length: Any, count: Any, means: Float32) -> None:
    """Mean of each frame. Sums of 16-bit samples stay below 2^24, so they are exact in any order."""
    for t in range(count):
        frame = plain[t * shift : t * shift + length]
        total = np.float32(0)
        for i in range(length):
            total += frame[i]
        means[t] = total / np.float32(length)


@compiled(fastmath=_FAST)
def _gather(plain: Float32, sharp: Float32, means: Float32, shift: Any, window: Float32, z: Float32) -> None:
    """z: real rows x_0, x_2, … and imaginary rows x_1, x_3, … of the windows; rows past the window are zero.

    With x_{−1} = x_0, as in Kaldi, a frame's sample is sharp_i − 3 · mean; its first one is 3 (x_0 − mean).
    """
    pairs = uint64(window.size // 2)
    three = np.float32(100 - PREEMPHASIS_PERCENT)
    for i in range(pairs):
        even, odd = window[uint64(2) * i], window[uint64(2) * i + uint64(1)]
        for t in range(_LANES):
            at = t * shift + uint64(2) * i
            z[i * _LANES + t] = (sharp[at] - three * means[t]) * even
            z[i * _LANES + t + _IMAGINARY] = (sharp[at + uint64(1)] - three * means[t]) * odd
    for t in range(_LANES):
        z[t] = (three * plain[t * shift] - three * means[t]) * window[0]
    z[pairs * _LANES : _IMAGINARY] = 0
    z[_IMAGINARY + pairs * _LANES :] = 0


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _radix4(x: Float32, y: Float32, rotations: Float32, place: Any, n: Any, stride: Any) -> None:
    """One pass over sequences of `n`: y[4p + k] = w^{kp} Σ_m (−j)^{km} x[p + m n/4], for `stride` sequences at once.

    It is inlined with constant `n` and `stride`. Distances between rows are then constants, and two range checks prove
    that rows do not overlap.
    """
    run = stride * _LANES
    step = run * (n // uint64(4))
    for p in range(n // uint64(4)):
        at = place + uint64(6) * p
        c1, s1, c2 = rotations[at], rotations[at + uint64(1)], rotations[at + uint64(2)]
        s2, c3, s3 = rotations[at + uint64(3)], rotations[at + uint64(4)], rotations[at + uint64(5)]
        for q in range(run):
            i = p * run + q
            o = uint64(4) * p * run + q
            ar, ai = x[i], x[i + _IMAGINARY]
            br, bi = x[i + step], x[i + step + _IMAGINARY]
            cr, ci = x[i + uint64(2) * step], x[i + uint64(2) * step + _IMAGINARY]
            dr, di = x[i + uint64(3) * step], x[i + uint64(3) * step + _IMAGINARY]
            sum_r, sum_i, far_r, far_i = ar + cr, ai + ci, br + dr, bi + di
            dif_r, dif_i, turn_r, turn_i = ar - cr, ai - ci, di - bi, br - dr
            y[o], y[o + _IMAGINARY] = sum_r + far_r, sum_i + far_i
            tr, ti = dif_r - turn_r, dif_i - turn_i
            y[o + run], y[o + run + _IMAGINARY] = c1 * tr - s1 * ti, c1 * ti + s1 * tr
            tr, ti = sum_r - far_r, sum_i - far_i
            y[o + uint64(2) * run], y[o + uint64(2) * run + _IMAGINARY] = c2 * tr - s2 * ti, c2 * ti + s2 * tr
            tr, ti = dif_r + turn_r, dif_i + turn_i
            y[o + uint64(3) * run], y[o + uint64(3) * run + _IMAGINARY] = c3 * tr - s3 * ti, c3 * ti + s3 * tr


# Below, the number of lanes is an argument: the compiler would unroll loops of constant length before vectorising them.


@compiled(fastmath=_FAST)
def _power(z: Float32, unpack: Float32, lanes: Any, power: Float32) -> None:
    """|X_k|² for k < 256 of the real sequence packed in z: bins k and 256 − k come from the same two rows."""
    quarter = np.float32(0.25)
    for t in range(lanes):
        total = z[t] + z[t + _IMAGINARY]
        power[t] = total * total
    for k in range(uint64(1), _HALF // uint64(2) + uint64(1)):
        c, s = unpack[uint64(2) * k], unpack[uint64(2) * k + uint64(1)]
        low, high = k * lanes, (_HALF - k) * lanes
        for t in range(lanes):
            ar, ai, br, bi = z[low + t], z[low + t + _IMAGINARY], z[high + t], z[high + t + _IMAGINARY]
            sum_r, sum_i, dif_r, dif_i = ar + br, ai - bi, ar - br, ai + bi
            tr, ti = c * dif_i - s * dif_r, s * dif_i + c * dif_r
            up_r, up_i, down_r, down_i = sum_r + tr, sum_i - ti, sum_r - tr, sum_i + ti
            power[high + t] = quarter * (down_r * down_r + down_i * down_i)
            power[low + t] = quarter * (up_r * up_r + up_i * up_i)


@compiled(fastmath=_FAST)
def _filter(power: Float32, bands: NDArray[np.uint64], weights: Float32, lanes: Any, energy: Float32) -> None:
    energy[:] = 0
    for f in range(uint64(bands.shape[0])):
        first, end, start = bands[f, 0], bands[f, 1], bands[f, 2]
        for k in range(end - first):
            weight = weights[start + k]
            for t in range(lanes):
                energy[f * lanes + t] += weight * power[(first + k) * lanes + t]


@compiled(fastmath=_FAST)
def _log(
    values: Float32, value_bits: NDArray[np.int32], floor: np.float32, scratch: Float32, bits: NDArray[np.int32]
) -> None:
    """Natural logarithm of max(value, floor), in place. `value_bits` and `bits` view the memory of the floats.

    value = m 2^e with m in [√½, √2); ln m by the polynomial of Cephes' logf (relative error 1e-7). Each loop reads one
    array and writes the other; otherwise the two views of the same memory would prevent vectorisation.
    """
    size = uint64(values.size)
    for i in range(size):
        values[i] = max(values[i], floor)
    for i in range(size):
        bits[i] = ((value_bits[i] - 0x3F3504F3) & 0x007FFFFF) + 0x3F3504F3  # m, from √½ up
    for i in range(size):
        # the exponent, counted from √½
        e = np.float32((value_bits[i] - 0x3F3504F3) >> 23)
        x = scratch[i] - np.float32(1)
        y = np.float32(7.0376836292e-2)
        y = y * x - np.float32(1.1514610310e-1)
        y = y * x + np.float32(1.1676998740e-1)
        y = y * x - np.float32(1.2420140846e-1)
        y = y * x + np.float32(1.4249322787e-1)
        y = y * x - np.float32(1.6668057665e-1)
        y = y * x + np.float32(2.0000714765e-1)
        y = y * x - np.float32(2.4999993993e-1)
        y = y * x + np.float32(3.3333331174e-1)
        z = x * x
        y = y * x * z + e * _LN2_LOW - np.float32(0.5) * z
        scratch[i] = x + y + e * _LN2_HIGH
    put(values, scratch)
