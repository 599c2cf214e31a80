"""The numbered vocabulary of a text in a store: of its own words, by count or all, or of a word list."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute

from megahour.lm.estimate.reading import vocabulary_of
from megahour.lm.scale.distributed import WORDS, first_tree
from megahour.lm.scale.row_files import LEAD
from megahour.lm.text.sources import blocks
from megahour.lm.text.tokenise import BOUNDARY, RESERVED, UNKNOWN

if TYPE_CHECKING:
    from megahour.core.store import Artifact
    from megahour.core.writer import ShardWriter


def choose_words(words: Artifact, most_frequent: int, min_count: int) -> pa.Table:
    """Words of the artifact of `lm-words` that occur `min_count` times, and of these the `most_frequent` (0: all), in
    order of appearance; ties go to the word whose bytes sort first."""
    table = _all_words(words)
    table = table.filter(pa.compute.greater_equal(table["count"], min_count))
    if most_frequent:
        table = table.sort_by([("count", "descending"), ("word", "ascending")]).slice(0, most_frequent)
    return table.sort_by("first")


def listed_words(words: Artifact, path: str) -> pa.Table:
    """The words of a list in its order, those that do not occur too. Raises ConfigError: no such list."""
    listed = vocabulary_of(blocks([path])).words()[len(RESERVED) :]
    numbered = pa.table({"word": pa.array(listed, pa.binary()), "number": np.arange(len(listed))})
    found = numbered.join(_all_words(words), "word", join_type="left outer").sort_by("number")
    count = pa.compute.fill_null(found["count"], 0)
    return found.set_column(found.schema.get_field_index("count"), "count", count).select(WORDS.names)


def write_vocabulary(words: Artifact, chosen: pa.Table, out: ShardWriter, order: int, limit: int) -> None:
    """Words by number with their counts, offsets of the pieces' tokens, and the first shards; others are `<unk>`."""
    every = _all_words(words)
    pieces = next(receipt.stats["pieces"] for receipt in words.receipts() if receipt.shard == 0)
    offsets = np.concatenate([[LEAD], LEAD + np.cumsum(pieces)]).tolist()
    counts = np.zeros(len(RESERVED) + len(chosen), np.int64)
    counts[len(RESERVED) :] = chosen["count"].to_numpy()
    counts[UNKNOWN] = (pa.compute.sum(every["count"]).as_py() or 0) - counts.sum()
    counts[BOUNDARY] = offsets[-1] - LEAD - counts.sum()
    spelled = pa.table({"word": [word.encode() for word in RESERVED] + chosen["word"].to_pylist(), "count": counts})
    out.table(spelled.cast(pa.schema([("word", pa.binary()), ("count", pa.int64())])), ".arrow")
    tree, kept = first_tree(counts, offsets[-1], order, limit), int((counts[len(RESERVED) :] > 0).sum())
    out.stats.update(offsets=offsets, slots=len(tree.root), order=order, shard_rows=limit, types=len(every))
    out.came_in(len(every))
    out.kept(kept)
    out.drop("rare", len(every) - kept)


def _all_words(words: Artifact) -> pa.Table:
    return pa.concat_tables([words.read_table(receipt.shard, ".arrow") for receipt in words.receipts()])
