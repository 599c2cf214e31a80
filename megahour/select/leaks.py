"""Finds voices and recordings that two selections share; `select` separates only the sets within one."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from megahour.core.store import Artifact
from megahour.select.voices import WHO, voices


def shared_voices(
    tested: Artifact, tests: Collection[str], other: Artifact, sets: Collection[str], *, recordings_only: bool = False
) -> list[str]:
    """Voices in the `sets` of `other` that are also in the sets `tests` of `tested`, or share a recording with them.

    recordings_only: allow the same voices in other recordings.

    Both are *selection* artifacts. Only the voices of `tests` are held in memory; `other` is read shard by shard.
    Empty `sets` means all sets.
    """
    known: set[str] = set()
    heard: set[int] = set()
    for names, places in _shards(tested, tests, recordings_only):
        known.update(() if recordings_only else names)
        heard.update(places.ravel().tolist())
    shared: set[str] = set()
    at = np.array(sorted(heard), np.int64)
    for names, places in _shards(other, sets, recordings_only):
        shared.update(name for name in set(names) if name in known)
        shared.update(names[np.isin(places, at).any(axis=1)])
    return sorted(shared)


def _shards(
    selection: Artifact, sets: Collection[str], recordings_only: bool
) -> Iterator[tuple[NDArray[np.object_], NDArray[np.int64]]]:
    for receipt in selection.receipts():
        if not sets or receipt.tags.get("set") in sets:
            table = selection.read_table(receipt.shard, columns=list(WHO))
            names, places = voices(table)
            yield names, places[:, :2] if recordings_only else places  # the third place is the owner's
