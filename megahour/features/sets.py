"""Tasks for the shards of some sets: asking for a missing set is an error, never a silent no-op."""

from __future__ import annotations

from collections.abc import Sequence

from megahour.core.errors import ConfigError
from megahour.core.stage import Task
from megahour.core.store import Artifact


def need_frames(artifact: Artifact, *, where: str) -> None:
    """Raises ConfigError for features that were made with ``keep: means``."""
    if artifact.summary.get("keep") == "means":
        raise ConfigError(
            f"{artifact.url} holds means, not features",
            where=where,
            remedy="make features with `keep: both`; train can do with means and its input `audio`",
        )


def tasks_of_sets(artifact: Artifact, sets: Sequence[str], *, where: str) -> list[Task]:
    """One task ``{"shard": i}`` for each shard whose tag `set` is in `sets`, in the order of the shards.

    Raises
    ------
    ConfigError: one of `sets` has no shard, or it holds no frames; `where` is the stage that wants it.
    """
    need_frames(artifact, where=where)
    receipts = artifact.receipts()
    present = sorted({receipt.tags.get("set", "") for receipt in receipts})
    if missing := sorted(set(sets) - set(present)):
        raise ConfigError(
            f"no shard of {artifact.url} is in sets {missing}; there are {present}",
            where=where,
            remedy="set `sets` to some of them",
        )
    return [Task({"shard": receipt.shard}) for receipt in receipts if receipt.tags.get("set") in sets]


def set_of(artifact: Artifact, shard: int) -> str:
    """The set of a shard, "" without one."""
    return artifact.receipt_of(shard).tags.get("set", "")


def shard_beside(features: Artifact, shard: int, other: Artifact) -> int | None:
    """The shard of `other` with the utterances of features shard `shard`; None where it has none of their set.

    Stages that go shard by shard through a selection or through features keep the order within each set.

    Raises
    ------
    ConfigError: the set has another number of shards there.
    """
    tags = {receipt.shard: receipt.tags.get("set", "") for receipt in features.receipts()}
    name = tags[shard]
    mine = [number for number, tag in sorted(tags.items()) if tag == name]
    theirs = [receipt.shard for receipt in other.receipts() if receipt.tags.get("set", "") == name]
    if theirs and len(theirs) != len(mine):
        raise ConfigError(
            f"set {name} has {len(theirs)} shards, {len(mine)} in the features",
            where=other.url,
            remedy="give what was made of these features, or what they were made of",
        )
    return theirs[mine.index(shard)] if theirs else None
