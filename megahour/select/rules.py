"""Applies the rules of `select` to a corpus, and rejects rules by which two sets would share a speaker or recording."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from megahour.core.errors import ConfigError, NothingKept
from megahour.core.stage import Inputs
from megahour.corpus.transcripts.speaker_names import one_name
from megahour.select.census import census
from megahour.select.draw import check_enough, level_of, limits_of
from megahour.select.exchange import drawn_from
from megahour.select.filters import absent_names
from megahour.select.params import SelectParams, SetRule
from megahour.select.sample import Layout, lay_out
from megahour.select.voices import HOUR_US, grouped

LOG = logging.getLogger(__name__)
SHOWN = 5


def lay_out_sets(p: SelectParams, inputs: Inputs) -> Layout:
    """Sets and shards for these utterances.

    Raises
    ------
    ConfigError: a named speaker is missing, or shares a recording with one of another set; or no speakers are left
        for a set.
    NothingKept: no utterance passes the filters.
    """
    speakers = census(p, inputs)
    hours, shared = speakers.hours, speakers.shared
    absent = absent_names(p, speakers.names)
    if not hours:
        raise NothingKept(
            f"select kept none of {inputs['utterances'].manifest.counts.kept:,} records",
            where="select",
            remedy="; ".join([*_filters(p, inputs), *absent]) or "see what the previous stage kept",
        )
    for text in absent:
        LOG.warning("select: %s", text)
    if p.speaker_hours:  # later utterances are left out, so they fill no set and no shard
        hours = {voice: min(value, p.speaker_hours) for voice, value in hours.items()}
    rules = [_named_voices(rule, hours) for rule in p.sets]
    leaders = grouped(shared) if p.shared_recordings == "join" else {}
    _check_named(rules, hours, leaders)
    made = lay_out(hours, rules, p.seed, p.shard_hours, leaders)
    if empty := sorted({rule.name for rule in rules} - {shard.set for shard in made.shards}):
        raise ConfigError(
            f"no speakers are left for the sets {empty}: there are {len(hours)} speakers{_largest(leaders)}",
            where="select",
            remedy="let earlier sets take fewer, or leave these sets out"
            + (", or set shared_recordings=drop" if leaders else ""),
        )
    _warn_of_shortage(rules, made, hours)
    contested = _contested(made, shared) if p.shared_recordings == "drop" else {}
    made = replace(made, spellings=speakers.spellings, contested=contested)
    if not p.draw_hours:
        return made
    if p.draw_evenly == "speakers":
        levels = _levels(p, made, hours)
        at_most = {name: level / HOUR_US for name, level in levels.items()}
        fewer = lay_out(hours, rules, p.seed, p.shard_hours, leaders, levels=at_most)
        return replace(made, shards=fewer.shards, named=fewer.named, ranges=fewer.ranges, levels=levels)
    limits = limits_of(p.draw_hours, lambda: drawn_from(p, made, inputs))
    drawn = {
        name: wanted / sum(shard.hours for shard in made.shards if shard.set == name)
        for name, wanted in p.draw_hours.items()
    }
    fewer = lay_out(hours, rules, p.seed, p.shard_hours, leaders, drawn)  # the same sets in fewer shards
    return replace(made, shards=fewer.shards, named=fewer.named, ranges=fewer.ranges, limits=limits)


def _warn_of_shortage(rules: list[SetRule], made: Layout, hours: Mapping[str, float]) -> None:
    """Log if the last set takes all speakers that are left, and they are fewer or shorter than its rule says."""
    last = next((rule for rule in reversed(rules) if not rule.named), None)
    if last is None or made.ranges[-1][1] < 0:
        return
    got = sum(shard.hours for shard in made.shards if shard.set == last.name)
    if last.hours is not None and got < last.hours:
        LOG.warning("select: the set %r gets the %.2f hours that are left, of %g", last.name, got, last.hours)
    if last.speakers is not None:
        shards = {number for number, shard in enumerate(made.shards) if shard.set == last.name}
        count = sum(made.shard_of(voice) in shards for voice in hours)
        if count < last.speakers:
            LOG.warning("select: the set %r gets the %d speakers that are left, of %d", last.name, count, last.speakers)


def _levels(p: SelectParams, made: Layout, hours: Mapping[str, float]) -> dict[str, int]:
    """The time in µs that each speaker gives, by set of `draw_hours`."""
    has: dict[str, list[int]] = {name: [] for name in p.draw_hours}
    for voice, value in hours.items():
        shard = made.shard_of(voice)
        if shard is not None and made.shards[shard].set in has:
            has[made.shards[shard].set].append(round(value * HOUR_US))
    levels = {}
    for name, own in has.items():
        wanted_us = round(p.draw_hours[name] * HOUR_US)
        check_enough(name, sum(own), wanted_us)
        levels[name] = level_of(np.array(own, np.int64), wanted_us)
    return levels


def _filters(p: SelectParams, inputs: Inputs) -> list[str]:
    """The filter options in use, with their values."""
    names = ("splits", "tiers", "languages", "min_confidence", "from_s", "until_s")
    chosen = [f"--{name.replace('_', '-')} is {getattr(p, name)}" for name in names if getattr(p, name)]
    return [*chosen, *(["--duplicates leaves the listed ones out"] if "duplicates" in inputs else [])]


def _named_voices(rule: SetRule, hours: Mapping[str, float]) -> SetRule:
    """The rule with its speaker names replaced by voices."""
    if rule.named is None:
        return rule
    return rule.model_copy(update={"named": [name if name in hours else one_name(name) for name in rule.named]})


def _check_named(rules: list[SetRule], hours: Mapping[str, float], leaders: Mapping[str, str]) -> None:
    wanted = {voice: rule.name for rule in rules for voice in rule.named or ()}
    if missing := sorted(wanted.keys() - hours.keys()):
        raise ConfigError(
            f"no utterances of the named speakers {missing}",
            where="select",
            remedy="check their names, splits, tiers, languages, min_confidence, from_s and until_s",
        )
    taken = {leaders[voice]: name for voice, name in wanted.items() if voice in leaders}
    reached = sorted(v for v, leader in leaders.items() if leader in taken and wanted.get(v) != taken[leader])
    if reached:
        name = taken[leaders[reached[0]]]
        more = f" and {len(reached) - SHOWN} more" if len(reached) > SHOWN else ""
        raise ConfigError(
            f"speakers {reached[:SHOWN]}{more} share recordings with the named speakers of the set {name!r}: "
            "another set would hold part of them",
            where="select",
            remedy=f"name them for {name!r} too, or set shared_recordings=drop",
        )


def _largest(leaders: Mapping[str, str]) -> str:
    if not leaders:
        return ""
    leader, size = max(Counter(leaders.values()).items(), key=lambda item: (item[1], item[0]))
    return f", and {size} of them, among them {leader!r}, share recordings"


def _contested(made: Layout, shared: Mapping[int, list[str]]) -> dict[int, str]:
    """Places with speakers of several sets → the set that keeps the place, the first in the order of the rules."""
    contested = {}
    for recording, voices in shared.items():
        shards = [shard for voice in voices if (shard := made.shard_of(voice)) is not None]
        if len({made.shards[shard].set for shard in shards}) > 1:
            contested[recording] = made.shards[min(shards)].set
    return contested
