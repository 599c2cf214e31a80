"""The gradient of `stacked_lstm`, compiled, one worker at a time, so that all it needs stays in the cache.

Frames f = t M + m of a worker's M chunks; gates in the order input, forget, output, candidate. Outer loops run in steps
of four, so that a sum is loaded and stored once for four products.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from megahour.core.compiled import compiled

Floats = NDArray[np.float32]
INPUTS, UNITS, CLASSES = 24, 32, 41
GATES = 4 * UNITS
TOGETHER = 8  # chunks whose activations fit into the cache beside the weights
ONE, TWO = np.float32(1), np.float32(2)
FAST = {"reassoc", "contract", "nsz", "arcp"}  # infinities and NaN stay what they are


@compiled(fastmath=FAST)
def forward(inward, recurrent, bias, outward, out_bias, features, gates, hidden, cells, squashed, scores):  # type: ignore[no-untyped-def]
    """Chunks (M, T, 24) → gates (F, 128), hidden, cells and their tanh (F, 32), scores (F, 41)."""
    chunks, frames, _ = features.shape
    for f in range(frames * chunks):
        t, m = divmod(f, chunks)
        z, x, h = gates[f], features[m, t], hidden[f - chunks]
        z[:] = bias
        for k in range(0, INPUTS, 4):
            x0, x1, x2, x3 = x[k], x[k + 1], x[k + 2], x[k + 3]
            for j in range(GATES):
                z[j] += x0 * inward[k, j] + x1 * inward[k + 1, j] + x2 * inward[k + 2, j] + x3 * inward[k + 3, j]
        for k in range(0, UNITS if t else 0, 4):
            h0, h1, h2, h3 = h[k], h[k + 1], h[k + 2], h[k + 3]
            r0, r1, r2, r3 = recurrent[k], recurrent[k + 1], recurrent[k + 2], recurrent[k + 3]
            for j in range(GATES):
                z[j] += h0 * r0[j] + h1 * r1[j] + h2 * r2[j] + h3 * r3[j]
        for j in range(3 * UNITS):
            z[j] = ONE / (ONE + math.exp(-z[j]))
        for j in range(3 * UNITS, GATES):
            z[j] = TWO / (ONE + math.exp(-TWO * z[j])) - ONE
        for j in range(UNITS):
            cell = z[j] * z[3 * UNITS + j]
            if t:
                cell += z[UNITS + j] * cells[f - chunks, j]
            cells[f, j] = cell
            squashed[f, j] = TWO / (ONE + math.exp(-TWO * cell)) - ONE
            hidden[f, j] = z[2 * UNITS + j] * squashed[f, j]
        p, h = scores[f], hidden[f]
        p[:] = out_bias
        for k in range(UNITS):
            for j in range(CLASSES):
                p[j] += h[k] * outward[k, j]


@compiled(fastmath=FAST)
def cross_entropy(scores, labels, share):  # type: ignore[no-untyped-def]
    """`share` times the sum over frames; scores (F, 41) become its gradient by them. Labels are (M, T)."""
    chunks, frames = labels.shape
    loss = 0.0
    for f in range(frames * chunks):
        p, label = scores[f], labels[f % chunks, f // chunks]
        top = p.max()
        loss += top - p[label]
        total = np.float32(0)
        for j in range(CLASSES):
            p[j] = math.exp(p[j] - top)
            total += p[j]
        loss += math.log(total)
        p *= share / total
        p[label] -= share
    return loss * share


@compiled(fastmath=FAST)
def backward(recurrent, outward, scores, gates, cells, squashed, chunks):  # type: ignore[no-untyped-def]
    """The gradient by scores (F, 41) → by the gates' sums (F, 128), which takes the place of `gates`."""
    back = recurrent.T.copy()
    by_hidden, by_cell = np.zeros((2, chunks, UNITS), np.float32)
    for f in range(len(gates) - 1, -1, -1):
        z, d, c, m = gates[f], by_hidden[f % chunks], by_cell[f % chunks], f - chunks
        for k in range(UNITS):
            total = np.float32(0)
            for j in range(CLASSES):
                total += outward[k, j] * scores[f, j]
            d[k] += total
        for j in range(UNITS):
            into, keep, out, new = z[j], z[UNITS + j], z[2 * UNITS + j], z[3 * UNITS + j]
            through = squashed[f, j]
            e = c[j] + d[j] * out * (ONE - through * through)
            z[j] = e * new * into * (ONE - into)
            z[UNITS + j] = e * cells[m, j] * keep * (ONE - keep) if m >= 0 else np.float32(0)
            z[2 * UNITS + j] = d[j] * through * out * (ONE - out)
            z[3 * UNITS + j] = e * into * (ONE - new * new)
            c[j] = e * keep
        d[:] = 0
        for j in range(0, GATES if m >= 0 else 0, 4):
            z0, z1, z2, z3 = z[j], z[j + 1], z[j + 2], z[j + 3]
            for k in range(UNITS):
                d[k] += z0 * back[j, k] + z1 * back[j + 1, k] + z2 * back[j + 2, k] + z3 * back[j + 3, k]


