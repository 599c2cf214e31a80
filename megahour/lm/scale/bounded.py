"""Estimation in bounded memory: text → tokens → positions by shard → counts → an ARPA file.

The same numbers in the same order as `estimate.estimate`, so the same bytes. What one process holds: the vocabulary,
one shard for each thread, the n-grams of histories too frequent for a shard (`shards`), and, where the memory that is
given holds them, the tokens and their positions by shard, 8 bytes a token (`memory_rows`); else these are on disk
(`row_files`). What the first pass finds is on disk until the second needs it (`swept_files`).

A killed run goes on where it was: a phase is done when its marker is there, a shard when its file has its final name,
and every file is written whole before it gets that name.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from megahour.core.locks import MARKS, alone
from megahour.core.records import fingerprint
from megahour.core.surroundings import explaining
from megahour.lm.estimate.discounts import USUAL, Discount, KneserNey
from megahour.lm.estimate.estimate import Progress, thresholds
from megahour.lm.scale.bounded_job import BoundedJob, ScratchFolder
from megahour.lm.scale.row_files import LEAD
from megahour.lm.scale.shards import Sharding
from megahour.lm.scale.token_file import Blocks
from megahour.lm.text.cut import ALL_WORDS, WordCut
from megahour.lm.text.tokenise import BOUNDARY, WordTable

FORMAT = 2
"""Of the scratch files: those of another one are not gone on with."""


@dataclass(frozen=True)
class Bounded:
    """What was estimated: n-grams by order, discounts, fallbacks as of `discounts.discounts`, tokens (words: those
    that end no sentence), types, how the corpus was sharded, n-grams that shards shared above unigrams, the scratch
    files' largest size in bytes, and whether positions were held in memory. wildcards: by order from 1, contexts of
    which n-grams were dropped, and the sum of the adjusted counts of these."""

    sizes: list[int]
    discounts: list[Discount]
    fallbacks: dict[int, str]
    tokens: int
    types: int
    sharding: Sharding
    shared_ngrams: int
    spilled_bytes: int
    in_memory: bool
    wildcards: list[tuple[int, int]]
    words: int


def estimate_bounded(
    blocks: Blocks,
    order: int,
    path: Path,
    scratch: Path,
    *,
    memory_bytes: int,
    cutoffs: Sequence[int] = (),
    threads: int = 1,
    rounds: int = 0,
    shard_rows: int = 0,
    on_disk: bool = False,
    vocabulary: WordTable | None = None,
    cut: WordCut = ALL_WORDS,
    skip_symbols: bool = False,
    how: KneserNey = USUAL,
    identity: str = "",
    expected_bytes: int = 0,
    progress: Progress = lambda phase, done, total: None,
) -> Bounded:
    """Write the model of a text to `path` as an ARPA file, within `memory_bytes` and through files in `scratch`.

    blocks: yields the text (`text.blocks`), the same at every call. vocabulary: words to keep, others are `<unk>`; cut:
    the same by count, as in `reading.read_corpus`. skip_symbols: skip `<s>`, `</s>` and `<unk>`. how: of Kneser-Ney.
    identity: names the text and the vocabulary; what an earlier run left in `scratch` is used only if it had the same.
    expected_bytes: size of the text if known, to check the disk before anything is written. rounds: of sharding, 0 as
    many as needed; shard_rows: positions of a shard at most, 0 as many as memory allows; on_disk: keep positions on
    disk even where memory would hold them.

    Raises
    ------
    StageError: memory or disk cannot hold the job, or `rounds` are too few; says how much would.
    StoreError: another process is at work in `scratch`, or a disk is full.
    MegahourError: no words. ValueError: `order` or `cutoffs` is out of range.
    """
    limits = thresholds(order, cutoffs)
    mine = alone(LocalFileSystem(), scratch.absolute().parent, marks=f"{scratch.name}{MARKS}", where=str(scratch))
    with explaining(scratch, scratch.parent, path.parent), mine:
        held = ScratchFolder(scratch)
        claimed = [FORMAT, identity, order, limits.tolist(), memory_bytes, threads, shard_rows, on_disk]
        held.claim(fingerprint([*claimed, skip_symbols, *cut, *how]))
        job = BoundedJob(order, path, held, memory_bytes, limits, threads, progress, how)
        if expected_bytes:
            job.check_sample(blocks, expected_bytes)
        corpus = job.tokens(blocks, vocabulary, cut, skip_symbols)
        tree, rows, in_memory = job.shard(corpus, rounds, shard_rows, on_disk)
        job.count(tree, rows, corpus)
        totals, discounts, fallbacks = job.write(tree, rows, corpus)
        shutil.rmtree(scratch)
    shared = sum(len(closed.grams) for closed in totals.closed)
    return Bounded(
        totals.sizes(), discounts, fallbacks, corpus.total - LEAD, corpus.text.size, tree.report(), shared,
        held.most_bytes, in_memory, totals.wildcards(), corpus.total - LEAD - int(corpus.counts[BOUNDARY]),
    )  # fmt: skip
