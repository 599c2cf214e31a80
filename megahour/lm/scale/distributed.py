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
from contextlib import closing
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa

from megahour.core.errors import StageError
from megahour.core.stage import Artifact, Batches, Inputs, ShardWriter
from megahour.lm.estimate.history import buckets
from megahour.lm.scale.resources import room_of_rows
from megahour.lm.scale.row_files import CHUNK, LEAD, row_bytes
from megahour.lm.scale.shard_kernels import appearances, scatter_rows, scatter_windows
from megahour.lm.scale.shard_parts import Part, Sorter, parts_of_rows
from megahour.lm.scale.shards import HistoryShard, ShardTree, Split, Target, slots_of
from megahour.lm.scale.streams import StreamReader, shard_stream, short_file
from megahour.lm.scale.without_pandas import skip_pandas
from megahour.lm.text.arrays import Bytes, Int32, Int64, row_list, rows_of, spellings
from megahour.lm.text.pieces import Piece, tokens_of
from megahour.lm.text.tokenise import BOUNDARY, WordTable

skip_pandas()


ROUNDS = tuple(f"round{number}" for number in range(1, 7))


def first_tree(counts: Int64, total: int, order: int, limit: int) -> ShardTree:
    """Round 1 of a corpus with counts (V,) of the words that end a history.

    Shards have at most `limit` positions, or more if there would be over MOST_SHARDS (see `ShardTree.limit`).
    """
    room = room_of_rows(total, order, limit)
    return ShardTree(counts, buckets(counts, room.smallest), room.shard_rows, order)


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
        """The vocabulary for `tokenise.encode`, which must not add to it."""
        return WordTable.spelled(*self.spelling)

    def histogram(self, round_name: str, target: Target) -> tuple[Int32, Int64]:
        """Words before a left-over history, in order of appearance, and their counts (V,)."""
        table = self.inputs[round_name].read_table(self.slots[-1].index(target), ".next.arrow")
        words, counts = table["word"].to_numpy(), np.zeros(self.tree.vocabulary, np.int64)
        counts[words] = table["count"].to_numpy()
        return words, counts

    def parts(self, shard: HistoryShard) -> Iterator[Part]:
        """See `shard_parts.Rows`. The parts are sorted."""
        m, place = shard.rows, 0
        windows, positions = np.empty((m, self.order), np.int32), np.empty(m, np.int64)
        target: Target = shard.number
        if shard.leaf:
            split = self.tree.splits[shard.parent]
            target, place = ~split.number, row_bytes(self.order) * (shard.begin - split.begin)
        slot = self.slots[shard.round - 1].index(target)
        source = self.inputs[ROUNDS[shard.round - 1]]
        with source.local(slot, ".sorted") as path, closing(StreamReader(path, place)) as file:
            if not file.fill(windows) or not file.fill(positions):
                raise short_file(path)
        for begin, end in pairwise(self.bounds(shard)):
            if end > begin:
                yield Part(positions[begin:end], windows[begin:end], ordered=True)

    def bounds(self, shard: HistoryShard) -> list[int]:
        """Where the partitions of a shard begin, and its end."""
        if shard.floor:
            return [0, shard.rows]
        starts = self._starts[shard.parts[0] : shard.parts[1] + 1]
        result: list[int] = (starts - starts[0]).tolist()
        return result

    @cached_property
    def _starts(self) -> Int64:
        starts: Int64 = np.concatenate([[0], np.cumsum(self.counts)])[self.tree.edges]
        return starts

    @cached_property
    def sorter(self) -> Sorter:
        """The scratch arrays of this process for the largest shard."""
        return Sorter(self.order, len(self.counts), max(shard.rows for shard in self.tree.shards))


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
    for tokens in tokens_of(piece, inputs, cluster.table, skip=skip, frozen=True):
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
    """Write the rows of a slot: those of shards sorted; for a left-over history also the words before it."""
    target = cluster.slots[-1][slot]
    rows = (rows_of(batch["row"]) for batch in batches)
    out.stats.update(left=False, children=0)
    if target >= 0:
        total = sort_rows(cluster, [cluster.tree.shards[target]], rows, out)
    elif cluster.tree.is_leaf(split := cluster.tree.splits[~target]):
        total = sort_rows(cluster, [cluster.tree.shards[number] for number in split.children], rows, out)
    else:
        total = leave_rows(cluster, split, rows, out)
    out.stats["rows"] = total
    out.kept_all(total)


def sort_rows(cluster: Cluster, shards: list[HistoryShard], rows: Iterator[Int32], out: ShardWriter) -> int:
    """Write `.sorted`: for each shard its windows (m, order) and positions (m,), sorted by history within partitions.

    Both passes over the shards need this order. Returns the number of rows.
    """
    carry = np.empty((0, cluster.order + 2), np.int32)
    with shard_stream(out, ".sorted") as file:
        for shard in shards:
            own, carry = take_rows(carry, rows, shard.rows)
            sorted_positions = []
            for part in parts_of_rows(cluster.tree, shard, own):
                windows, positions = cluster.sorter.sort(shard, part)
                file.put(windows)
                sorted_positions.append(positions.copy())
            for positions in sorted_positions:
                file.put(positions)
    if len(carry) or next(rows, None) is not None:
        raise _changed()
    return sum(shard.rows for shard in shards)


def take_rows(carry: Int32, rows: Iterator[Int32], count: int) -> tuple[Int32, Int32]:
    """The next `count` rows, `carry` first; and the rest of the last batch. Raises StageError: there are fewer."""
    result, used = np.empty((count, carry.shape[1]), np.int32), 0
    while True:
        share = min(len(carry), count - used)
        result[used : used + share] = carry[:share]
        used, carry = used + share, carry[share:]
        if used == count:
            return result, carry
        following = next(rows, None)
        if following is None:
            raise _changed()
        carry = following


def _changed() -> StageError:
    return StageError("the text is not the one that lm-words counted", remedy="run lm-words again, then this stage")


def leave_rows(cluster: Cluster, split: Split, rows: Iterator[Int32], out: ShardWriter) -> int:
    """Write `.rows` and `.next.arrow` of a history for the next round: the words before it, and their counts."""
    size, known, total = cluster.tree.vocabulary, 0, 0
    counts, words = np.zeros(size, np.int64), np.empty(size, np.int32)
    with out.open(".rows") as file:
        for batch in rows:
            total += len(batch)
            file.write(batch.data)
            known = appearances(batch, split.floor + 1, counts, words, known)
    out.stats.update(left=True, children=len(cluster.tree.divided(words[:known], counts)))
    out.table(pa.table({"word": words[:known], "count": counts[words[:known]]}), ".next.arrow")
    return total


def row_batches(rows: Int32, ends: Int64, counts: Int64) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(slot, batch) of rows, which are in order of their slots."""
    for slot in np.flatnonzero(counts).tolist():
        yield slot, pa.record_batch({"row": row_list(rows[ends[slot] - counts[slot] : ends[slot]])})