@compiled(fastmath=FAST)
def outer(left, right, total):  # type: ignore[no-untyped-def]
    """`total` (K, J) += leftᵀ right of (F, K) and (F, J); F is a multiple of four."""
    for f in range(0, len(left), 4):
        r0, r1, r2, r3 = right[f], right[f + 1], right[f + 2], right[f + 3]
        for k in range(left.shape[1]):
            l0, l1, l2, l3 = left[f, k], left[f + 1, k], left[f + 2, k], left[f + 3, k]
            for j in range(right.shape[1]):
                total[k, j] += l0 * r0[j] + l1 * r1[j] + l2 * r2[j] + l3 * r3[j]


@compiled(fastmath=FAST)
def add(weights, features, labels, share, sums):  # type: ignore[no-untyped-def]
    """Adds the gradient of one worker's weights (D,) on some chunks (M, T, 24) to `sums` (D,); returns the loss."""
    chunks, frames, _ = features.shape
    count = frames * chunks
    gates, scores = np.empty((count, GATES), np.float32), np.empty((count, CLASSES), np.float32)
    hidden, cells, squashed = np.empty((3, count, UNITS), np.float32)
    ends = np.cumsum(np.array([INPUTS * GATES, UNITS * GATES, GATES, UNITS * CLASSES, CLASSES]))
    inward, recurrent = weights[: ends[0]].reshape(INPUTS, GATES), weights[ends[0] : ends[1]].reshape(UNITS, GATES)
    bias, outward = weights[ends[1] : ends[2]], weights[ends[2] : ends[3]].reshape(UNITS, CLASSES)
    forward(inward, recurrent, bias, outward, weights[ends[3] :], features, gates, hidden, cells, squashed, scores)
    loss = cross_entropy(scores, labels, share)
    backward(recurrent, outward, scores, gates, cells, squashed, chunks)
    flat = np.ascontiguousarray(features.transpose(1, 0, 2)).reshape(count, INPUTS)
    outer(flat, gates, sums[: ends[0]].reshape(INPUTS, GATES))
    outer(hidden[: count - chunks], gates[chunks:], sums[ends[0] : ends[1]].reshape(UNITS, GATES))
    outer(hidden, scores, sums[ends[2] : ends[3]].reshape(UNITS, CLASSES))
    for f in range(count):
        sums[ends[1] : ends[2]] += gates[f]
        sums[ends[3] :] += scores[f]
    return loss


@compiled(fastmath=FAST)
def gradients(weights: Floats, features: Floats, labels: NDArray[np.int64], found: Floats, losses: Floats) -> None:
    """Gradient `found` (N, D) and mean cross-entropy `losses` (N,) of weights (N, D), chunks (N, M, T, 24), (N, M, T).

    M must be a multiple of four.
    """
    workers, chunks, frames, _ = features.shape
    share = ONE / np.float32(chunks * frames)
    found[:] = 0
    losses[:] = 0
    for n in range(workers):
        for m in range(0, chunks, TOGETHER):
            part = slice(m, m + TOGETHER)
            losses[n] += add(weights[n], features[n, part], labels[n, part], share, found[n])
