"""Which speaker goes to which set and shard, as ranges of a hash: small enough to sit in every task's address.

Speakers are put in the order of a seeded hash; sets take them from the front in the order of their rules, and shards
are equal parts of a set's hours. So a speaker's place depends on the rules, the seed and the speakers' hours only, not
on how the utterances were sharded or which engine read them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from megahour.core.records import key_of


@dataclass(frozen=True)
class Shard:
    """One output shard: its set, and the hash of its first speaker."""

    set: str
    first_hash: int
    hours: float


@dataclass(frozen=True)
class Layout:
    """Shards in the order of the rules; named speakers are looked up, the others found in hash ranges."""

    seed: int
    shards: tuple[Shard, ...]
    named: Mapping[str, int]  # speaker → shard
    ranges: tuple[tuple[int, int], ...] = field(default=())  # (first hash, shard or -1), rising

    def shard_of(self, speaker: str) -> int | None:
        """Output shard of a speaker, None when no set takes it."""
        if speaker in self.named:
            return self.named[speaker]
        at = bisect_right(self.ranges, (speaker_hash(self.seed, speaker), 1 << 62)) - 1
        shard = self.ranges[at][1] if at >= 0 else -1
        return None if shard < 0 else shard


def speaker_hash(seed: int, speaker: str) -> int:
    return key_of("speaker", seed, speaker)


def lay_out(hours: Mapping[str, float], rules: Sequence[Any], seed: int, shard_hours: float) -> Layout:
    """Assign speakers to sets and shards.

    `hours` is speech per speaker; each rule has `name` and at most one of `speakers` (how many), `share` (of the hours
    that earlier rules left), `hours`, `named` (who); a rule with none takes all that is left.
    """
    named_speakers = {speaker for rule in rules for speaker in rule.named or ()}
    order = sorted((speaker_hash(seed, s), s) for s in hours if s not in named_speakers)
    shards: list[Shard] = []
    ranges: list[tuple[int, int]] = []
    named: dict[str, int] = {}
    at = 0
    for rule in rules:
        if rule.named:
            chosen = sorted((speaker_hash(seed, s), s) for s in rule.named if s in hours)
            for run in _equal_parts(chosen, hours, shard_hours):
                named.update(dict.fromkeys((s for _, s in run), len(shards)))
                shards.append(Shard(rule.name, run[0][0], sum(hours[s] for _, s in run)))
            continue
        stop = _stop(rule, order, at, hours)
        part = order[at:stop]
        at = stop
        for run in _equal_parts(part, hours, shard_hours):
            ranges.append((run[0][0], len(shards)))
            shards.append(Shard(rule.name, run[0][0], sum(hours[s] for _, s in run)))
    if at < len(order):
        ranges.append((order[at][0], -1))
    return Layout(seed, tuple(shards), named, tuple(ranges))


def _stop(rule: Any, order: Sequence[tuple[int, str]], at: int, hours: Mapping[str, float]) -> int:
    """End of the run of speakers that a rule takes from `order[at:]`: at least one while there are any."""
    if rule.speakers is not None:
        return min(len(order), at + int(rule.speakers))
    left = sum(hours[s] for _, s in order[at:])
    if rule.share is not None:
        wanted = rule.share * left
    elif rule.hours is not None:
        wanted = rule.hours
    else:
        return len(order)
    taken, stop = 0.0, at
    while stop < len(order) and (stop == at or taken + hours[order[stop][1]] / 2 <= wanted):
        taken += hours[order[stop][1]]
        stop += 1
    return stop


def _equal_parts(
    part: Sequence[tuple[int, str]], hours: Mapping[str, float], shard_hours: float
) -> list[list[tuple[int, str]]]:
    """Runs of whole speakers of nearly equal hours, about `shard_hours` each."""
    if not part:
        return []
    total = sum(hours[s] for _, s in part)
    count = max(1, min(len(part), round(total / shard_hours)))
    runs: list[list[tuple[int, str]]] = [[] for _ in range(count)]
    before = 0.0
    for place, (value, speaker) in enumerate(part):
        middle = before + hours[speaker] / 2
        wanted = min(count - 1, int(middle / total * count)) if total else 0
        # Every shard gets at least one speaker: never run ahead of what the remaining speakers can fill.
        wanted = max(wanted, count - (len(part) - place))
        runs[wanted].append((value, speaker))
        before += hours[speaker]
    return [run for run in runs if run]
