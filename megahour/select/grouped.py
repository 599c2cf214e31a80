"""Exchanges of many shards with many partitions, by way of groups of partitions.

If each of 20,000 shards sent rows directly to 20,000 partitions, each batch would hold a few rows and cost more to pack
than to read. Instead, a stage first sends rows to some √P groups of partitions, each of which is a file, and each group
then sends its rows to its own partitions: S tasks and P partitions exchange O(S + P) files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet

from megahour.core.stage import Batches
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter

TOGETHER_BYTES = 32 << 20  # size of the tables that are sent, or written to a group's file


def group_size(partitions: int) -> int:
    """The number of partitions in a group, about the same as the number of groups."""
    return max(1, math.isqrt(partitions))


def groups(partitions: int) -> int:
    """The number of groups."""
    return -(-partitions // group_size(partitions))


def merge_group(batches: Batches, out: ShardWriter, schema: pa.Schema) -> None:
    """Write the rows of a group in the order of arrival, `TOGETHER_BYTES` at a time."""
    with pyarrow.parquet.ParquetWriter(out.path(".parquet"), schema, compression="zstd") as writer:
        for table in together(pa.Table.from_batches([batch], schema) for batch in batches):
            out.kept_all(table.num_rows)
            writer.write_table(table)


def parts_of(artifact: Artifact, shard: int) -> Iterator[pa.Table]:
    """The parts of a group's file, as they were written."""
    with artifact.open(shard, ".parquet") as file:
        source = pyarrow.parquet.ParquetFile(file)
        for part in range(source.num_row_groups):
            yield source.read_row_group(part)


def together(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Merge tables into tables of about `TOGETHER_BYTES`, with one chunk each."""
    waiting: list[pa.Table] = []
    size = 0
    for table in tables:
        waiting.append(table)
        size += table.nbytes
        if size >= TOGETHER_BYTES:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()
