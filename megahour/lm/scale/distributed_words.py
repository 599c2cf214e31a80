"""The stages `lm-words` and `lm-vocabulary`: words by hash, their numbers in order of appearance, their counts.

Words stay in arenas and Arrow columns: a Python object for each of millions of words would take most of the time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute

from megahour.core.stage import Artifact, Batches, Inputs, ShardWriter
from megahour.lm.estimate.reading import word_list
from megahour.lm.scale.distributed import first_tree
from megahour.lm.scale.row_files import LEAD
from megahour.lm.scale.without_pandas import skip_pandas
from megahour.lm.text.arrays import Int64, spelled, spellings
from megahour.lm.text.pieces import Piece, tokens_of
from megahour.lm.text.tokenise import BOUNDARY, RESERVED, UNKNOWN, WordTable
from megahour.lm.text.word_lists import number_words, owners

WORDS = pa.schema([("word", pa.binary()), ("first", pa.int64()), ("count", pa.int64())])
RANK_BITS = 32  # low bits of `first` for the word's rank in its piece; the piece's number is above them

skip_pandas()


def split_words(
    piece: Piece, number: int, inputs: Inputs, partitions: int, skip: bool
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Words of a piece of text by hash. The empty word stands for the piece; its count is the number of tokens."""
    table, counts, total = WordTable(), np.zeros(1 << 16, np.int64), 0
    for tokens in tokens_of(piece, inputs, table, skip=skip):
        result = np.bincount(tokens, minlength=len(counts))
        result[: len(counts)] += counts
        counts, total = result, total + len(tokens)
    starts = table.starts[len(RESERVED) : len(table) + 1]
    owner, words = owners(table.arena, starts, partitions), spelled(table.arena, starts)
    place = number << RANK_BITS
    yield 0, _words(pa.array([b""]), np.array([place]), np.array([total]))
    for partition in range(partitions):
        own = np.flatnonzero(owner == partition)
        if len(own):
            yield partition, _words(words.take(pa.array(own)), place + own, counts[own + len(RESERVED)])


def merge_words(batches: Batches) -> tuple[pa.Table, list[int]]:
    """The different words of a partition in order of appearance; and, for partition 0, the tokens of each piece."""
    table, pieces, firsts = WordTable(), [], [np.empty(0, np.int64)]
    counts = np.zeros(1 << 16, np.int64)
    for batch in batches:  # in order of pieces, and of appearance within a piece: so the table's order is that, too
        if len(batch) == 1 and batch["word"][0].as_py() == b"":
            pieces.append(batch["count"][0].as_py())
            continue
        known = len(table)
        numbers = number_words(table, *spellings(pa.chunked_array([batch["word"]])))
        if len(table) > len(counts):
            counts = np.concatenate([counts, np.zeros(max(len(counts), len(table) - len(counts)), np.int64)])
        counts[numbers] += batch["count"].to_numpy()  # a batch has each word once
        firsts.append(batch["first"].to_numpy()[numbers >= known])
    begin, end = len(RESERVED), len(table)
    words = spelled(table.arena, table.starts[begin : end + 1]).cast(pa.binary())
    columns = [words, np.concatenate(firsts), counts[begin:end]]
    return pa.table(columns, schema=WORDS), pieces


def _words(words: pa.Array, first: Int64, counts: Int64) -> pa.RecordBatch:
    return pa.record_batch([words.cast(pa.binary()), pa.array(first), pa.array(counts)], schema=WORDS)


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
    listed = word_list(path).words()[len(RESERVED) :]
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
    reserved = pa.array([word.encode() for word in RESERVED], pa.binary())
    spelling = pa.chunked_array([reserved, *chosen["word"].chunks]).combine_chunks()
    out.table(pa.table({"word": spelling, "count": counts}), ".arrow")
    tree, kept = first_tree(counts, offsets[-1], order, limit), int((counts[len(RESERVED) :] > 0).sum())
    out.stats.update(offsets=offsets, slots=len(tree.root), order=order, shard_rows=tree.limit, types=types)
    out.came_in(types)
    out.kept(kept)
    out.drop("rare", types - kept)


def each_partition(words: Artifact) -> Iterator[pa.Table]:
    """The tables of the partitions of `lm-words`, one after the other."""
    for receipt in words.each_receipt():
        yield words.read_table(receipt.shard, ".arrow")
