"""Shuffles features with a teacher's targets into new shards of about equal hours (Parthasarathi et al., IV-B.4).

In a features shard, the utterances of a speaker are adjacent. Shards are put in a seeded order and divided into small
groups; the utterances of a group are shuffled and dealt to its new shards. A task makes one new shard and reads only
the shards of its group, so the work grows linearly with the number of shards and needs no exchange of the whole corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.batches.cache import Cache
from megahour.batches.near import Near
from megahour.core.errors import ConfigError, StoreError
from megahour.core.receipts import Receipt
from megahour.core.records import key_of
from megahour.core.stage import Context, Task
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.features.sets import frame_seconds_of, tasks_of_sets
from megahour.teach.params import RepartitionParams

FRAMES_AN_HOUR = 360_000
NONE = -1  # number of the targets shard for sets without targets
Index = NDArray[np.int64]


def plan_parts(p: RepartitionParams, features: Artifact, targets: Artifact) -> list[Task]:
    """One task per new shard, set by set, with the shards of its group, their targets shards, and the part it takes.

    Raises
    ------
    ConfigError: the targets were made from other features, or one of the sets is missing.
    """
    tasks_of_sets(features, p.sets, where="repartition")
    if targets.manifest.inputs.get("features") != features.manifest.digest:
        raise ConfigError(
            "the targets were made from other features",
            where=targets.url,
            remedy="give the features that the targets were made from",
        )
    beside = {int(r.tags["features_shard"]): r.shard for r in targets.each_receipt()}
    by_set: dict[str, list[Receipt]] = {name: [] for name in p.sets}
    for receipt in features.each_receipt():
        if (name := receipt.tags.get("set", "")) in by_set:
            by_set[name].append(receipt)
    tasks = []
    for name, receipts in by_set.items():
        receipts.sort(key=lambda receipt: key_of("repartition", p.seed, receipt.shard))
        for group in _groups(receipts, p.mixed_shards):
            shards = [[receipt.shard, beside.get(receipt.shard, NONE)] for receipt in group]
            parts = _parts(group, p.shard_hours)
            tasks += [Task({"set": name, "shards": shards, "part": i, "parts": parts}) for i in range(parts)]
    return tasks


def _groups(receipts: Sequence[Receipt], most: int) -> Iterator[Sequence[Receipt]]:
    """Split into runs of at most `most` receipts and nearly equal length."""
    count = -(-len(receipts) // most)
    for i in range(count):
        yield receipts[len(receipts) * i // count : len(receipts) * (i + 1) // count]


def _parts(group: Sequence[Receipt], shard_hours: float) -> int:
    hours = sum(int(receipt.stats["frames"]) for receipt in group) / FRAMES_AN_HOUR
    return max(1, round(hours / shard_hours))


def dealt(keys: Index, frames: Index, parts: int, seed: int) -> list[Index]:
    """The rows of each part in their new order. Parts have equal numbers of frames, to within an utterance.

    The result depends on which keys and frames there are, not on the order of the rows.
    """
    by_key = np.argsort(keys, kind="stable")
    order = by_key[np.random.Generator(np.random.PCG64(seed)).permutation(len(keys))]
    ends = np.cumsum(frames[order])
    middles = 2 * ends - frames[order]  # doubled to stay integers
    part = np.minimum(parts - 1, middles * parts // max(1, 2 * int(frames.sum())))
    return [order[part == number] for number in range(parts)]


def write_part(
    p: RepartitionParams, features: Artifact, targets: Artifact, task: Task, out: ShardWriter, ctx: Context
) -> None:
    """Write a new shard: `.arrow` as in *features* and, if the set has targets, `.targets.arrow` as in *targets*."""
    cache = Cache(ctx.work / "cache", int(p.cache_gb * 1e9))  # the tasks of a group share it
    near, beside = Near(features.url, cache), Near(targets.url, cache)
    sources = [_Source(near, beside, *pair) for pair in task["shards"]]
    keys, frames = (np.concatenate([getattr(source, name) for source in sources]) for name in ("keys", "frames"))
    seed = key_of("repartition", p.seed, *(shard for shard, _ in task["shards"]))
    own = dealt(keys, frames, task["parts"], seed)[task["part"]]
    first = np.cumsum([0, *(len(source.keys) for source in sources)])
    source_of = np.searchsorted(first, own, side="right") - 1
    rows = [own[source_of == i] - first[i] for i in range(len(sources))]
    order = np.argsort(np.argsort(source_of, kind="stable"))  # from rows grouped by source to the order of `own`
    out.table(_joined([s.features_of(r) for s, r in zip(sources, rows, strict=True)], order), ".arrow")
    if sources[0].has_targets:
        found = [source.targets_of(r) for source, r in zip(sources, rows, strict=True)]
        out.table(_joined(found, _repeated(order, sources[0].offsets)), ".targets.arrow")
    without = sum(source.without for source in sources) if task["part"] == 0 else 0  # counted once per group
    out.drop("no-target", without)
    out.came_in(len(own) + without)
    out.kept(len(own))
    out.stat("frames", int(frames[own].sum()))
    out.stat("audio_s", round(int(frames[own].sum()) * frame_seconds_of(features), 2))
    out.tags["set"] = task["set"]


class _Source:
    """A features shard with its targets, and the `keys` and `frames` of its utterances.

    If the set has targets, utterances without any are left out; `without` counts them.
    """

    def __init__(self, features: Artifact, targets: Artifact, shard: int, targets_shard: int) -> None:
        self._features, self._targets, self._shard, self._targets_shard = features, targets, shard, targets_shard
        self.has_targets = targets_shard != NONE
        self.offsets = len(targets.summary["offsets"])
        small = features.read_table(shard, ".arrow", columns=["key", "frames"])
        keys, frames = (small.column(name).to_numpy().astype(np.int64) for name in ("key", "frames"))
        self._rows = np.arange(len(keys))
        if self.has_targets:
            # An utterance has adjacent rows, one per offset. Utterances are in the order of the features.
            known = targets.read_table(targets_shard, ".arrow", columns=["key"]).column("key").to_numpy()
            self._rows = np.flatnonzero(np.isin(keys, known))
            if not np.array_equal(np.repeat(keys[self._rows], self.offsets), known):
                raise StoreError(
                    f"shard {targets_shard} does not match shard {shard} of the features",
                    where=targets.url,
                    remedy=f"megahour verify {targets.url}, or make the targets again",
                )
        self.without = len(keys) - len(self._rows)
        self.keys, self.frames = keys[self._rows], frames[self._rows]

    def features_of(self, rows: Index) -> pa.Table:
        """The features of these rows of `keys`, in the given order."""
        own = self._rows[rows]
        return self._features.read_rows(self._shard, ".arrow", np.sort(own)).take(pa.array(own))

    def targets_of(self, rows: Index) -> pa.Table:
        return self._targets.read_table(self._targets_shard, ".arrow").take(pa.array(_repeated(rows, self.offsets)))


def _repeated(rows: Index, times: int) -> Index:
    """The rows of a table in which each of these rows stands for `times` adjacent ones."""
    return (rows[:, None] * times + np.arange(times)).reshape(-1)


def _joined(tables: Sequence[pa.Table], order: Index) -> pa.Table:
    """Join tables and reorder their rows, in one record batch as readers of single rows need (`batches.near`)."""
    return pa.concat_tables(tables).combine_chunks().take(pa.array(order)).combine_chunks()
