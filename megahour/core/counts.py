"""Sums of named numbers: over the records of a shard, over the shards of a stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def add_to(totals: dict[str, float], numbers: Mapping[str, float]) -> None:
    """Add `numbers` to `totals`, name by name.

    >>> totals = {"a": 1}
    >>> add_to(totals, {"a": 2, "b": 3}); totals
    {'a': 3, 'b': 3}
    """
    for name, number in numbers.items():
        totals[name] = totals.get(name, 0) + number


def summed(parts: Iterable[Mapping[str, float]], digits: int = 4) -> dict[str, float]:
    """The sum of each name over all parts, in order of first appearance, rounded to `digits` at the end.

    >>> summed([{"audio_s": 1.25, "words": 2}, {"words": 3}])
    {'audio_s': 1.25, 'words': 5}
    """
    totals: dict[str, float] = {}
    for part in parts:
        add_to(totals, part)
    return {name: round(total, digits) for name, total in totals.items()}
