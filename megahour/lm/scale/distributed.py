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

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute

from megahour.core.stage import Inputs
from megahour.lm.estimate.history import buckets
from megahour.lm.estimate.partitions import BUCKET
from megahour.lm.estimate.reading import vocabulary_of
from megahour.lm.scale.row_files import CHUNK, LEAD
from megahour.lm.scale.shard_kernels import appearances, scatter_rows, scatter_windows
from megahour.lm.scale.shard_parts import Part, parts_of_rows
from megahour.lm.scale.shards import HistoryShard, ShardTree, Split, Target, slots_of
from megahour.lm.text.arrays import Int32, Int64
from megahour.lm.text.pieces import Piece, tokens_of
from megahour.lm.text.sources import blocks
from megahour.lm.text.tokenise import BOUNDARY, RESERVED, UNKNOWN, WordTable

if TYPE_CHECKING:
    from megahour.core.stage import Batches
    from megahour.core.store import Artifact
    from megahour.core.writer import ShardWriter


WORDS = pa.schema([("word", pa.binary()), ("first", pa.int64()), ("count", pa.int64())])
RANK_BITS = 32  # low bits of `first` for the word's rank in its piece; the piece's number is above them
MOST_SHARDS = 1 << 14  # in round 1: each is a partition of an exchange, and reads names from all others
ROUNDS = tuple(f"round{number}" for number in range(1, 7))


