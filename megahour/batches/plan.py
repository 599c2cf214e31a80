"""Plans the batches of an epoch, without state: batch numbers map to windows by arithmetic.

The order is a hierarchical shuffle (Parthasarathi et al., section IV-A): shards are permuted, then the utterances (or
chunks) within a window of neighbouring shards. An epoch is one global sequence of batches, a pure function of (seed,
epoch); `train.batch_assignment` assigns its numbers to workers. Therefore

- resuming is O(1): a checkpoint holds one number, and only the window of that batch is opened;
- a change of the number of workers neither repeats nor skips an utterance.

With `lanes` above 1, shards are dealt to lanes with equal numbers of batches and separate windows, and batches come
from the lanes in turn. If the number of workers divides the number of lanes, each worker has its own shards, and each
machine reads only its share of the corpus. The order is the same for any number of workers.

A plan needs only two numbers per shard, so for a million hours (200,000 shards) it takes a few megabytes.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from megahour.core.records import key_of


class ShardSize(NamedTuple):
    """The number of utterances in a shard, and of their 10 ms frames."""

    utterances: int
    frames: int


@dataclass(frozen=True)
class EpochPlan:
    """The batches of one epoch over `shards`.

    `batch_frames` is the mean size of a batch, in 10 ms frames as in `ShardSize`. `window_shards` shards are open and
    shuffled together at a time, in each of the `lanes`.
    """

    shards: Sequence[ShardSize]
    seed: int
    epoch: int
    batch_frames: int
    window_shards: int = 8
    lanes: int = 1
    windows: list[list[int]] = field(init=False, repr=False)
    _lanes: list[_Lane] = field(init=False, repr=False)
    _length: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("batch_frames", "window_shards", "lanes"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} is {value}, it must be positive")
        filled = [i for i, size in enumerate(self.shards) if size.utterances]
        rng = np.random.Generator(np.random.PCG64(key_of("shards", self.seed, self.epoch)))
        order = [filled[i] for i in rng.permutation(len(filled)).tolist()]
        windows: list[list[int]] = []
        lanes = []
        all_dealt = self._deal(order)
        # Lanes have equal numbers of batches, at most one per utterance, and each window needs one.
        most = min((sum(self.shards[i].utterances for i in dealt) for dealt in all_dealt), default=0)
        for dealt in all_dealt:
            size = max(self.window_shards, -(-len(dealt) // most)) if len(all_dealt) > 1 else self.window_shards
            own = [dealt[i : i + size] for i in range(0, len(dealt), size)]
            lanes.append((len(windows), [self._size(window) for window in own]))
            windows += own
        counts = [[self._batches(size) for size in sizes] for _, sizes in lanes]
        if len(lanes) > 1:
            each = min(most, max(sum(lane) for lane in counts))
            counts = [_allotted(sizes, each) for _, sizes in lanes]
        object.__setattr__(self, "windows", windows)
        found = [_Lane(first, list(accumulate(n))) for (first, _), n in zip(lanes, counts, strict=True)]
        object.__setattr__(self, "_lanes", found)
        object.__setattr__(self, "_length", sum(map(sum, counts)))

    def _deal(self, order: list[int]) -> list[list[int]]:
        """Deal each shard to the lane with the fewest frames so far."""
        shortest = [(0, lane) for lane in range(min(self.lanes, len(order)))]
        dealt: list[list[int]] = [[] for _ in shortest]
        for shard in order:
            frames, lane = shortest[0]
            dealt[lane].append(shard)
            heapq.heapreplace(shortest, (frames + max(1, self.shards[shard].frames), lane))
        return dealt

    def _size(self, window: list[int]) -> ShardSize:
        return ShardSize(sum(self.shards[i].utterances for i in window), sum(self.shards[i].frames for i in window))

    def _batches(self, window: ShardSize) -> int:
        # At most one batch per utterance: with fewer items than batches some batches would be empty.
        return max(1, min(window.utterances, round(window.frames / self.batch_frames)))

    def __len__(self) -> int:
        """The number of batches in the epoch, over all ranks."""
        return self._length

    def locate(self, batch: int) -> tuple[int, int, int]:
        """(window, batch within the window, number of batches in the window) for a global batch number."""
        if not 0 <= batch < len(self):
            raise IndexError(f"batch {batch} of an epoch of {len(self)}")
        number, turn = divmod(batch, len(self._lanes))
        lane = self._lanes[turn]
        window = bisect.bisect_right(lane.ends, number)
        start = lane.ends[window - 1] if window else 0
        return lane.first + window, number - start, lane.ends[window] - start

    def generator(self, window: int) -> np.random.Generator:
        """The random generator that shuffles a window."""
        return np.random.Generator(np.random.PCG64(key_of("window", self.seed, self.epoch, window)))


@dataclass(frozen=True)
class _Lane:
    """The number of a lane's first window, and the cumulative batch counts of its windows."""

    first: int
    ends: list[int]


def _allotted(windows: Sequence[ShardSize], batches: int) -> list[int]:
    """Distribute `batches` over windows by frames: at least one each, at most one per utterance."""
    found = []
    frames, utterances = sum(size.frames for size in windows), sum(size.utterances for size in windows)
    for i, size in enumerate(windows):
        utterances -= size.utterances
        fewest, most = max(1, batches - utterances), min(size.utterances, batches - (len(windows) - i - 1))
        found.append(min(most, max(fewest, round(batches * size.frames / max(1, frames)))))
        frames, batches = frames - size.frames, batches - found[-1]
    return found
