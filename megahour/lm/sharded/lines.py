"""ARPA files from partitions of n-grams by prefix, which follow each other in the file."""

from __future__ import annotations

import numpy as np

from megahour.core.errors import MegahourError
from megahour.core.stage import Artifact, Batches, ShardWriter
from megahour.lm.arpa.write import PART, format_lines, room_for
from megahour.lm.scale import joined
from megahour.lm.sharded.local import LocalWords, sorted_level
from megahour.lm.sharded.rows import NGRAM, all_rows
from megahour.lm.sharded.union import Union


def write_lines(union: Union, highest: int, batches: Batches, out: ShardWriter) -> None:
    """Write the lines of a partition to `.1.txt`, `.2.txt`, …; highest: the order without back-off weights.

    Raises MegahourError: no model lists the context of an n-gram.
    """
    rows = all_rows(batches, union.order)
    words = LocalWords.of(union, [rows["words"]])
    arena, starts = words.spelled()
    lengths, sizes = np.diff(starts), [0] * highest
    for k in range(1, highest + 1):
        grams, roles, values = sorted_level(words, k, rows[rows["length"] == k])
        if len(grams) == 0:
            continue
        lacking = np.flatnonzero((roles & NGRAM) == 0)
        if len(lacking):
            message = f"{words.spell(grams[lacking[0]])!r} begins a longer n-gram, but is not listed"
            raise MegahourError(message, remedy="check that the models are complete ARPA files")
        sizes[k - 1] = len(grams)
        logp, weight, _ = values
        with out.open(f".{k}.txt") as file:
            for begin in range(0, len(grams), PART):
                end = min(begin + PART, len(grams))
                text = np.empty(room_for(grams[begin:end], lengths), np.uint8)
                used = format_lines(grams, begin, end, logp, weight, k == highest, arena, starts, text)
                file.write(text[:used].data)
    out.stats["sizes"] = sizes
    out.kept_all(sum(sizes))


def join_lines(lines: Artifact, union: Union, out: ShardWriter) -> None:
    """Write `.arpa` and `.vocab.txt` from the lines of all shards."""
    sizes = np.array([receipt.stats["sizes"] for receipt in lines.each_receipt()]).sum(axis=0).tolist()
    joined.join_lines(lines, sizes, out)
    with out.open(".vocab.txt") as file:
        joined.write_words(*union.spelled(), file)
    out.stats["ngrams"] = sizes
    out.kept_all(sum(sizes))
