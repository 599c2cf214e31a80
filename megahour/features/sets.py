"""Tasks for the shards of some sets: asking for a missing set is an error, never a silent no-op."""

from __future__ import annotations

from collections.abc import Sequence

from megahour.core.errors import ConfigError
from megahour.core.stage import Task
from megahour.core.store import Artifact


def tasks_of_sets(artifact: Artifact, sets: Sequence[str], *, where: str) -> list[Task]:
    """One task ``{"shard": i}`` for each shard whose tag `set` is in `sets`, in the order of the shards.

    Raises
    ------
    ConfigError: one of `sets` has no shard; `where` is the stage that wants it.
    """
    receipts = artifact.receipts()
    present = sorted({receipt.tags.get("set", "") for receipt in receipts})
    if missing := sorted(set(sets) - set(present)):
        raise ConfigError(
            f"no shard of {artifact.url} is in sets {missing}; there are {present}",
            where=where,
            remedy="set `sets` to some of them",
        )
    return [Task({"shard": receipt.shard}) for receipt in receipts if receipt.tags.get("set") in sets]
