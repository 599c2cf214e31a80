"""Samples hours of a set uniformly over time: an utterance is drawn if its hash is at most the limit of its period.

Each period gives equal hours, or all it has if that is less. Within a period all utterances are equally likely, so
speakers are drawn in proportion to their speech. The paper (Parthasarathi et al., IV-B.1) draws slightly more than
requested, by the mean length of an utterance. Here two passes over the metadata find the limits exactly: the first sums
time by the leading bits of the hash, the second reads the utterances of the few buckets that can contain each limit.
Memory holds `BUCKETS` sums per period and about one in `BUCKETS` utterances. Nothing depends on the sharding.

To draw evenly over speakers, each speaker gives the time `level`, or all of it if that is less. The level depends only
on the hours per speaker. Since one shard holds all of a speaker, it chooses the utterances (`taken_of_speakers`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.core.errors import ConfigError
from megahour.core.records import key_of
from megahour.select.fingerprints import scattered
from megahour.select.voices import HOUR_US, times_us

BUCKETS = 1024
TO_BUCKET = 63 - 10  # a bucket is the first 10 of the 63 bits of a hash
MOST_PERIODS = 10_000  # their sums take 80 MB
Ints = NDArray[np.int64]
Place = tuple[str, int]  # (set, period)


class UsableRows(NamedTuple):
    """Usable utterances of a set in one shard; each array is (n,)."""

    set: str
    hash: Ints
    period: Ints
    time_us: Ints


def rows_of(name: str, table: pa.Table, seed: int, period_s: int) -> UsableRows:
    """`UsableRows` of a table with the columns key, created_s, samples and rate_hz."""
    salt = np.uint64(key_of("draw", seed))
    hashes = scattered(table["key"].to_numpy().astype(np.uint64) ^ salt) >> np.uint64(1)
    created_s = table["created_s"].to_numpy()
    period = created_s // period_s if period_s else np.zeros_like(created_s)
    return UsableRows(name, hashes.astype(np.int64), period, times_us(table).to_numpy())


def taken(rows: UsableRows, limits: Mapping[Place, int]) -> NDArray[np.bool_]:
    """(n,) which rows are drawn."""
    periods, inverse = np.unique(rows.period, return_inverse=True)
    own = np.array([limits.get((rows.set, period), -1) for period in periods.tolist()], np.int64)
    return np.asarray(rows.hash <= own[inverse], np.bool_)


def level_of(has_us: Ints, wanted_us: int) -> int:
    """The time that each of n speakers gives, or all of it if less, for a total of `wanted_us` up to n µs short.

    `wanted_us` is at most the sum of `has_us`.
    """
    rising = np.sort(has_us)
    left = wanted_us - np.concatenate([[0], np.cumsum(rising)[:-1]])  # of longer speakers, once shorter ones gave all
    many = np.arange(len(rising), 0, -1)
    at = int(np.argmax(rising * many >= left))
    return int(left[at] // many[at])


def taken_of_speakers(
    rows: UsableRows, names: NDArray[np.object_], level_us: int, carried: int = 0
) -> NDArray[np.bool_]:
    """(n,) which utterances are drawn: `level_us` per speaker, equally over periods. All of each speaker must be there.

    Speakers and periods with less give all they have. The total is exact to half an utterance, because each
    period makes up for the shortfall of the one before. carried: the shortfall before the first, see `first_carry`.
    """
    drawn = np.zeros(len(names), np.bool_)
    order = np.lexsort((rows.hash, rows.period, names.astype(str)))
    for own in _runs(order, names[order]):
        quota = min(level_us, int(rows.time_us[own].sum()))
        periods = list(_runs(own, rows.period[own]))
        quotas = _filled({i: int(rows.time_us[each].sum()) for i, each in enumerate(periods)}, quota)
        for i, each in enumerate(periods):
            ends = np.cumsum(rows.time_us[each])
            count = _nearest(ends, rows.time_us[each], quotas[i] + carried)
            drawn[each[:count]] = True
            carried += quotas[i] - (int(ends[count - 1]) if count else 0)
    return drawn


def first_carry(rows: UsableRows, shard_hash: int, seed: int) -> int:
    """A random shortfall of up to half a mean utterance, in µs, with which one of several shards begins.

    Shards do not know each other's shortfalls. Without it, shards of similar utterances would all round the same way,
    and a set could be a tenth too long; with it, the total of many shards is right on average.
    """
    mean = int(rows.time_us.sum()) // max(1, len(rows.time_us))
    return mean * (key_of("carry", seed, shard_hash) >> 31) // (1 << 32) - mean // 2


def _runs(order: Ints, values: NDArray[Any]) -> list[Ints]:
    """`order`, split where the corresponding values (n,) change."""
    return np.split(order, np.flatnonzero(values[1:] != values[:-1]) + 1) if len(order) else []


def _nearest(ends: Ints, times: Ints, quota_us: int) -> int:
    """How many of the first utterances, with cumulative times `ends`, come nearest to the quota."""
    return int(np.searchsorted(2 * ends - times, 2 * quota_us, "right"))  # compares middles, doubled to stay integers


def limits_of(hours: Mapping[str, float], passes: Callable[[], Iterable[UsableRows]]) -> dict[Place, int]:
    """The largest hash drawn in each period of each set. `passes` starts a pass over the usable utterances of the sets.

    A set's hours are exact to half an utterance, and those of each period to one.

    Raises
    ------
    ConfigError: a set has fewer hours than requested, or more than `MOST_PERIODS` periods.
    """
    sums: dict[Place, Ints] = defaultdict(lambda: np.zeros(BUCKETS, np.int64))
    longest_us = 0
    for rows in passes():
        longest_us = max(longest_us, int(rows.time_us.max(initial=0)))
        for period in np.unique(rows.period).tolist():
            own = rows.period == period
            np.add.at(sums[rows.set, period], rows.hash[own] >> TO_BUCKET, rows.time_us[own])
        if len(sums) > MOST_PERIODS:
            what = f"there are more than {MOST_PERIODS:,} periods in the sets that are drawn"
            raise ConfigError(what, where="select", remedy="raise period_s, or set from_s and until_s")
    quotas = {name: _quotas(name, sums, round(wanted * HOUR_US)) for name, wanted in hours.items()}
    open_ = {
        (name, period): _Edge.at(sums[name, period], quota, longest_us)
        for name, own in quotas.items()
        for period, quota in own.items()
    }
    for rows in passes():
        for period in np.unique(rows.period).tolist():
            own = rows.period == period
            open_[rows.set, period].add(rows.hash[own], rows.time_us[own])
    limits: dict[Place, int] = {}
    for name, own_quotas in quotas.items():
        carried = 0  # shortfall of earlier periods: less than half an utterance
        for period in sorted(own_quotas):
            limits[name, period], got = open_[name, period].limit(own_quotas[period] + carried)
            carried += own_quotas[period] - got
    return limits


@dataclass
class _Edge:
    """The utterances of a place near its quota: those with hashes in the buckets `first` to `last`."""

    before_us: int  # time in earlier buckets
    first: int
    last: int
    hashes: list[Ints] = field(default_factory=list)
    times: list[Ints] = field(default_factory=list)

    @staticmethod
    def at(sums: Ints, quota_us: int, longest_us: int) -> _Edge:
        """The edge of a quota, wide enough even if the quota is off by half an utterance."""
        ends = np.cumsum(sums)
        first, last = (int(np.searchsorted(ends, quota_us + d, "right")) for d in (-longest_us, longest_us))
        return _Edge(int(ends[first - 1]) if first else 0, first, last)

    def add(self, hashes: Ints, times: Ints) -> None:
        bucket = hashes >> TO_BUCKET
        own = (bucket >= self.first) & (bucket <= self.last)
        self.hashes.append(hashes[own])
        self.times.append(times[own])

    def limit(self, quota_us: int) -> tuple[int, int]:
        """The hash up to which the sum of times is nearest to the quota, and that sum."""
        hashes, times = np.concatenate(self.hashes), np.concatenate(self.times)
        order = np.argsort(hashes, kind="stable")
        ends = self.before_us + np.cumsum(times[order])
        count = _nearest(ends, times[order], quota_us)
        if not count:
            return (self.first << TO_BUCKET) - 1, self.before_us
        return int(hashes[order[count - 1]]), int(ends[count - 1])


def _quotas(name: str, sums: Mapping[Place, Ints], wanted_us: int) -> dict[int, int]:
    """The time to draw from each period, in µs: equal, or all of a period that has less."""
    has = {period: int(each.sum()) for (set_, period), each in sums.items() if set_ == name}
    check_enough(name, sum(has.values()), wanted_us)
    return _filled(has, wanted_us)


def check_enough(name: str, has_us: int, wanted_us: int) -> None:
    """Raises ConfigError if a set has fewer hours than requested."""
    if has_us < wanted_us:
        raise ConfigError(
            f"{wanted_us / HOUR_US:,.2f} hours are to be drawn of the set {name!r}, which has {has_us / HOUR_US:,.2f}",
            where="select",
            remedy=f"draw fewer, or leave {name} out of draw_hours to take all",
        )


def _filled(has: Mapping[int, int], wanted_us: int) -> dict[int, int]:
    """Divide `wanted_us` equally, but take all from a period that has less."""
    quotas, left = {}, wanted_us
    for done, (period, us) in enumerate(sorted(has.items(), key=lambda item: (item[1], item[0]))):
        quotas[period] = min(us, left // (len(has) - done))
        left -= quotas[period]
    return quotas
