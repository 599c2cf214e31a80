"""Functions that the Spark engine runs in Spark's Python workers, on a partition's records (and its number).

Each either ends its task by posting to an accumulator (`spark_session.Inbox`), yielding nothing, or yields records for
a shuffle. Blocks are cut again into chunks of `CHUNK_BYTES`: Spark's Python shuffle counts records, not bytes, before
it checks its memory (`RDD.partitionBy`, up to 1,000 of them; `ExternalSorter.sorted`, from 100 up), so only small
records keep its buffers far below its 2 GB limit.
"""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Iterator
from functools import partial
from itertools import chain, groupby
from typing import Any

from megahour.engine.base import Call, Failure, Outcome, Success, Tree, attempt, packed
from megahour.engine.time_limit import time_limit

CHUNK_BYTES = 128 << 10
FAN_IN = 16  # results that one task combines in `reduce`; a power of two keeps the shape of `Tree`
SPLIT_FAILED = -1  # task number of a failure's record: sorts before all data of its partition

Key = tuple[int, int, int, int]  # partition, task, position of the block, chunk of the block


def map_partition(call: Call, limit_s: float | None, posts: Any, records: Iterator[tuple[int, Any]]) -> Iterator[None]:
    _settle()
    for index, item in records:
        task = f"task {index}"
        with time_limit(limit_s):
            outcome = attempt(call, item, task=task, item=item)
        posts.add([(index, packed(outcome, task=task, item=item))])
    return iter(())


def split_partition(
    split: Call, partitions: int, limit_s: float | None, posts: Any, records: Iterator[tuple[int, Any]]
) -> Iterator[tuple[Key, bytes]]:
    from megahour.engine.blocks import blocks_of

    _settle()
    for index, item in records:
        with time_limit(limit_s):
            try:
                for position, (partition, block) in enumerate(blocks_of(split, item, partitions)):
                    for chunk, offset in enumerate(range(0, len(block), CHUNK_BYTES)):
                        yield (partition, index, position, chunk), block[offset : offset + CHUNK_BYTES]
            except (Exception, SystemExit) as error:
                # Spark would retry after an exception; a silent end would let merges commit partial data.
                failure = pickle.dumps(Failure.of(error, f"split task {index}", item))
                posts.add([(index, failure)])
                for partition in range(partitions):
                    yield (partition, SPLIT_FAILED, index, 0), failure


def merge_partition(
    merge: Call, limit_s: float | None, posts: Any, partition: int, records: Iterator[tuple[Key, bytes]]
) -> Iterator[None]:
    _settle()
    task = f"merge task {partition}"
    try:
        batches = _batches(records)
    except _SplitFailed as failed:
        posts.add([(partition, failed.message)])
        return iter(())
    with time_limit(limit_s):
        outcome = attempt(merge, partition, batches, task=task, item=partition)
    posts.add([(partition, packed(outcome, task=task, item=partition))])
    return iter(())


class _SplitFailed(Exception):
    def __init__(self, message: bytes) -> None:
        self.message = message


def _batches(records: Iterator[tuple[Key, bytes]]) -> Iterator[Any]:
    """The batches of sorted chunks, one in memory at a time. Raises _SplitFailed if the first is a failure."""
    from megahour.engine.blocks import decode

    first = next(records, None)
    if first is None:
        return iter(())
    (_, task, _, _), message = first
    if task == SPLIT_FAILED:
        raise _SplitFailed(message)
    blocks = groupby(chain([first], records), key=lambda record: record[0][1:3])
    return (decode(b"".join(chunk for _, chunk in chunks)) for _, chunks in blocks)


def leaf(
    call: Call, limit_s: float | None, posts: Any, records: Iterator[tuple[int, Any]]
) -> Iterator[tuple[int, Outcome]]:
    _settle()
    for index, item in records:
        with time_limit(limit_s):
            outcome = attempt(call, item, task=f"task {index}", item=item)
        if isinstance(outcome, Failure):
            posts.add([(index, pickle.dumps(outcome))])
        yield index, outcome


def combine_block(combine: Call, block: int, records: Iterator[tuple[int, Outcome]]) -> Iterator[tuple[int, Outcome]]:
    tree = Tree(partial(_combine_outcomes, combine))
    for _, outcome in records:
        tree.add(outcome)
    yield block, tree.result()


def _combine_outcomes(combine: Call, left: Outcome, right: Outcome) -> Outcome:
    for outcome in (left, right):
        if isinstance(outcome, Failure):
            return outcome
    assert isinstance(left, Success)
    assert isinstance(right, Success)
    return attempt(combine, left.value, right.value, task="combine", item=None)


def post_root(posts: Any, records: Iterator[tuple[int, Outcome]]) -> Iterator[None]:
    for index, outcome in records:
        posts.add([(index, packed(outcome, task="reduce", item=index))])
    return iter(())


def _settle() -> None:
    """Exclude the modules that this worker has imported from garbage collection.

    Spark runs a full collection after every task, which numba alone makes take a third of a second.
    """
    if _settled[0] != len(sys.modules):
        gc.collect()
        gc.freeze()
        _settled[0] = len(sys.modules)


_settled = [0]  # number of modules loaded at the last freeze


def partition_of(key: Key) -> int:
    return key[0]


def block_of(index: int) -> int:
    return index // FAN_IN
