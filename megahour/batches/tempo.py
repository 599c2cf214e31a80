"""Changes the tempo of a batch's pieces without changing the spectrum.

This is the tempo perturbation of Ko et al., "Audio augmentation for speech recognition", 2015, on stored frames.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]


def drawn_lengths(lengths: Index, shortest: Index, tempo: float, rng: np.random.Generator) -> Index:
    """(B,) new lengths at random rates from 1 − `tempo` to 1 + `tempo`, at least min(`shortest`, `lengths`)."""
    rates = rng.uniform(1 - tempo, 1 + tempo, len(lengths))
    return np.maximum(np.round(lengths / rates).astype(np.int64), np.minimum(shortest, lengths))


def stretched(features: NDArray[np.float32], lengths: Index, to: Index, stack: int) -> NDArray[np.float32]:
    """(B, T', stack · F) each piece linearly interpolated from `lengths` to `to` frames, then zeros."""
    out = np.zeros((len(to), int(to.max()), features.shape[2]), dtype=np.float32)
    for b, (old, new) in enumerate(zip((lengths * stack).tolist(), (to * stack).tolist(), strict=True)):
        frames = features[b].reshape(-1, features.shape[2] // stack)[:old]
        at = np.arange(new, dtype=np.float64) * ((old - 1) / max(1, new - 1))
        low = np.minimum(at.astype(np.int64), max(0, old - 2))
        share = (at - low).astype(np.float32)[:, None]
        high = np.minimum(low + 1, old - 1)
        out[b].reshape(-1, frames.shape[1])[:new] = frames[low] * (1 - share) + frames[high] * share
    return out


def stretched_labels(labels: NDArray[np.generic], lengths: Index, to: Index, padding: int) -> NDArray[np.generic]:
    """(B, T', …) labels (B, T, …) resampled by the nearest frame, with `padding` past the end."""
    out = np.full((len(to), int(to.max()), *labels.shape[2:]), padding, dtype=labels.dtype)
    for b, (old, new) in enumerate(zip(lengths.tolist(), to.tolist(), strict=True)):
        out[b, :new] = labels[b, (2 * np.arange(new) + 1) * old // (2 * new)]
    return out
