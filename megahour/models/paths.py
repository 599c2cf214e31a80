"""What a search of tokens finds, and the likeliest path of CTC; without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
NOT_FINITE = "what the model gives is not finite; check it and its features"


class TokenPath(NamedTuple):
    """What was recognised.

    labels: for each frame the token that it brought, or 0. chances: the probability of each where it was chosen.
    score: the path's log probability in nats, with all other ways to the same tokens that the search kept.
    """

    labels: tuple[int, ...]
    chances: tuple[float, ...]
    score: float

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(label for label in self.labels if label)


def confidence(labels: Sequence[int], chances: Sequence[float], *, blank: bool) -> float:
    """Mean of a path's `chances`; with `blank`, of the frames whose label is not 0. 0.0 where there are none.

    >>> confidence([0, 3, 3], [0.5, 0.75, 0.25], blank=True)
    0.5
    """
    counted = [chance for label, chance in zip(labels, chances, strict=True) if label or not blank]
    return sum(counted) / len(counted) if counted else 0.0


def most_likely(tags: Float32, names: Sequence[str]) -> tuple[str | None, float | None]:
    """The tag of an utterance and its probability; `tags` (T, N) log probabilities, equal in all frames."""
    if not len(tags):
        return None, None
    best = int(tags[0].argmax())
    return names[best], float(np.exp(tags[0, best]))


def best_path(log_probs: Float32) -> TokenPath:
    """The likeliest label of each frame of CTC's (T, V)."""
    labels, best = log_probs.argmax(axis=1), log_probs.max(axis=1, initial=-np.inf)
    return TokenPath(tuple(labels.tolist()), tuple(np.exp(best).tolist()), float(best.sum(dtype=np.float64)))