def split_words(
    piece: Piece, number: int, inputs: Inputs, partitions: int, skip: bool
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Words of a piece of text by hash. The empty word stands for the piece; its count is the number of tokens."""
    table, counts, total = WordTable(), np.zeros(1 << 16, np.int64), 0
    for tokens in tokens_of(piece, inputs, table, skip=skip):
        result = np.bincount(tokens, minlength=len(counts))
        result[: len(counts)] += counts
        counts, total = result, total + len(tokens)
    words = table.words()
    owner = np.array([zlib.crc32(word) % partitions for word in words[len(RESERVED) :]], np.int64)
    place = (number << RANK_BITS) + np.arange(len(owner))
    yield 0, _words([b""], np.array([number << RANK_BITS]), np.array([total]))
    for partition in range(partitions):
        own = np.flatnonzero(owner == partition)
        if len(own):
            ranks = own + len(RESERVED)
            yield partition, _words([words[i] for i in ranks.tolist()], place[own], counts[ranks])


def merge_words(batches: Batches) -> tuple[pa.Table, list[int]]:
    """The different words of a partition in order of appearance; and, for partition 0, the tokens of each piece."""
    table = pa.Table.from_batches(list(batches), WORDS)
    if not len(table):
        return table, []
    pieces = table.filter(pa.compute.equal(table["word"], b"")).sort_by("first")
    table = table.filter(pa.compute.not_equal(table["word"], b""))
    grouped = table.group_by("word").aggregate([("first", "min"), ("count", "sum")])
    grouped = grouped.rename_columns({"first_min": "first", "count_sum": "count"})
    return grouped.select(WORDS.names).sort_by("first").cast(WORDS), pieces["count"].to_pylist()


def _words(words: list[bytes], first: Int64, counts: Int64) -> pa.RecordBatch:
    columns = [pa.array(words, pa.binary()), pa.array(first, pa.int64()), pa.array(counts, pa.int64())]
    return pa.record_batch(columns, schema=WORDS)


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
        self.vocabulary = inputs["vocabulary"]
        stats = self.vocabulary.receipts()[0].stats
        self.order, self.offsets = int(stats["order"]), list(stats["offsets"])
        self.words = self.vocabulary.read_table(0, ".arrow")
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

    def table(self) -> WordTable:
        """The vocabulary for `tokenise.encode`."""
        return WordTable.of(self.words["word"].to_pylist()[len(RESERVED) :])

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


def split_rows(cluster: Cluster, piece: Piece, number: int, skip: bool) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows of a piece of text by their slots in round 1."""
    slots = cluster.tree.root
    slot_of = slots_of(slots, cluster.tree.shard_of)
    base, before = cluster.offsets[number], np.full(LEAD, BOUNDARY, np.int32)
    out = np.empty((CHUNK, cluster.order + 2), np.int32)
    for tokens in tokens_of(piece, cluster.inputs, cluster.table(), skip=skip):
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
        split = cluster.tree.splits[~target]
        cluster.tree.next_round()
        cluster.tree.grow(split, words[:known], counts)
        out.stats["children"] = len(split.children)
        out.table(pa.table({"word": words[:known], "count": counts[words[:known]]}), ".next.arrow")


def row_batches(rows: Int32, ends: Int64, counts: Int64) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(slot, batch) of rows, which are in order of their slots."""
    width = rows.shape[1]
    for slot in np.flatnonzero(counts).tolist():
        own = rows[ends[slot] - counts[slot] : ends[slot]]
        values = pa.array(own.reshape(-1))
        yield slot, pa.record_batch([pa.FixedSizeListArray.from_arrays(values, width)], names=["row"])


def choose_words(words: Artifact, most_frequent: int, min_count: int) -> pa.Table:
    """The words of `lm-words` that occur at least `min_count` times, of these the `most_frequent` (0: all).

    They are in order of appearance. Of words with equal counts those are kept whose bytes sort first. Memory holds one
    partition and the kept words.
    """
    held = WORDS.empty_table()
    for table in each_partition(words):
        held = pa.concat_tables([held, table.filter(pa.compute.greater_equal(table["count"], min_count))])
        if most_frequent:
            held = held.sort_by([("count", "descending"), ("word", "ascending")]).slice(0, most_frequent)
            held = held.combine_chunks().take(np.arange(len(held)))  # a copy, which does not keep the whole table
    return held.sort_by("first")


def listed_words(words: Artifact, path: str) -> pa.Table:
    """The words of a list in its order, also those that do not occur. Raises ConfigError: no such list."""
    listed = vocabulary_of(blocks([path])).words()[len(RESERVED) :]
    numbered = pa.table({"word": pa.array(listed, pa.binary()), "number": np.arange(len(listed))})
    parts = [table.filter(pa.compute.is_in(table["word"], numbered["word"])) for table in each_partition(words)]
    result = numbered.join(pa.concat_tables(parts), "word", join_type="left outer").sort_by("number")
    count = pa.compute.fill_null(result["count"], 0)
    return result.set_column(result.schema.get_field_index("count"), "count", count).select(WORDS.names)


def write_vocabulary(words: Artifact, chosen: pa.Table, out: ShardWriter, order: int, limit: int) -> None:
    """Write the chosen words by number with their counts, and the sizes that `Cluster` reads. Others are `<unk>`."""
    sizes = [(len(table), pa.compute.sum(table["count"]).as_py() or 0) for table in each_partition(words)]
    types, occurrences = (sum(column) for column in zip(*sizes, strict=True))
    pieces = next(receipt.stats["pieces"] for receipt in words.each_receipt() if receipt.shard == 0)
    offsets = np.concatenate([[LEAD], LEAD + np.cumsum(pieces)]).tolist()
    counts = np.zeros(len(RESERVED) + len(chosen), np.int64)
    counts[len(RESERVED) :] = chosen["count"].to_numpy()
    counts[UNKNOWN] = occurrences - counts.sum()
    counts[BOUNDARY] = offsets[-1] - LEAD - counts.sum()
    spelled = pa.table({"word": [word.encode() for word in RESERVED] + chosen["word"].to_pylist(), "count": counts})
    out.table(spelled.cast(pa.schema([("word", pa.binary()), ("count", pa.int64())])), ".arrow")
    tree, kept = first_tree(counts, offsets[-1], order, limit), int((counts[len(RESERVED) :] > 0).sum())
    out.stats.update(offsets=offsets, slots=len(tree.root), order=order, shard_rows=tree.limit, types=types)
    out.came_in(types)
    out.kept(kept)
    out.drop("rare", types - kept)


def each_partition(words: Artifact) -> Iterator[pa.Table]:
    """The tables of the partitions of `lm-words`, one after the other."""
    for receipt in words.each_receipt():
        yield words.read_table(receipt.shard, ".arrow")
