"""Finds stretches of a transcript that belong to other recordings, such as the second half of a file of two texts.

Where such lines meet speech without a text, many fit as well as a badly read right line does, and few are left out. So
each cue is judged by its neighbours on the path, too: a stretch in which less than `MOSTLY` of the tokens are in sure
cues is refused, unless its cues fit in this order and in no other (`wrong_transcript.in_order`), as badly read right
ones do. Shorter stretches than two neighbourhoods stay, since their order says too little, and long ones are tested in
sections.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.align.edges import runs
from megahour.align.evidence import MOSTLY, SURE

NEAR = 10  # cues of the path on either side
LONGEST = 100  # cues that are tested together, as the memory and time of the test grow with their square


def foreign_cues(
    z: NDArray[np.float64], lengths: NDArray[np.integer[Any]], in_order: Callable[[int, int], bool | None]
) -> NDArray[np.bool_]:
    """(J,) which cues are in foreign stretches, by their deviations z (NaN: not on the path) and `lengths` in tokens.

    in_order: whether cues first .. last-1 fit the audio between their neighbours in this order alone; None if that
    cannot be told, and they stay.
    """
    foreign = np.zeros(len(z), bool)
    placed = np.flatnonzero(np.isfinite(z))
    if len(placed) <= 2 * NEAR:
        return foreign
    sure, weight = z[placed] <= SURE, lengths[placed].astype(np.float64)
    share = _around(sure * weight) / _around(weight)
    for first, last in runs(share < MOSTLY).tolist():
        while first and not sure[first - 1]:
            first -= 1
        while last < len(placed) and not sure[last]:
            last += 1
        begin, end = int(placed[first]), int(placed[last - 1]) + 1
        if end - begin <= 2 * NEAR:
            continue
        for section in np.array_split(np.arange(begin, end), math.ceil((end - begin) / LONGEST)):
            foreign[section] = in_order(int(section[0]), int(section[-1]) + 1) is False
    return foreign


def _around(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of each value and of its `NEAR` neighbours on either side."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    return np.asarray(total[np.minimum(at + NEAR + 1, len(values))] - total[np.maximum(at - NEAR, 0)])
