"""Normalisation: a causal mean per speaker, or an utterance's own, then global mean and variance (Amazon paper, II-B
and IV-B).

The causal mean of a speaker's frames x_1, x_2, … in order of time, over all of the speaker's utterances, is

    m_t = m_{t−1} + (x_t − m_{t−1}) / min(t + N0, N1)        m_0 = PRIOR

It starts as a cumulative mean, with a prior worth N0 frames, and becomes an exponential window of N1 frames, so that it
follows a speaker who moves to another room. The output is x_t − m_t; no frame depends on a later one. Frames of digital
silence, at the floor of all mels, are no sound of the room: they are not counted and leave the mean as it is.

An utterance's own mean can go with a range: what is far below the loud level of its mel is raised first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from megahour.core.compiled import compiled

PRIOR_FRAMES = 100  # N0
WINDOW_FRAMES = 3_000  # N1: 30 s
LOUD = 95  # percentile of a mel's energies in an utterance
NATS_OF_A_DB = np.log(10) / 10
LEAST_SOUND = np.float32(0.01)  # nats above the floor from which a mel is sound: a graph's floor may be rounded to fp16


@dataclass
class CausalMean:
    """Running mean (F,) of one speaker, which `apply` carries from utterance to utterance.

    >>> CausalMean(np.zeros(1, np.float32)).apply(np.ones((2, 1), np.float32)).round(4)
    array([[0.9901],
           [0.9804]], dtype=float32)
    """

    prior: NDArray[np.float32]
    count: int = 0
    mean: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.mean = self.prior.astype(np.float64)

    @staticmethod
    def after(count: int, mean: NDArray[np.float64]) -> CausalMean:
        """Resume at `mean` (F,), after `count` frames."""
        running = CausalMean(mean.astype(np.float32), count)
        running.mean = mean.copy()
        return running

    def apply(self, features: NDArray[np.float32], floor: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Subtract the running mean at each frame: (T, F) → (T, F). floor (F,): of digital silence."""
        result = np.empty_like(features)
        lowest = np.full(features.shape[1], -np.inf, np.float32) if floor is None else floor
        self.count = _run(features, lowest, self.mean, self.count, PRIOR_FRAMES, WINDOW_FRAMES, result)
        return result


def without_mean(
    features: NDArray[np.float32], floor: NDArray[np.float32] | None = None, range_db: float = 0.0
) -> NDArray[np.float32]:
    """The frames (T, F) of an utterance less their mean, in which digital silence is not counted.

    range_db: log energies lower than this below the loud level of their mel are raised to that; 0: none. The loud level
    is the 95th percentile over the frames with sound. Pauses, whatever the room and its noise, are then alike.

    >>> without_mean(np.float32([[0], [1], [3]]), np.zeros(1, np.float32)).ravel()
    array([-2., -1.,  1.], dtype=float32)
    """
    if not len(features):  # an utterance shorter than a window
        return features
    heard = sounds(features, floor)
    if not len(heard):
        heard = features
    if range_db:
        lowest = np.percentile(heard, LOUD, axis=0).astype(np.float32) - np.float32(range_db * NATS_OF_A_DB)
        features, heard = np.maximum(features, lowest), np.maximum(heard, lowest)
    centred: NDArray[np.float64] = features - heard.mean(axis=0, dtype=np.float64)
    return centred.astype(np.float32)


def sounds(features: NDArray[np.float32], floor: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """The frames of (T, F) that `CausalMean.apply` counts: all but those of digital silence.

    >>> sounds(np.float32([[0, 0], [0, 1]]), np.zeros(2, np.float32))
    array([[0., 1.]], dtype=float32)
    """
    return features if floor is None else features[(features > floor + LEAST_SOUND).any(axis=1)]


@compiled
def _run(
    features: NDArray[np.float32],
    floor: NDArray[np.float32],
    mean: NDArray[np.float64],
    count: int,
    prior_frames: int,
    window_frames: int,
    result: NDArray[np.float32],
) -> int:
    for t in range(features.shape[0]):
        rate = 0.0
        for f in range(features.shape[1]):
            if features[t, f] > floor[f] + LEAST_SOUND:
                count += 1
                rate = 1.0 / min(count + prior_frames, window_frames)
                break
        for f in range(features.shape[1]):
            mean[f] += (features[t, f] - mean[f]) * rate
            result[t, f] = features[t, f] - mean[f]
    return count


@dataclass
class Moments:
    """Zeroth, first and second order statistics of frames, in float64. Those of shards can be added."""

    frames: int
    total: NDArray[np.float64]
    squares: NDArray[np.float64]

    @staticmethod
    def zero(dims: int) -> Moments:
        return Moments(0, np.zeros(dims), np.zeros(dims))

    def add(self, features: NDArray[np.float32]) -> None:
        exact = features.astype(np.float64)
        self.frames += exact.shape[0]
        self.total += exact.sum(axis=0)
        self.squares += np.square(exact).sum(axis=0)

    def merge(self, other: Moments) -> None:
        self.frames += other.frames
        self.total += other.total
        self.squares += other.squares

    def mean_and_inv_std(self, floor: float = 1e-3) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Global mean (F,) and 1/σ (F,), σ no smaller than `floor`."""
        n = max(self.frames, 1)
        mean = self.total / n
        variance = np.maximum(self.squares / n - np.square(mean), floor**2)
        return mean, 1.0 / np.sqrt(variance)
