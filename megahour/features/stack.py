"""Low-frame-rate input: neighbouring 10 ms frames joined into one (Amazon paper, II-B: three, at a 30 ms advance).

Offset o in 0 … size − 1 starts the first stacked frame at 10 ms frame o, so that rotating offsets shows a model every
frame in every place. T' = (T − offset) // size: a last incomplete group is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def stacked_frames(frames: Any, offset: int, size: int = 3) -> Any:
    """T' for T frames (an integer or an array of them) at 10 ms."""
    return np.maximum(0, (frames - offset) // size)


def stack(
    features: NDArray[np.floating[Any]],
    offset: int,
    mean: NDArray[np.float32],
    inv_std: NDArray[np.float32],
    size: int = 3,
) -> NDArray[np.float32]:
    """(T, F) at 10 ms → (T', size · F) float32, normalised by the global `mean` and `inv_std` (F,)."""
    if not 0 <= offset < size:
        raise ValueError(f"offset must be from 0 to {size - 1}, got {offset}")
    n = int(stacked_frames(features.shape[0], offset, size))
    part = features[offset : offset + n * size].astype(np.float32)
    part -= mean
    part *= inv_std
    return part.reshape(n, size * features.shape[1])


def subsample(labels: NDArray[Any], offset: int, size: int = 3) -> NDArray[Any]:
    """The label of each stacked frame: that of its middle 10 ms frame. (T,) → (T',)."""
    n = int(stacked_frames(labels.shape[0], offset, size))
    return labels[offset + size // 2 :: size][:n]
