"""The work of the stages in `distributed_stage`: the steps of `bounded`, on shards in a store and by exchanges.

    words        text → words by hash, with their first positions and counts       exchange
    vocabulary   words in order of appearance: the unigrams, read by every task    one task
    shards       text → rows by history: round 1 of `ShardTree`                    exchange
    reshard      rows left over by round r → their children: round r + 1           exchange
    tally        shards → counts, names by target, n-grams of shared histories     exchange
    estimate     shards → lines                                                    map
    arpa         lines → one file                                                  one task

Words, positions and shards are numbered as in `bounded`, so the file has the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from megahour.core.stage import Inputs
from megahour.lm.estimate.history import buckets
from megahour.lm.estimate.partitions import BUCKET
from megahour.lm.scale.row_files import CHUNK, LEAD
from megahour.lm.scale.shard_kernels import appearances, scatter_rows, scatter_windows
from megahour.lm.scale.shard_parts import Part, parts_of_rows
from megahour.lm.scale.shards import HistoryShard, ShardTree, Split, Target, slots_of
from megahour.lm.text.arrays import Bytes, Int32, Int64, spellings
from megahour.lm.text.pieces import Piece, tokens_of
from megahour.lm.text.tokenise import BOUNDARY, UNKNOWN, WordTable

if TYPE_CHECKING:
    from megahour.core.stage import Batches
    from megahour.core.store import Artifact
    from megahour.core.writer import ShardWriter


MOST_SHARDS = 1 << 14  # in round 1: each is a partition of an exchange, and reads names from all others
ROUNDS = tuple(f"round{number}" for number in range(1, 7))


def first_tree(counts: Int64, total: int, order: int, limit: int) -> ShardTree:
    """Round 1 of a corpus with counts (V,) of the words that end a history.

    Shards have at most `limit` positions, or more if there would be over MOST_SHARDS (see `ShardTree.limit`).
    """
    smallest = max(BUCKET, total // MOST_SHARDS)
    return ShardTree(counts, buckets(counts, smallest), max(limit, smallest), order)


class Cluster:
    """The corpus of a distributed estimation: its vocabulary and its shards by round, read from artifacts."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        stats = inputs["vocabulary"].receipts()[0].stats
        self.order, self.offsets = int(stats["order"]), list(stats["offsets"])
        self.words = inputs["vocabulary"].read_table(0, ".arrow")
        self.counts: Int64 = self.words["count"].to_numpy()
        self.tree = first_tree(self.counts, self.offsets[-1], self.order, int(stats["shard_rows"]))
        self.slots: list[list[Target]] = [self.tree.root]
        for name in ROUNDS:
            left = self.tree.left_over()
            if name not in inputs or not left:
                break
            self.grow(left, [self.histogram(name, ~split.number) for split in left])

    def grow(self, left: list[Split], result: list[tuple[Int32, Int64]]) -> None:
        """Add a round, from the words before each left-over history and their counts."""
        self.tree.next_round()
        for split, (words, counts) in zip(left, result, strict=True):
            self.tree.grow(split, words, counts)
        self.slots.append([child for split in left for child in split.children])

    @cached_property
    def spelling(self) -> tuple[Bytes, Int64]:
        """arena, starts (V + 1,) of the words."""
        return spellings(self.words["word"])

    @cached_property
    def table(self) -> WordTable:
        """The vocabulary; `tokenise.encode` needs a copy, to which it adds the words that were cut."""
        return WordTable.spelled(*self.spelling)

    def histogram(self, round_name: str, target: Target) -> tuple[Int32, Int64]:
        """Words before a left-over history, in order of appearance, and their counts (V,)."""
        table = self.inputs[round_name].read_table(self.slots[-1].index(target), ".next.arrow")
        words, counts = table["word"].to_numpy(), np.zeros(self.tree.vocabulary, np.int64)
        counts[words] = table["count"].to_numpy()
        return words, counts

    def parts(self, shard: HistoryShard) -> Iterator[Part]:
        """See `shard_parts.Rows`."""
        return parts_of_rows(self.tree, shard, self.rows(shard.number))

    def rows(self, number: int) -> Int32:
        """Rows (m, order + 2) of a shard."""
        shard = self.tree.shards[number]
        target: Target = number
        begin = 0
        if shard.leaf:
            split = self.tree.splits[shard.parent]
            target, begin = ~split.number, shard.begin - split.begin
        slot = self.slots[shard.round - 1].index(target)
        return read_rows(self.inputs[ROUNDS[shard.round - 1]], slot, self.order + 2, begin, shard.rows)


