"""Assigns speakers to sets and shards by ranges of a hash, so that the layout is small enough for every task.

Speakers, or groups of speakers who share recordings, are sorted by a seeded hash. In the order of the rules, each set
takes speakers from the front; its shards have nearly equal hours. So the assignment depends only on rules, seed, groups
and hours, not on the sharding of the utterances or the engine.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from megahour.core.records import key_of


class SampledShard(NamedTuple):
    """One output shard: its set, and the hash of its first speaker."""

    set: str
    first_hash: int
    hours: float


@dataclass(frozen=True)
class Layout:
    """Shards in the order of the rules; named speakers are looked up, others are located by hash range.

    leaders: speaker → the leader of their group, whose hash places the whole group. spellings: speaker → the name in
    the output. contested: place (`voices.places_of`) → the only set that may use it. Each lists exceptions only.
    limits: largest hash drawn from each (set, period), see `draw`. levels: set → time per speaker in µs, for sets drawn
    evenly over speakers.
    """

    seed: int
    shards: tuple[SampledShard, ...]
    named: Mapping[str, int]  # speaker → shard
    ranges: tuple[tuple[int, int], ...] = field(default=())  # (first hash, shard or -1), rising
    leaders: Mapping[str, str] = field(default_factory=dict)
    spellings: Mapping[str, str] = field(default_factory=dict)
    contested: Mapping[int, str] = field(default_factory=dict)
    limits: Mapping[tuple[str, int], int] = field(default_factory=dict)
    levels: Mapping[str, int] = field(default_factory=dict)

    def shard_of(self, speaker: str) -> int | None:
        """Output shard of a speaker; None if no set takes it."""
        speaker = self.leaders.get(speaker, speaker)
        if speaker in self.named:
            return self.named[speaker]
        at = bisect_right(self.ranges, (speaker_hash(self.seed, speaker), 1 << 62)) - 1
        shard = self.ranges[at][1] if at >= 0 else -1
        return None if shard < 0 else shard

    def to_json(self) -> str:
        """The layout as JSON, for `from_json`."""
        shards = [[shard.set, shard.first_hash, shard.hours] for shard in self.shards]
        limits = [[*place, limit] for place, limit in sorted(self.limits.items())]
        contested = sorted(self.contested.items())
        return json.dumps({**vars(self), "shards": shards, "limits": limits, "contested": contested}, sort_keys=True)

    @staticmethod
    def from_json(text: str | bytes) -> Layout:
        data = json.loads(text)
        shards = tuple(SampledShard(*values) for values in data["shards"])
        ranges = tuple((first, shard) for first, shard in data["ranges"])
        limits = {(name, period): limit for name, period, limit in data["limits"]}
        contested = dict(data["contested"])
        return Layout(**{**data, "shards": shards, "ranges": ranges, "limits": limits, "contested": contested})


def speaker_hash(seed: int, speaker: str) -> int:
    return key_of("speaker", seed, speaker)


def lay_out(
    hours: Mapping[str, float],
    rules: Sequence[Any],
    seed: int,
    shard_hours: float,
    leaders: Mapping[str, str] | None = None,
    drawn: Mapping[str, float] | None = None,
    levels: Mapping[str, float] | None = None,
) -> Layout:
    """Assign speakers to sets and shards.

    `hours` is the speech of each speaker. A rule has a `name` and at most one of `speakers` (how many), `share` (of the
    hours that earlier rules left), `hours` and `named` (who); a rule with none takes the rest. Speakers with one
    leader stay together, placed by the leader's hash. A set in `drawn` keeps only that share of its hours, a set in
    `levels` at most that many hours per speaker; both get fewer shards accordingly.
    """
    leaders, drawn, levels = leaders or {}, drawn or {}, levels or {}
    members = Counter(leaders.get(speaker, speaker) for speaker in hours)
    whole = _of_leaders(hours, leaders)
    by_rule: list[set[str]] = []
    taken: set[str] = set()
    for rule in rules:  # if several rules name speakers of one group, the first gets the group
        by_rule.append({leaders.get(s, s) for s in rule.named or () if s in hours} - taken)
        taken |= by_rule[-1]
    order = sorted((speaker_hash(seed, s), s) for s in whole if s not in taken)
    shards: list[SampledShard] = []
    ranges: list[tuple[int, int]] = []
    named: dict[str, int] = {}
    at = 0
    for rule, chosen in zip(rules, by_rule, strict=True):
        before_draw = shard_hours / drawn.get(rule.name, 1.0)
        stay = _of_leaders(hours, leaders, levels[rule.name]) if rule.name in levels else whole
        if rule.named:
            for run in _equal_parts(sorted((speaker_hash(seed, s), s) for s in chosen), stay, before_draw):
                named.update(dict.fromkeys((s for _, s in run), len(shards)))
                shards.append(SampledShard(rule.name, run[0][0], sum(whole[s] for _, s in run)))
            continue
        stop = _stop(rule, order, at, whole, members)
        part = order[at:stop]
        at = stop
        for run in _equal_parts(part, stay, before_draw):
            ranges.append((run[0][0], len(shards)))
            shards.append(SampledShard(rule.name, run[0][0], sum(whole[s] for _, s in run)))
    if at < len(order):
        ranges.append((order[at][0], -1))
    return Layout(seed, tuple(shards), named, tuple(ranges), leaders)


def _of_leaders(hours: Mapping[str, float], leaders: Mapping[str, str], most: float = math.inf) -> dict[str, float]:
    """The hours of each group, by leader, counting at most `most` hours per speaker."""
    sums: dict[str, float] = {}
    for speaker in sorted(hours):  # fixed order, since float sums depend on it
        leader = leaders.get(speaker, speaker)
        sums[leader] = sums.get(leader, 0.0) + min(most, hours[speaker])
    return sums


def _stop(
    rule: Any, order: Sequence[tuple[int, str]], at: int, hours: Mapping[str, float], members: Mapping[str, int]
) -> int:
    """The end of the speakers that a rule takes from `order[at:]`. It takes at least one if any are left."""
    stop = at
    if rule.speakers is not None:
        taken = 0
        while stop < len(order) and taken < rule.speakers:
            taken += members[order[stop][1]]
            stop += 1
        return stop
    left = sum(hours[s] for _, s in order[at:])
    if rule.share is not None:
        wanted = rule.share * left
    elif rule.hours is not None:
        wanted = rule.hours
    else:
        return len(order)
    got = 0.0
    while stop < len(order) and (stop == at or got + hours[order[stop][1]] / 2 <= wanted):
        got += hours[order[stop][1]]
        stop += 1
    return stop


def _equal_parts(
    part: Sequence[tuple[int, str]], hours: Mapping[str, float], shard_hours: float
) -> list[list[tuple[int, str]]]:
    """Split speakers into runs of nearly equal hours, about `shard_hours` each; no speaker is split."""
    if not part:
        return []
    total = sum(hours[s] for _, s in part)
    count = max(1, min(len(part), round(total / shard_hours)))
    runs: list[list[tuple[int, str]]] = [[] for _ in range(count)]
    before = 0.0
    for position, (value, speaker) in enumerate(part):
        middle = before + hours[speaker] / 2
        wanted = min(count - 1, int(middle / total * count)) if total else 0
        # Every shard gets at least one speaker, so leave no more shards open than there are speakers left.
        wanted = max(wanted, count - (len(part) - position))
        runs[wanted].append((value, speaker))
        before += hours[speaker]
    return [run for run in runs if run]
