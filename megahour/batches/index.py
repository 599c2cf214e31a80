"""Selects the utterances to train on, in one pass over the small columns of a features artifact.

These columns precede the features in each shard (`batches.near`) and make up a few thousandths of the artifact. Memory
holds one bit per utterance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.batches.in_order import in_order
from megahour.batches.labels import Labels
from megahour.batches.window import Shelf
from megahour.core.store import Artifact
from megahour.features.stack import stacked_frames

COLUMNS = ["key", "speaker", "frames", "text"]
THREADS, AT_A_TIME = 16, 64  # requests to an object store are slow but cheap


def small_columns(features: Artifact, sets: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """(shard number, small columns) of the shards whose tag ``set`` is in `sets`, read some shards ahead."""
    shards = (receipt.shard for receipt in features.each_receipt() if receipt.tags.get("set") in sets)

    def read(shard: int) -> tuple[int, pa.Table]:
        return shard, features.read_table(shard, ".arrow", COLUMNS)

    with in_order(read, shards, threads=THREADS, ahead=AT_A_TIME) as tables:
        yield from tables


def shelves(
    features: Artifact,
    sets: Sequence[str],
    labels: Labels,
    stack: int,
    keep: Callable[[pa.Table], NDArray[np.bool_]] | None = None,
    dropped: Counter[str] | None = None,
) -> list[Shelf]:
    """The usable rows of the shards whose tag ``set`` is in `sets`: long enough, known to `labels` and kept by `keep`.

    A row is long enough if it has a stacked frame at every offset: 2 · stack − 1 frames. `dropped` counts the others as
    ``too-short``, ``held-out``, ``no-target``, or under the reasons that `labels` count in `lacking`.
    """
    found = []
    counted: Counter[str] | None = getattr(labels, "lacking", None)
    lacking = Counter[str]() if counted is None else counted
    for shard, table in small_columns(features, sets):
        frames = table.column("frames").to_numpy().astype(np.int64)
        long = frames >= 2 * stack - 1
        before = Counter(lacking)
        known = long & labels.known(shard, table, stacked_frames(frames, stack - 1, stack))
        good = known & keep(table) if keep is not None else known
        found.append(Shelf.of(shard, good, frames))
        if dropped is not None:
            dropped["too-short"] += int((~long).sum())
            why = lacking - before
            dropped.update(why)
            dropped["no-target"] += int((long & ~known).sum()) - why.total()
            dropped["held-out"] += int((known & ~good).sum())
    return found
