"""Functions that the Ray engine runs in Ray's workers. Exceptions become values (`attempt`), so Ray does not retry."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any

from megahour.engine.base import Call, Failure, Outcome, Success, attempt, packed
from megahour.engine.time_limit import time_limit


def run_task(call: Call, limit_s: float | None, index: int, item: Any) -> bytes:
    """`call(item)` as a packed outcome."""
    task = f"task {index}"
    with time_limit(limit_s):
        return packed(attempt(call, item, task=task, item=item), task=task, item=item)


def split_task(split: Call, partitions: int, limit_s: float | None, index: int, item: Any) -> Iterator[bytes]:
    """The blocks of one split task, one object each, and finally a packed outcome: the partition of each."""
    from megahour.engine.blocks import blocks_of

    owners: list[int] = []
    with time_limit(limit_s):
        try:
            for partition, block in blocks_of(split, item, partitions):
                owners.append(partition)
                yield block
        except (Exception, SystemExit) as error:
            yield pickle.dumps(Failure.of(error, f"split task {index}", item))
            return
    yield pickle.dumps(Success(owners))


def merge_task(merge: Call, limit_s: float | None, partition: int, blocks: list[Any]) -> bytes:
    """`merge(partition, batches)`; blocks are fetched one at a time."""
    import ray

    from megahour.engine.blocks import decode

    task = f"merge task {partition}"
    with time_limit(limit_s):
        batches = (decode(ray.get(block)) for block in blocks)
        outcome = attempt(merge, partition, batches, task=task, item=partition)
    return packed(outcome, task=task, item=partition)


def combine_task(combine: Call, left: bytes, right: bytes) -> bytes:
    """Combine two packed outcomes; if one is a failure, it is the result."""
    values: list[Any] = []
    for message in (left, right):
        outcome: Outcome = pickle.loads(message)
        if isinstance(outcome, Failure):
            return message
        values.append(outcome.value)
    return packed(attempt(partial(combine, *values), task="combine", item=None), task="combine", item=None)
