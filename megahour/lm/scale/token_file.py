"""A text as word numbers on disk, with its vocabulary, for estimation in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megahour.core.errors import MegahourError
from megahour.lm.arpa.read import Progress
from megahour.lm.estimate.history import history_counts
from megahour.lm.scale.row_files import CHUNK, LEAD, LEADING
from megahour.lm.text.arrays import Bytes, Int64, Tokens
from megahour.lm.text.cut import WordCut, cut_words, renumber
from megahour.lm.text.sources import Block
from megahour.lm.text.tokenise import BOUNDARY, PADDING, RESERVED, WordTable, encode

Blocks = Callable[[], Iterable[Block]]


@dataclass(frozen=True)
class NumberedText:
    """tokens: file of int32, LEAD BOUNDARYs first; total: number of tokens in it. arena, starts: spelling, as in
    `tokenise.WordTable`. counts (V,): how often each word ends a history."""

    tokens: Path
    total: int
    arena: Bytes
    starts: Int64
    counts: Int64


def number_text(
    blocks: Blocks, folder: Path, vocabulary: WordTable | None, cut: WordCut, skip_symbols: bool, progress: Progress
) -> NumberedText:
    """Write the word numbers of a text to `folder`, unless an earlier run did. cut: applies without a vocabulary.

    Raises
    ------
    MegahourError: a reserved word, unless `skip_symbols`; no words, or none of `vocabulary`.
    """
    done, file = folder / "vocabulary.npz", folder / "tokens"
    if not done.exists():
        table, counts, total = _encode(blocks, file, vocabulary, skip_symbols, progress)
        if vocabulary is None and cut.cuts:
            numbers, table = cut_words(counts, table, cut)
            _renumber_file(file, numbers)
            counts = np.bincount(numbers, counts[: len(numbers)], len(table)).astype(np.int64)
        size = len(table)
        starts, arena = table.starts[: size + 1], table.arena[: int(table.starts[size]) + PADDING]
        save(done, {"arena": arena, "starts": starts, "counts": counts[:size], "total": np.array(total)})
    with np.load(done) as saved:
        result = NumberedText(file, int(saved["total"]), saved["arena"], saved["starts"], saved["counts"])
    if result.total - LEAD <= result.counts[BOUNDARY]:  # every sentence begins after a BOUNDARY, also an empty one
        raise MegahourError("the text has no words", remedy="give other text")
    if vocabulary is not None and not result.counts[len(RESERVED) :].any():
        raise MegahourError("the text has none of the listed words", remedy="check the text and the word list")
    return result


def save(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Write arrays to an `.npz` file, which gets its name when it is complete."""
    scratch = path.with_suffix(".part")
    with scratch.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    scratch.replace(path)


def _renumber_file(path: Path, numbers: Tokens) -> None:
    with path.open("r+b") as file:
        while len(tokens := np.fromfile(file, np.int32, CHUNK)):
            renumber(tokens, numbers)
            file.seek(-tokens.nbytes, os.SEEK_CUR)
            file.write(tokens.data)  # not `tofile`, whose errors hide that a disk is full


def _encode(
    blocks: Blocks, path: Path, vocabulary: WordTable | None, skip_symbols: bool, progress: Progress
) -> tuple[WordTable, Int64, int]:
    table, total, previous = WordTable() if vocabulary is None else vocabulary, LEAD, BOUNDARY
    counts, tokens = np.zeros(max(1 << 16, len(table)), np.int64), np.empty(0, np.int32)
    with path.open("wb") as file:
        file.write(LEADING)
        for block in blocks():
            if len(tokens) <= block.end:
                tokens = np.empty(block.end + 1, np.int32)
            count, skipped = encode(
                block.text, block.end, table, tokens, frozen=vocabulary is not None, reserve=skip_symbols
            )
            if skipped and not skip_symbols:
                raise block.reserved()
            if len(table) > len(counts):
                counts = np.concatenate([counts, np.zeros(2 * len(table) - len(counts), np.int64)])
            history_counts(tokens, 1, count + 1, counts)  # each token ends the history of the next
            previous = int(tokens[count - 1]) if count else previous
            file.write(tokens[:count].data)
            total += count
            progress("read", total, 0)
    counts[BOUNDARY] += 1  # for the first history; the last token ends no history
    counts[previous] -= 1
    return table, counts, total
