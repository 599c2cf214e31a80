"""Numbers by name, added up: of records within a shard, of shards within a stage."""

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
    """The sums of all parts by name, in the order in which names come up, rounded to `digits` at the end.

    >>> summed([{"audio_s": 1.25, "words": 2}, {"words": 3}])
    {'audio_s': 1.25, 'words': 5}
    """
    totals: dict[str, float] = {}
    for part in parts:
        add_to(totals, part)
    return {name: round(total, digits) for name, total in totals.items()}
