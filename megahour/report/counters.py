"""Summaries of a stream in bounded memory: its heaviest names, and a repeatable sample.

Both are merged shard by shard, and do not depend on how the rows of a shard are split into batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

UInt64 = NDArray[np.uint64]
Place = tuple[int, int, int]  # hash, shard, row


@dataclass
class GroupTotals:
    """Utterances and seconds of one name. `credit`: its first attribution; `more`: whether it has others."""

    records: float = 0.0
    seconds: float = 0.0
    credit: str = ""
    more: bool = False

    def add(self, records: float, seconds: float, credit: str) -> None:
        self.records += records
        self.seconds += seconds
        self.more |= bool(credit) and bool(self.credit) and credit != self.credit
        self.credit = self.credit or credit


@dataclass
class Heaviest:
    """The names with the most seconds, in at most `capacity` counters (Agarwal et al., Mergeable summaries, PODS 2012).

    Exact until more than `capacity` names have been seen. After that a name's seconds are too low by at most
    `missing_s`, which is at most the total over `capacity` + 1; totals stay exact.
    """

    capacity: int = 4096
    tallies: dict[str, GroupTotals] = field(default_factory=dict)
    records: float = 0.0
    seconds: float = 0.0
    missing_s: float = 0.0

    def add(self, rows: Iterable[tuple[str, float, float, str]]) -> None:
        """Add the rows (name, records, seconds, attribution) of one shard."""
        for name, records, seconds, credit in rows:
            self.tallies.setdefault(name, GroupTotals()).add(records, seconds, credit)
            self.records += records
            self.seconds += seconds
            if len(self.tallies) > 2 * self.capacity:
                self._prune()
        if len(self.tallies) > self.capacity:
            self._prune()

    def _prune(self) -> None:
        """Subtract the seconds of the (capacity + 1)th name from all names, and drop those with none left."""
        cut = sorted((tally.seconds for tally in self.tallies.values()), reverse=True)[self.capacity]
        self.missing_s += cut
        left = {}
        for name, tally in self.tallies.items():
            if tally.seconds > cut:
                tally.records *= (tally.seconds - cut) / tally.seconds
                tally.seconds -= cut
                left[name] = tally
        self.tallies = left

    @property
    def exact(self) -> bool:
        return self.missing_s == 0.0

    def top(self, n: int) -> list[tuple[str, GroupTotals]]:
        """The `n` heaviest names, heaviest first; ties are sorted by name."""
        return sorted(self.tallies.items(), key=lambda item: (-item[1].seconds, item[0]))[:n]


@dataclass
class Sample:
    """The `size` rows with the smallest key hashes, whatever the order and number of shards."""

    size: int
    seed: int
    places: list[Place] = field(default_factory=list)

    def add(self, shard: int, keys: NDArray[Any], rows: NDArray[Any] | None = None) -> None:
        """Add keys int64 [N] of one shard: of all rows in order, or of the row numbers in `rows` [N]."""
        if not self.size or not len(keys):
            return
        hashes = scattered(keys, self.seed)
        best = np.argsort(hashes, kind="stable")[: self.size]
        numbers = np.arange(len(keys)) if rows is None else rows
        new = [(int(hashes[i]), shard, int(numbers[i])) for i in best]
        self.places = sorted(self.places + new)[: self.size]

    def by_shard(self) -> dict[int, list[int]]:
        """Sampled rows by shard; shards and rows are sorted."""
        rows: dict[int, list[int]] = {}
        for _, shard, row in sorted(self.places, key=lambda place: place[1:]):
            rows.setdefault(shard, []).append(row)
        return rows


def scattered(keys: NDArray[Any], seed: int) -> UInt64:
    """Hash keys int64 [N] to pseudo-random uint64 [N] (splitmix64's finaliser: Steele et al., 2014)."""
    with np.errstate(over="ignore"):
        z = keys.astype(np.int64).view(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: UInt64 = z ^ (z >> np.uint64(31))
    return mixed
