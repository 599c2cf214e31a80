"""How well the sound of an utterance fits the phones of its alignment, compared with the others of its shard."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CEPSTRA = 13
LEAST_FRAMES = 60  # of a phone with a model
LEAST_PHONES = 5  # of an utterance that is judged
LEAST_UTTERANCES = 50
SHARED = 0.1  # of a phone's variance is that of all frames
Float64 = NDArray[np.float64]


def confidences(
    features: Sequence[NDArray[np.float32]],
    phones: Sequence[NDArray[np.int16]],
    durations: Sequence[NDArray[np.int32]],
    silent: int,
) -> Float64:
    """(N,) nats a frame between the phones of the alignment and the likeliest phone of each segment, at most 0.

    features: log mels (T, M) of each utterance. phones, durations: (U,) numbers and frames. silent: phones up to this
    number are not speech. NaN: fewer than `LEAST_UTTERANCES`, or fewer than `LEAST_PHONES` known phones in one.

    This is the goodness of pronunciation of Witt & Young (2000), with a Gaussian a phone (diagonal covariance, of mel
    cepstra and their slopes) that is estimated from the same utterances: most of them must have the right text.
    """
    count = len(features)
    if count < LEAST_UTTERANCES:
        return np.full(count, np.nan)
    frames = np.concatenate([_cepstra(each) for each in features])
    lengths, each = np.concatenate(durations), np.concatenate(phones)
    owner = np.repeat(np.arange(count), [len(one) for one in phones])
    each, owner, lengths = each[lengths > 0], owner[lengths > 0], lengths[lengths > 0]
    starts, common = np.cumsum(lengths) - lengths, frames.var(axis=0) + 1e-6
    own, best = np.full(len(starts), np.nan), np.full(len(starts), -np.inf)
    for number in np.unique(each[each > silent]):
        mine = frames[np.repeat(each == number, lengths)]
        if len(mine) >= LEAST_FRAMES:
            variance = (1 - SHARED) * mine.var(axis=0) + SHARED * common
            density = -0.5 * (((frames - mine.mean(axis=0)) ** 2 / variance).sum(axis=1) + np.log(variance).sum())
            mean = np.add.reduceat(density, starts) / lengths
            own = np.where(each == number, mean, own)
            best = np.maximum(best, mean)
    known = ~np.isnan(own)
    owner, below = owner[known], (own - best)[known]
    segments = np.bincount(owner, minlength=count)
    total = np.bincount(owner, below, count)
    return np.where(segments >= LEAST_PHONES, total / np.maximum(1, segments), np.nan)


def _cepstra(mel: NDArray[np.float32]) -> Float64:
    """Mel cepstra and their slopes (T, 2 · CEPSTRA) of log mels (T, M)."""
    size = mel.shape[1]
    angles = np.pi / size * np.outer(np.arange(size) + 0.5, np.arange(CEPSTRA))
    cepstra = mel.astype(np.float64) @ np.cos(angles) / np.sqrt(size)
    slopes = np.gradient(cepstra, axis=0) if len(cepstra) > 1 else np.zeros_like(cepstra)
    return np.concatenate((cepstra, slopes), axis=1)
