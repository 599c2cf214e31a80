"""Plans tasks for the shards of named sets. A missing set is an error, never a silent no-op."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from megahour.core.errors import ConfigError
from megahour.core.stage import Task
from megahour.core.store import Artifact
from megahour.features.kept import check_kept
from megahour.features.params import SHIFT_S, frame_seconds

TAGGED = ".tagged.parquet"
"""Suffix of a table of TAGGED_TEXTS beside features."""


def frame_seconds_of(features: Artifact) -> float:
    """Seconds from one frame of *features* to the next; 10 ms for audio of several rates and for published cepstra."""
    rate_hz = features.summary.get("audio", {}).get("rate_hz", 0)
    return frame_seconds(rate_hz) if rate_hz else SHIFT_S


def tasks_of_sets(artifact: Artifact, sets: Sequence[str], *, where: str, beside: Artifact | None = None) -> list[Task]:
    """One task ``{"shard": i}`` for each shard whose tag `set` is in `sets`, in the order of the shards.

    beside: another artifact of the same utterances. The task's ``beside`` is its shard number there (`shard_beside`).
    where: name of the stage, for messages.

    Raises
    ------
    ConfigError: one of `sets` has no shard, the artifact holds means only, or `beside` has another number of shards.
    """
    check_kept(artifact.summary.get("keep", "frames"), False, where=artifact.url)
    check_sets([artifact], sets, where=where)
    by_set = _shards(artifact.url, artifact.manifest.digest)
    shards = sorted(shard for name in set(sets) for shard in by_set[name])
    if beside is None:
        return [Task({"shard": shard}) for shard in shards]
    return [Task({"shard": shard, "beside": shard_beside(artifact, shard, beside)}) for shard in shards]


def check_sets(artifacts: Sequence[Artifact], sets: Sequence[str], *, where: str, option: str = "sets") -> None:
    """Raises ConfigError: one of `sets`, the value of `option`, has no shard in any of the artifacts."""
    present = sorted({name for artifact in artifacts for name in names_of_sets(artifact)})
    if missing := sorted(set(sets) - set(present)):
        raise ConfigError(
            f"no shard of {' or '.join(artifact.url for artifact in artifacts)} is in sets {missing}; "
            f"{'its' if len(artifacts) == 1 else 'their'} sets are {present}",
            where=where,
            remedy=f"set `{option}` to some of them",
        )


def check_made_from(selection: Artifact, utterances: Artifact, *, where: str) -> None:
    """Raises ConfigError: `selection` says where its utterances lie in shards other than those of `utterances`.

    There one would find the sound of another utterance, or of none. A selection that `apply` made is not checked.
    """
    made_from = selection.manifest.inputs.get("utterances", "")
    if made_from not in ("", utterances.manifest.digest):
        raise ConfigError(
            f"{selection.url} was not made from {utterances.url}",
            where=where,
            remedy="give the utterances that the selection was made from",
        )


def check_stats_sets(stats_sets: Sequence[str], sets: Sequence[str], *, where: str) -> None:
    """Raises ConfigError: one of `stats_sets` is not among the `sets` that features are made of."""
    if missing := sorted(set(stats_sets) - set(sets)):
        raise ConfigError(
            f"stats_sets has {missing}, of which no features are made; the sets are {sorted(set(sets))}",
            where=where,
            remedy="set `stats_sets` to some of them, or leave it empty",
        )


def names_of_sets(artifact: Artifact) -> list[str]:
    """Names of the sets that have shards, sorted."""
    return sorted(_shards(artifact.url, artifact.manifest.digest))


def set_of(artifact: Artifact, shard: int) -> str:
    """The name of a shard's set, or "" if it has none."""
    return artifact.receipt_of(shard).tags.get("set", "")


def shard_beside(features: Artifact, shard: int, other: Artifact) -> int | None:
    """The shard of `other` with the utterances of features shard `shard`; None if `other` lacks their set.

    Stages that work shard by shard keep the order of shards within each set, so the n-th shards of a set correspond.

    Raises
    ------
    ConfigError: `other` has another number of shards of the set.
    """
    name, position = _places(features.url, features.manifest.digest)[shard]
    mine, theirs = (_shards(each.url, each.manifest.digest).get(name, []) for each in (features, other))
    if theirs and len(theirs) != len(mine):
        raise ConfigError(
            f"set {name} has {len(theirs)} shards, {len(mine)} in the features",
            where=other.url,
            remedy="give an artifact made from these features, or the one they were made from",
        )
    return theirs[position] if theirs else None


# Cached, so that an artifact's receipts are read once for all of its shards. The digest identifies the artifact.


@lru_cache(maxsize=8)
def _shards(url: str, digest: str) -> dict[str, list[int]]:
    """The shards of each set, in order."""
    shards: dict[str, list[int]] = {}
    for receipt in Artifact(url).each_receipt():
        shards.setdefault(receipt.tags.get("set", ""), []).append(receipt.shard)
    return shards


@lru_cache(maxsize=8)
def _places(url: str, digest: str) -> dict[int, tuple[str, int]]:
    """Set of each shard, and its position in the set."""
    return {shard: (name, at) for name, own in _shards(url, digest).items() for at, shard in enumerate(own)}
