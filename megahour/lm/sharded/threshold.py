"""The choice of n-grams to keep, by one threshold for all partitions.

A given size is met exactly, by a search in the sorted bounds of all partitions.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from megahour.core.errors import MegahourError
from megahour.lm.sharded.union import Union
from megahour.lm.text.arrays import Int64

if TYPE_CHECKING:
    from megahour.core.store import Artifact
    from megahour.core.writer import ShardWriter

Corrections = dict[int, list[tuple[int, int, float, float]]]
"""By partition: order and index of an n-gram, its bound there, and its bound with all later partitions."""


def corrections(losses: Artifact, partitions: int) -> Corrections:
    """The n-grams whose bounds rise because of later partitions."""
    highest: dict[tuple[int, ...], float] = {}
    owners: list[tuple[int, tuple[int, ...], int, int, float]] = []
    for partition in range(partitions):
        for gram, bound, order, place in losses.read_json(partition, ".seams.json"):
            if place < 0:
                highest[tuple(gram)] = max(bound, highest.get(tuple(gram), -np.inf))
            else:
                owners.append((partition, tuple(gram), order, place, bound))
    found: Corrections = {}
    for partition, gram_words, order, place, bound in owners:
        if highest.get(gram_words, -np.inf) > bound:
            found.setdefault(partition, []).append((order, place, bound, highest[gram_words]))
    return found


class SortedBounds:
    """The sorted bounds of all partitions by order, mapped from files. Words always stay."""

    def __init__(self, losses: Artifact, union: Union, partitions: int, stack: ExitStack) -> None:
        self.orders, self.partitions, self.words = range(2, union.order + 1), partitions, union.size
        self.corrections = corrections(losses, partitions)
        self._files = {
            (k, p): np.load(stack.enter_context(losses.local(p, f".{k}.sorted.npy")), mmap_mode="r")
            for k in self.orders
            for p in range(partitions)
        }

    def counts(self, value: float, side: Any) -> dict[int, Int64]:
        """(P,) by order the number of bounds < value (side left) or ≤ value (right)."""
        found = {
            k: np.array([np.searchsorted(self._files[k, p], value, side) for p in range(self.partitions)], np.int64)
            for k in self.orders
        }
        for partition, changes in self.corrections.items():
            for order, _, before, after in changes:
                found[order][partition] += _below(after, value, side) - _below(before, value, side)
        return found

    def total(self, value: float, side: Any) -> int:
        return int(sum(counts.sum() for counts in self.counts(value, side).values()))

    @property
    def size(self) -> int:
        return self.words + sum(len(file) for file in self._files.values())


def _below(bound: float, value: float, side: Any) -> int:
    return int(bound < value if side == "left" else bound <= value)


def choose(bounds: SortedBounds, threshold: float, size: int) -> tuple[float, dict[int, Int64], dict[int, Int64]]:
    """The lowest bound of kept n-grams; and, by order and partition (P,), the numbers of n-grams above it and of those
    with this bound that are kept.

    Raises MegahourError: `size` is less than the n-grams that must stay.
    """
    if size:
        fixed = bounds.size - bounds.total(np.inf, "left")
        if size < fixed:
            raise MegahourError(f"{size} n-grams are too few: {fixed} must stay", remedy=f"give {fixed} or more")
        leave = bounds.size - size
        threshold = _smallest(bounds, leave + 1) if leave > 0 else 0.0
        if leave <= 0:
            below = {k: np.zeros(bounds.partitions, np.int64) for k in bounds.orders}
        else:
            below = bounds.counts(threshold, "right")
    else:
        below = bounds.counts(threshold, "left")
    every = bounds.counts(np.inf, "right")
    above = {k: every[k] - below[k] for k in bounds.orders}
    equal = {k: np.zeros(bounds.partitions, np.int64) for k in bounds.orders}
    if size and bounds.size > size:
        left = size - bounds.words - sum(int(counts.sum()) for counts in above.values())
        ties = bounds.counts(threshold, "left")
        for k in bounds.orders:
            for partition in range(bounds.partitions):
                equal[k][partition] = min(left, int(below[k][partition] - ties[k][partition]))
                left -= int(equal[k][partition])
    return threshold, above, equal


def _smallest(bounds: SortedBounds, rank: int) -> float:
    """The rank-th smallest bound, from 1, by bisection over all floats."""
    low, high = _position(-np.inf), _position(np.inf)
    while low < high:
        middle = (low + high) // 2
        if bounds.total(_number(middle), "right") >= rank:
            high = middle
        else:
            low = middle + 1
    return _number(low)


def _position(value: float) -> int:
    """The rank of a float among all floats."""
    bits = int(np.float64(value).view(np.int64))
    return bits if bits >= 0 else -(bits & 0x7FFFFFFFFFFFFFFF)


def _number(position: int) -> float:
    bits = position if position >= 0 else -position | 1 << 63
    return float(np.uint64(bits).view(np.float64))


def write_threshold(
    losses: Artifact, union: Union, partitions: int, threshold: float, size: int, out: ShardWriter
) -> None:
    """Write `.json`: what each partition keeps. Raises MegahourError as `choose`."""
    with ExitStack() as stack:
        bounds = SortedBounds(losses, union, partitions, stack)
        least, above, equal = choose(bounds, threshold, size)
    kept = [union.size, *(int((above[k] + equal[k]).sum()) for k in bounds.orders)]
    while len(kept) > 1 and kept[-1] == 0:
        kept.pop()
    found = {
        "least": least,
        "keep": "all" if 0 < bounds.size <= size else "above" if size else "from",
        "equal": {str(k): counts.tolist() for k, counts in equal.items()},
        "raised": {str(p): changes for p, changes in bounds.corrections.items()},
    }
    out.path(".json").write_text(json.dumps(found) + "\n", "utf-8")
    before = [union.size, *(int(counts.sum()) for counts in bounds.counts(np.inf, "right").values())]
    out.stats.update(threshold=least, kept=kept, before=before)
    out.came_in(bounds.size)
    out.kept(sum(kept))
    out.drop("loss", bounds.size - sum(kept))
