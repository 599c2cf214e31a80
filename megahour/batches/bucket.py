"""Groups items of similar length into batches of nearly equal size, and cuts utterances into chunks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]


class Chunks(NamedTuple):
    """Pieces of utterances, (n,) each: the index of the utterance, and `start` and `length` in stacked frames."""

    utterance: Index
    start: Index
    length: Index


def cut(lengths: Index, chunk: int) -> Chunks:
    """Cut each utterance into pieces of `chunk` frames and a shorter last one (0: whole utterances).

    This is for chunked back-propagation through time (Parthasarathi et al., section II-B; Doetsch et al., 2014: chunks
    of 32 frames, each with a zero initial state). Utterances without frames give no piece.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    size = chunk if chunk else max(1, int(lengths.max(initial=0)))
    pieces = -(-lengths // size)
    utterance = np.repeat(np.arange(len(lengths)), pieces)
    first = np.repeat(np.cumsum(pieces) - pieces, pieces)
    start = (np.arange(len(utterance)) - first) * size
    return Chunks(utterance, start, np.minimum(size, lengths[utterance] - start))


def partition(lengths: Index, batches: int, rng: np.random.Generator, *, bucket_frames: int = 8) -> list[Index]:
    """Divide items into `batches` non-empty batches, in shuffled order; each item is in exactly one.

    Items are shuffled, then sorted by length in buckets of `bucket_frames`: this keeps padding low and the order
    random within a bucket. They are cut into batches at equal sums of frames, and the batches are shuffled.

    Raises
    ------
    ValueError: there are more batches than items, or `batches` is below 1.
    """
    n = len(lengths)
    if not 1 <= batches <= n:
        raise ValueError(f"{batches} batches of {n} items")
    order = rng.permutation(n)
    order = order[np.argsort(lengths[order] // bucket_frames, kind="stable")]
    total = np.cumsum(lengths[order], dtype=np.int64)
    j = np.arange(1, batches)
    cuts = np.searchsorted(total, total[-1] * j / batches, side="left") + 1
    # Make the cuts strictly increasing, so that each batch has at least one item whatever the lengths.
    cuts = np.maximum.accumulate(np.maximum(cuts - j, 0)) + j
    cuts = np.minimum(cuts, n - batches + j)
    groups = np.split(order, cuts)
    return [groups[i] for i in rng.permutation(batches).tolist()]
