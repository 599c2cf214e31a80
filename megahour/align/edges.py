"""Word edges from energy: CTC marks a word by short peaks that end some 180 ms before the sound does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LOUD_SHARE = 0.35  # of the way from the recording's quiet (10th percentile) to its loud level (95th)
LONGEST_TAIL = 40  # frames of 10 ms that an end may move
LONGEST_HEAD = 20  # frames of 10 ms that a start may move


def loud_frames(level: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which 10 ms frames of a recording are speech, from their mean log-mel energy (T,)."""
    if not len(level):
        return np.zeros(0, bool)
    quiet, loud = np.percentile(level, [10, 95])
    result: NDArray[np.bool_] = level > quiet + LOUD_SHARE * (loud - quiet)
    return result


def widen(
    start: NDArray[np.int64], end: NDArray[np.int64], loud: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Move the edges of words (W,) in 10 ms frames out to the next pause, never into another word.

    A start moves only where a pause is near; between words without a pause the earlier one takes the frames.
    """
    quiet = np.flatnonzero(~loud)
    limit = np.append(start[1:], len(loud))
    following = np.append(quiet, len(loud))[np.searchsorted(quiet, end)]
    new_end = np.maximum(end, np.minimum(np.minimum(following, end + LONGEST_TAIL), limit))
    floor = np.insert(new_end[:-1], 0, 0)
    preceding = np.insert(quiet, 0, -1)[np.searchsorted(quiet, start)] + 1
    near = (preceding >= floor) & (start - preceding <= LONGEST_HEAD)
    return np.where(near, np.minimum(preceding, start), start), new_end