def read_rows(rounds: Artifact, slot: int, width: int, begin: int, rows: int) -> Int32:
    """Rows begin .. begin + rows - 1 of a slot's file."""
    with rounds.open(slot, ".rows") as file:
        file.seek(4 * width * begin)
        data = file.read(4 * width * rows)
    return np.frombuffer(data, np.int32).reshape(rows, width)


def split_rows(
    cluster: Cluster, piece: Piece, number: int, inputs: Inputs, skip: bool
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows of a piece of text by their slots in round 1."""
    slots = cluster.tree.root
    slot_of = slots_of(slots, cluster.tree.shard_of)
    base, before = cluster.offsets[number], np.full(LEAD, BOUNDARY, np.int32)
    out = np.empty((CHUNK, cluster.order + 2), np.int32)
    for tokens in tokens_of(piece, inputs, cluster.table.copy(), skip=skip):
        tokens[tokens >= len(cluster.counts)] = UNKNOWN
        for begin in range(0, len(tokens), CHUNK):
            part = np.concatenate([before, tokens[begin : begin + CHUNK]])
            counts = np.bincount(slot_of[part[LEAD - 1 : -1]], minlength=len(slots))
            ends = np.cumsum(counts)
            scatter_windows(part, base - LEAD, LEAD, len(part), cluster.order, slot_of, ends - counts, out)
            yield from row_batches(out, ends, counts)
            base, before = base + len(part) - LEAD, part[-LEAD:]


def split_left(cluster: Cluster, slot: int, begin: int, rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows of a left-over history of the round before the last, by their slots in the last round."""
    slots = cluster.slots[-1]
    split = cluster.tree.splits[~cluster.slots[-2][slot]]
    assert split.child_of is not None
    slot_of, column = slots_of(slots, split.child_of), split.floor + 1
    out = np.empty((CHUNK, cluster.order + 2), np.int32)
    for at in range(begin, begin + rows, CHUNK):
        source = cluster.inputs[ROUNDS[len(cluster.slots) - 2]]
        part = read_rows(source, slot, cluster.order + 2, at, min(CHUNK, begin + rows - at))
        counts = np.bincount(slot_of[part[:, column]], minlength=len(slots))
        ends = np.cumsum(counts)
        scatter_rows(part, column, slot_of, ends - counts, out)
        yield from row_batches(out, ends, counts)


def merge_rows(cluster: Cluster, slot: int, batches: Batches, out: ShardWriter) -> None:
    """Write the rows of a slot; for a left-over history also the words before it with their counts."""
    target = cluster.slots[-1][slot]
    left = target < 0 and not cluster.tree.is_leaf(cluster.tree.splits[~target])
    size = cluster.tree.vocabulary if left else 0
    counts, words, known, total = np.zeros(size, np.int64), np.empty(size, np.int32), 0, 0
    with out.open(".rows") as file:
        for batch in batches:
            rows = batch.column(0).flatten().to_numpy().reshape(-1, cluster.order + 2)
            total += file.write(rows.data)
            if left:
                known = appearances(rows, cluster.tree.splits[~target].floor + 1, counts, words, known)
    out.stats.update(rows=total // (4 * (cluster.order + 2)), left=left, children=0)
    out.came_in(out.stats["rows"])
    out.kept(out.stats["rows"])
    if left:
        out.stats["children"] = len(cluster.tree.divided(words[:known], counts))
        out.table(pa.table({"word": words[:known], "count": counts[words[:known]]}), ".next.arrow")


def row_batches(rows: Int32, ends: Int64, counts: Int64) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(slot, batch) of rows, which are in order of their slots."""
    width = rows.shape[1]
    for slot in np.flatnonzero(counts).tolist():
        own = rows[ends[slot] - counts[slot] : ends[slot]]
        values = pa.array(own.reshape(-1))
        yield slot, pa.record_batch([pa.FixedSizeListArray.from_arrays(values, width)], names=["row"])
