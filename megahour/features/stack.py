"""Low-frame-rate input: joins neighbouring 10 ms frames into one (Amazon paper, II-B: three, with a 30 ms shift).

Offset o in 0 … size − 1 starts the first stacked frame at 10 ms frame o. Rotating offsets show a model every frame in
every position. T' = (T − offset) // size: an incomplete last group is dropped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def stacked_frames(frames: Any, offset: int, size: int = 3) -> Any:
    """T' for T frames of 10 ms, an integer or an array.

    >>> int(stacked_frames(100, offset=1))
    33
    """
    return np.maximum(0, (frames - offset) // size)


def stack(
    features: NDArray[np.floating[Any]],
    offset: int,
    mean: NDArray[np.float32],
    inv_std: NDArray[np.float32],
    size: int = 3,
) -> NDArray[np.float32]:
    """(T, F) at 10 ms → (T', size · F) float32, normalised by the global `mean` and `inv_std` (F,).

    Raises ValueError for an `offset` outside 0 … size − 1.

    >>> stack(np.ones((7, 40)), 0, np.zeros(40, np.float32), np.ones(40, np.float32)).shape
    (2, 120)
    """
    if not 0 <= offset < size:
        raise ValueError(f"offset must be from 0 to {size - 1}, got {offset}")
    n = int(stacked_frames(features.shape[0], offset, size))
    part = features[offset : offset + n * size].astype(np.float32)
    part -= mean
    part *= inv_std
    return part.reshape(n, size * features.shape[1])


def subsample(labels: NDArray[Any], offset: int, size: int = 3) -> NDArray[Any]:
    """Labels (T,) → (T',): each stacked frame takes the label of its middle 10 ms frame."""
    n = int(stacked_frames(labels.shape[0], offset, size))
    return labels[offset + size // 2 :: size][:n]
