"""The result of a token search, and the best path of CTC; without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
NOT_FINITE = "the model's output is not finite; check the model and its features"


class TokenPath(NamedTuple):
    """A recognised sequence of tokens.

    labels: the token emitted at each frame, or 0. chances: the probability of each label when it was chosen. score: log
    probability in nats, summed over all paths to the same tokens that the search kept.
    """

    labels: tuple[int, ...]
    chances: tuple[float, ...]
    score: float

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(label for label in self.labels if label)


def confidence(labels: Sequence[int], chances: Sequence[float], *, blank: bool) -> float:
    """Mean of a path's `chances`, without the frames of label 0 if the path has a `blank`. 0.0 if no frame counts.

    >>> confidence([0, 3, 3], [0.5, 0.75, 0.25], blank=True)
    0.5
    """
    counted = [chance for label, chance in zip(labels, chances, strict=True) if label or not blank]
    return sum(counted) / len(counted) if counted else 0.0


def most_likely(tags: Float32, names: Sequence[str]) -> tuple[str | None, float | None]:
    """The most likely tag of an utterance and its probability. `tags`: log probabilities (T, N), equal in all rows."""
    if not len(tags):
        return None, None
    best = int(tags[0].argmax())
    return names[best], float(np.exp(tags[0, best]))


def best_path(log_probs: Float32) -> TokenPath:
    """The most likely label of each frame of CTC log probabilities (T, V).

    >>> best_path(np.log(np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], np.float32) + 1e-9)).tokens
    (2,)
    """
    labels, best = log_probs.argmax(axis=1), log_probs.max(axis=1, initial=-np.inf)
    return TokenPath(tuple(labels.tolist()), tuple(np.exp(best).tolist()), float(best.sum(dtype=np.float64)))
