"""What a process holds from one task of a model to the next: vocabulary, shard tree, sums, and scratch arrays.

Reading and allocating them again for each task took longer than the counting. Only one model is held at a time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from megahour.core.stage import Inputs
from megahour.core.store import Artifact
from megahour.lm.scale.distributed import ROUNDS, Cluster
from megahour.lm.scale.distributed_counts import Counting, Estimating

if TYPE_CHECKING:
    from megahour.lm.params import TallyParams

Known = tuple[tuple[str, str, str], ...]  # (role, URL, digest) of the artifacts that something was made from
Options = tuple[tuple[int, ...], int, int]


def cluster_of(inputs: Inputs) -> Cluster:
    """The cluster of the inputs `vocabulary`, `round1`, …"""
    return _cluster(_known(inputs, ("vocabulary", *ROUNDS)))


def counting_of(inputs: Inputs, p: TallyParams) -> Counting:
    """The counts of a cluster's shards."""
    return _counting(_known(inputs, ("vocabulary", *ROUNDS)), _options(p))


def estimating_of(inputs: Inputs, p: TallyParams) -> Estimating:
    """The estimation from the input `tally`, made with parameters `p`."""
    known = _known(inputs, ("vocabulary", *ROUNDS))
    return _estimating(known, _options(p), _known(inputs, ("tally",)))


def _known(inputs: Inputs, roles: tuple[str, ...]) -> Known:
    return tuple((role, inputs[role].url, inputs[role].manifest.digest) for role in roles if role in inputs)


def _options(p: TallyParams) -> Options:
    return tuple(p.prune), p.ranges, p.groups


@lru_cache(maxsize=1)
def _cluster(known: Known) -> Cluster:
    for later in (_counting, _estimating):  # they hold the last cluster
        later.cache_clear()
    return Cluster({role: Artifact(url) for role, url, _ in known})


@lru_cache(maxsize=1)
def _counting(known: Known, options: Options) -> Counting:
    _estimating.cache_clear()
    return Counting(_cluster(known), *options)


@lru_cache(maxsize=1)
def _estimating(known: Known, options: Options, tally: Known) -> Estimating:
    ((_, url, _),) = tally
    return Estimating(_counting(known, options), Artifact(url))
