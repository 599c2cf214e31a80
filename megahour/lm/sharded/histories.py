"""Counts of histories in a text, by partition, by which entropy pruning weights losses (`combine.context_probs`).

A history is sent to every partition that has one of its suffixes, and counts there for the longest suffix that the
model lists and for all suffixes of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from megahour.core.stage import Artifact, Batches, ShardWriter
from megahour.lm.combine.context_probs import add_histories
from megahour.lm.combine.trie import Trie
from megahour.lm.combine.walk import encode_sentences
from megahour.lm.estimate.reading import lines_of, words_of
from megahour.lm.sharded.local import LocalWords
from megahour.lm.sharded.mix import Batch, histories_of
from megahour.lm.sharded.ranges import Ranges
from megahour.lm.sharded.rows import NO_WORD
from megahour.lm.sharded.union import Union
from megahour.lm.text.arrays import Float64, Int32, Int64, load_array, row_list, rows_of, save_array
from megahour.lm.text.pieces import read_piece

SENTENCES = 50_000  # counted together


def count_histories(
    union: Union, suffix: Ranges, piece: Mapping[str, Any], inputs: Mapping[str, Artifact]
) -> Iterator[Batch]:
    """Histories in a piece of text, last word first, and their counts, by the partitions that need them."""
    vocabulary, longest = union.vocabulary(), max(1, union.order - 1)
    lines = (words for line in lines_of(read_piece(piece, inputs)) if (words := words_of(line)))
    while part := list(islice(lines, SENTENCES)):
        tokens = encode_sentences(part, vocabulary)
        keys, counts = _counted(histories_of(tokens, longest)[0], np.ones(len(tokens), np.int64))
        yield len(suffix), _batch(np.full((1, longest), NO_WORD, np.int32), np.array([len(tokens)]))
        wanted = [np.full(len(keys), -1)]
        for length in range(1, longest + 1):
            held = keys.copy()
            held[:, length:] = NO_WORD
            place = suffix.places(held)
            for number in np.unique(place[place > wanted[-1]]).tolist():
                own = (place == number) & (place > wanted[-1])
                yield number, _batch(keys[own], counts[own])
            wanted.append(np.maximum(place, wanted[-1]))


def _batch(keys: Int32, counts: Int64) -> pa.RecordBatch:
    return pa.record_batch({"key": row_list(keys), "count": counts})


def _counted(keys: Int32, counts: Int64) -> tuple[Int32, Int64]:
    """The different keys (n, D), sorted, and the sums of their counts."""
    order = np.lexsort(keys.T[::-1])
    ordered = keys[order]
    new = np.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)])[: len(keys)]
    starts = np.flatnonzero(new)
    return ordered[starts], np.add.reduceat(counts[order], starts) if len(starts) else counts[:0]


def write_counts(union: Union, batches: Batches, out: ShardWriter) -> None:
    """Write `.keys.npy` and `.counts.npy`: the different histories of a partition and their counts."""
    held: list[tuple[Int32, Int64]] = [(np.zeros((0, max(1, union.order - 1)), np.int32), np.zeros(0, np.int64))]
    pending = 0
    for batch in batches:
        held.append((rows_of(batch["key"]), batch["count"].to_numpy()))
        pending += len(batch)
        if pending > 2 * len(held[0][0]) + (1 << 20):  # memory stays proportional to the different histories
            held, pending = [_joined(held)], 0
    keys, counts = _joined(held)
    save_array(out, ".keys.npy", keys)
    save_array(out, ".counts.npy", counts)
    out.stats["occurrences"] = int(counts.sum())
    out.kept_all(len(keys))


def _joined(held: Iterable[tuple[Int32, Int64]]) -> tuple[Int32, Int64]:
    keys, counts = zip(*held, strict=True)
    return _counted(np.concatenate(keys), np.concatenate(counts))


@dataclass(frozen=True)
class Occurrences:
    """Counts of histories. keys (n, D): last word first; counts (n,); tokens: number of tokens in the whole text."""

    keys: Int32
    counts: Int64
    tokens: int

    @staticmethod
    def read(artifact: Artifact, shard: int, union: Union) -> Occurrences:
        """The counts of a partition."""
        keys, counts = (load_array(artifact, shard, suffix) for suffix in (".keys.npy", ".counts.npy"))
        return Occurrences(keys, counts, artifact.summary["tokens"])

    def contexts(self, words: LocalWords, trie: Trie) -> Float64:
        """(N,) log10 of the relative frequency of each n-gram as a context, as by `context_probs.from_text`."""
        counts = np.zeros(len(trie.links.word), np.int64)
        local = words.local(self.keys)
        local[~np.isin(self.keys, words.numbers) & (self.keys != NO_WORD)] = len(words)
        add_histories(trie, local, self.counts, counts)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log10(counts) - np.log10(self.tokens), np.float64)
