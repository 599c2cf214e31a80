"""Which utterances make up batch number g of an epoch: arithmetic, no state (DESIGN, idea 5).

The order is a hierarchical shuffle (Parthasarathi et al., section IV-A): shards are permuted, then the utterances (or
chunks) of a window of neighbouring shards among each other. An epoch is one global sequence of batches, a pure function
of (seed, epoch), and `train.claims` says which worker takes which of its numbers. So

- resume is O(1): the checkpoint holds one number, and only the window that it falls into is opened;
- a change of the number of workers neither repeats nor skips an utterance.

Window sizes need only two numbers per shard, so a plan over a million hours (200,000 shards) is a few megabytes.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from megahour.core.records import key_of


@dataclass(frozen=True)
class ShardSize:
    """Utterances of a shard and the sum of their frames (at 10 ms)."""

    utterances: int
    frames: int


@dataclass(frozen=True)
class EpochPlan:
    """The batches of one epoch over `shards`.

    `batch_frames` is the mean size of a batch in the unit of `ShardSize.frames`; `window_shards` how many shards are
    shuffled among each other and open at a time.
    """

    shards: Sequence[ShardSize]
    seed: int
    epoch: int
    batch_frames: int
    window_shards: int = 8
    windows: list[list[int]] = field(init=False, repr=False)
    _ends: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch_frames < 1 or self.window_shards < 1:
            raise ValueError(
                f"batch_frames {self.batch_frames} and window_shards {self.window_shards} must be positive"
            )
        filled = [i for i, size in enumerate(self.shards) if size.utterances]
        rng = np.random.Generator(np.random.PCG64(key_of("shards", self.seed, self.epoch)))
        order = [filled[i] for i in rng.permutation(len(filled)).tolist()]
        windows = [order[i : i + self.window_shards] for i in range(0, len(order), self.window_shards)]
        object.__setattr__(self, "windows", windows)
        object.__setattr__(self, "_ends", list(accumulate(self._batches(window) for window in windows)))

    def _batches(self, window: list[int]) -> int:
        # At most one batch per utterance: with fewer items than batches some batches would be empty.
        utterances = sum(self.shards[i].utterances for i in window)
        frames = sum(self.shards[i].frames for i in window)
        return max(1, min(utterances, round(frames / self.batch_frames)))

    def __len__(self) -> int:
        """Batches of the epoch, over all ranks."""
        return self._ends[-1] if self._ends else 0

    def locate(self, batch: int) -> tuple[int, int, int]:
        """(window, batch within the window, batches of the window) of global batch number `batch`."""
        if not 0 <= batch < len(self):
            raise IndexError(f"batch {batch} of an epoch of {len(self)}")
        window = bisect.bisect_right(self._ends, batch)
        start = self._ends[window - 1] if window else 0
        return window, batch - start, self._ends[window] - start

    def generator(self, window: int) -> np.random.Generator:
        """The source of a window's order."""
        return np.random.Generator(np.random.PCG64(key_of("window", self.seed, self.epoch, window)))
