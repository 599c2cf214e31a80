"""Gradient threshold compression: which elements of a gradient are sent, in 32 bits each, and which are kept.

    N. Ström, "Scalable distributed DNN training using commodity GPU cloud computing", Interspeech 2015.

A worker keeps a residual r, one float32 per element, and a threshold v > 0 that all workers share. In each step

    r ← r + s·g                        s·g: its gradient, scaled by its share of the mean and by clipping
    q_i = v·sign(r_i)  if |r_i| > v,  else 0
    r ← r − q                          q is sent, r is kept

and every worker adds up the q of all workers. A q_i ≠ 0 travels as one word: 31 bits of index i, and the sign.

**Nothing is lost.** v has at most eight significant bits (`exact_threshold`: it is a bfloat16). Then for |r_i| < 2¹⁶·v

    r_i − q_i  is exact in float32     r_i and v are both multiples of r_i's last place, and the difference is smaller
    Σ ±v       is exact in float32     for up to 2¹⁶ messages, so that their order does not matter

and the sent values plus the residual equal the float32 sum r + s·g bit for bit: compression adds no rounding error to
that of the accumulation. (An element beyond 2¹⁶·v is sent too, but its residual is rounded.)

**Message** of n ≤ 2³¹ elements with room for c: c + 1 words. Word 0 is the number of elements beyond the threshold,
which may exceed c: then the first c from `start` on, wrapping around, are sent, and the others stay in the
residual. BAD in word 0: the gradient has an infinity or NaN, and nothing can be decoded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numba import uint32
from torch import Tensor

from megahour.core.compiled import compiled
from megahour.core.errors import ConfigError, MegahourError

MAX_ELEMENTS = 2**31
BAD = -1
_BLOCK = 32
_SIGN = 0x80000000
_INDEX = 0x7FFFFFFF
_SIGNIFICANT_BITS = 8
_LOW_BIT = np.array([(0x077CB531 << i & 0xFFFFFFFF) >> 27 for i in range(32)]).argsort().astype(np.uint32)
"""Position of the only set bit of m, by (m · 0x077CB531 mod 2³²) / 2²⁷: a de Bruijn sequence."""


class BadGradientError(MegahourError):
    """A gradient holds an infinity or NaN."""


@dataclass(frozen=True)
class Encoded:
    """The result of encoding one message."""

    beyond: int
    """Elements beyond the threshold; those that do not fit stay in the residual. BAD: the gradient is not finite."""
    start: int
    """Where the next message of this residual should start: at the first element that did not fit, else where this
    one started."""


def exact_threshold(threshold: float) -> float:
    """The nearest number of eight significant bits (relative distance < 2⁻⁸), with which arithmetic here is exact.

    >>> exact_threshold(0.3)
    0.30078125
    """
    if not 2.0**-100 <= threshold <= 2.0**100:
        raise ConfigError(f"threshold {threshold} is not a number from 2^-100 to 2^100", remedy="0.01 to 10 is usual")
    mantissa, exponent = math.frexp(threshold)
    return math.ldexp(round(mantissa * 2**_SIGNIFICANT_BITS), exponent - _SIGNIFICANT_BITS)


def new_residual(elements: int, device: torch.device | None = None) -> Tensor:
    """(n,) zeros of float32; on the CPU in huge pages where the system has them, which makes sweeps faster."""
    if device is not None and device.type != "cpu":
        return torch.zeros(elements, dtype=torch.float32, device=device)
    array = np.empty(elements, np.float32)
    array.fill(0)
    return torch.from_numpy(array)


def encode(
    gradient: Tensor, residual: Tensor, threshold: float, message: Tensor, *, scale: float = 1.0, start: int = 0
) -> Encoded:
    """Adds a gradient to the residual, and moves the elements beyond the threshold into a message.

    Parameters
    ----------
    gradient: (n,) float32, contiguous; zero afterwards, as the target that `decode` adds to.
    residual: (n,) float32, changed in place.
    threshold: v, of eight significant bits (`exact_threshold`).
    message: (1 + c,) int32, overwritten. Words past the last element sent are left as they are.
    scale: s, a factor of the gradient.
    start: index of the element that gets room first. Pass the `start` of each result to the next call, so that no
        element waits for ever.

    Tensors on other devices than the CPU are processed by torch operations, with the same bits.
    """
    _check(gradient, residual, threshold)
    if not 0 <= start < max(1, gradient.numel()):
        raise ConfigError(f"start {start} is outside the {gradient.numel()} elements")
    if gradient.device.type != "cpu":
        return encode_on_device(gradient, residual, threshold, message, scale, start)
    arrays = gradient.numpy(), residual.numpy(), message.numpy().view(np.uint32)[1:]
    v, s = np.float32(threshold), np.float32(scale)
    beyond, waiting = _encode(*arrays, v, s, start, gradient.numel(), 0)
    if start and beyond != BAD:
        before, first = _encode(*arrays, v, s, 0, start, beyond)
        beyond, waiting = (before if before == BAD else beyond + before), (first if waiting < 0 else waiting)
    message[0] = beyond
    return Encoded(beyond, start if waiting < 0 else waiting)


def decode(messages: Tensor, threshold: float, total: Tensor) -> None:
    """Adds the values of messages, (N, 1 + c) int32, to `total`, (n,) float32: with zeros before, Σ ±v over N workers.

    Exact, and so independent of the order, for N ≤ 2¹⁶. Raises `BadGradientError` with the numbers of workers whose
    gradient was not finite, and `ConfigError` if an index is outside `total`, which is then partly updated.
    """
    counts = sent(messages)
    if total.device.type != "cpu":
        decode_on_device(messages, counts, threshold, total)
        return
    words, array = messages.numpy().view(np.uint32), total.numpy()
    worker = _decode(words, np.array(counts), np.float32(threshold), array)
    if worker >= 0:
        raise ConfigError(f"the message of worker {worker} has an index beyond the {total.numel()} elements")


def sent(messages: Tensor) -> list[int]:
    """(N,) elements in each of the messages, (N, 1 + c) int32. Raises `BadGradientError`."""
    room = messages.shape[1] - 1
    beyond: list[int] = messages[:, 0].tolist()
    bad = [worker for worker, count in enumerate(beyond) if count < 0]
    if bad:
        raise BadGradientError(
            f"infinity or NaN in the gradient of worker {', '.join(map(str, bad))}",
            remedy="go back to a checkpoint; lower the learning rate, or pass a GradScaler, to leave such steps out",
        )
    return [min(count, room) for count in beyond]


def _check(gradient: Tensor, residual: Tensor, threshold: float) -> None:
    if gradient.numel() > MAX_ELEMENTS:
        raise ConfigError(f"a message indexes {MAX_ELEMENTS} elements, not {gradient.numel()}", remedy="use sections")
    if gradient.shape != residual.shape or gradient.dtype != torch.float32 or residual.dtype != torch.float32:
        raise ConfigError(
            f"gradient {tuple(gradient.shape)} {gradient.dtype} and residual {tuple(residual.shape)} "
            f"{residual.dtype} must be equally long vectors of float32"
        )
    if exact_threshold(threshold) != threshold:
        raise ConfigError(f"threshold {threshold} has more than eight significant bits", remedy="use exact_threshold")


@compiled
def _encode(gradient, residual, words, v, scale, begin, end, beyond):  # type: ignore[no-untyped-def]
    """Elements begin…end, after `beyond` earlier ones: number beyond v here, and the first that did not fit, or -1.

    Blocks of 32 are added and compared in one loop of fixed length, which the compiler turns into vector instructions
    and a mask of bits; only set bits are looked at one by one.
    """
    one, zero, waiting, count = uint32(1), np.float32(0), -1, 0
    room = words.size - beyond
    while begin < end:
        length = min(_BLOCK, end - begin)
        mask = uint32(0)
        if length == _BLOCK:
            g, r = gradient[begin : begin + _BLOCK], residual[begin : begin + _BLOCK]
            for i in range(_BLOCK):
                x = r[i] + scale * g[i]
                r[i] = x
                g[i] = zero
                mask |= uint32(not (abs(x) <= v)) << uint32(i)
        else:
            for i in range(length):
                x = residual[begin + i] + scale * gradient[begin + i]
                residual[begin + i] = x
                gradient[begin + i] = zero
                mask |= uint32(not (abs(x) <= v)) << uint32(i)
        while mask:
            low = mask & (~mask + one)
            mask ^= low
            at = begin + _LOW_BIT[uint32(low * uint32(0x077CB531)) >> uint32(27)]
            x = residual[at]
            if not abs(x) < np.inf:
                return BAD, waiting
            if count < room:
                words[beyond + count] = uint32(at) | (uint32(_SIGN) if x < zero else uint32(0))
                residual[at] = x - (-v if x < zero else v)
            elif waiting < 0:
                waiting = at
            count += 1
        begin += length
    return count, waiting


@compiled
def _decode(messages, counts, v, total):  # type: ignore[no-untyped-def]
    """The first worker with an index out of bounds; -1 if there is none."""
    for worker in range(counts.size):
        for k in range(1, counts[worker] + 1):
            word = messages[worker, k]
            at = word & uint32(_INDEX)
            if at >= total.size:
                return worker
            total[at] += -v if word & uint32(_SIGN) else v
    return -1


def encode_on_device(
    gradient: Tensor, residual: Tensor, threshold: float, message: Tensor, scale: float, start: int
) -> Encoded:
    """`encode` by torch operations: the same messages and bits, for (n,) vectors on any device."""
    residual.add_(gradient.mul_(scale))  # as two roundings: `add` with a factor may be fused into one
    gradient.zero_()
    beyond = (residual.abs() <= threshold).logical_not_().nonzero().view(-1)
    if start:
        before = int(torch.searchsorted(beyond, start))
        beyond = torch.cat([beyond[before:], beyond[:before]])
    values = residual[beyond]
    if not bool(values.isfinite().all()):
        message[0] = BAD
        return Encoded(BAD, start)
    room = message.numel() - 1
    taken, negative = beyond[:room], values[:room] < 0
    residual[taken] = values[:room] - torch.where(negative, -threshold, threshold).to(values.dtype)
    message[0] = beyond.numel()
    # Two's complement: the word of a negative element, read as int32, is its index - 2³¹.
    message[1 : 1 + taken.numel()] = (taken - _SIGN * negative).to(torch.int32)
    return Encoded(beyond.numel(), int(beyond[room]) if beyond.numel() > room else start)


def decode_on_device(messages: Tensor, counts: Sequence[int], threshold: float, total: Tensor) -> None:
    """`decode` by torch operations: messages (N, 1 + c) into a vector (n,); `counts`: (N,) elements in each."""
    for worker, count in enumerate(counts):
        words = messages[worker, 1 : count + 1]
        at = (words & _INDEX).long()
        if count and int(at.max()) >= total.numel():
            raise ConfigError(f"the message of worker {worker} has an index beyond the {total.numel()} elements")
        values = torch.where(words < 0, -threshold, threshold).to(total.dtype)
        total[at] += values  # an index occurs once in a message
