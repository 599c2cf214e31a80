"""Estimation in bounded memory: text → tokens → positions by shard → counts → ARPA file.

The result has the bytes of `estimate.estimate`. The process holds the vocabulary, one shard per thread, and the n-grams
of histories that are too frequent for a shard (`shards`). Tokens and positions, 8 bytes per token, are in memory if
they fit (`memory_rows`), else on disk (`row_files`). The results of the first pass are on disk until the second pass
reads them (`shard_files`).

A run that was killed can be resumed: a phase is finished if its marker exists, a shard if its file has its final name,
which a file gets when it is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from megahour.core.locks import MARKS, alone
from megahour.core.records import fingerprint
from megahour.core.surroundings import explaining
from megahour.lm.arpa.read import Progress
from megahour.lm.estimate.discounts import USUAL, Discount, KneserNey
from megahour.lm.estimate.estimate import thresholds
from megahour.lm.scale.bounded_job import BoundedJob, ScratchFolder
from megahour.lm.scale.row_files import LEAD
from megahour.lm.scale.shards import Sharding
from megahour.lm.scale.token_file import Blocks
from megahour.lm.text.arrays import Bytes, Int64
from megahour.lm.text.cut import ALL_WORDS, WordCut
from megahour.lm.text.tokenise import BOUNDARY, WordTable

FORMAT = 3
"""Version of the scratch files; files of other versions are discarded."""


@dataclass(frozen=True)
class Bounded:
    """Facts about an estimated model.

    sizes: n-grams by order. discounts, fallbacks: see `discounts.discounts`. tokens: words and sentence ends; words:
    without sentence ends; types: different words. shared_ngrams: n-grams of two words and more that shards share.
    spilled_bytes: largest total size of the scratch files. in_memory: whether positions were held in memory. wildcards:
    by order from 1, contexts with dropped n-grams, and the sum of the adjusted counts of these n-grams. vocabulary: the
    words by number, `tokenise.RESERVED` first: arena and starts as in `tokenise.WordTable`. shard_rows: limit of a
    shard.
    """

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
    vocabulary: tuple[Bytes, Int64]
    shard_rows: int


def estimate_bounded(
    blocks: Blocks,
    order: int,
    path: Path,
    scratch: Path,
    *,
    memory_bytes: int = 0,
    cutoffs: Sequence[int] = (),
    threads: int = 1,
    shard_rows: int = 0,
    on_disk: bool = False,
    vocabulary: WordTable | None = None,
    cut: WordCut = ALL_WORDS,
    skip_symbols: bool = False,
    how: KneserNey = USUAL,
    identity: str = "",
    resumes: bool = True,
    expected_bytes: int = 0,
    progress: Progress = lambda phase, done, total: None,
) -> Bounded:
    """Estimate the model of a text within `memory_bytes`, with temporary files in `scratch`, and write it as ARPA.

    blocks: returns the text (`sources.blocks`), the same at every call. vocabulary, cut, skip_symbols: as in
    `reading.read_corpus`. cutoffs, how: as in `estimate.estimate`. identity: of text and vocabulary; the files of a run
    with another one are discarded. resumes: whether a later call finds them, for messages. expected_bytes: size of the
    text, if known, for a check of the disk before anything is written. shard_rows: largest shard in positions, 0 for
    the largest that memory allows. on_disk: keep positions on disk even if they fit into memory. memory_bytes = 0:
    `shard_rows` bounds the memory instead, see `room_of_rows`.

    Raises
    ------
    StageError: memory or disk are too small for the job; the message has the required size.
    StoreError: another process uses `scratch`, or a disk is full.
    MegahourError: no words. ValueError: `order` or `cutoffs` is out of range.
    """
    limits = thresholds(order, cutoffs)
    mine = alone(LocalFileSystem(), scratch.absolute().parent, marks=f"{scratch.name}{MARKS}", where=str(scratch))
    with explaining(scratch, scratch.parent, path.parent, resumes=resumes), mine:
        held = ScratchFolder(scratch)
        ways = memory_bytes and threads  # of which the shards depend on threads only with a limit of memory
        claimed = [FORMAT, identity, order, limits.tolist(), memory_bytes, ways, shard_rows, on_disk]
        held.claim(fingerprint([*claimed, skip_symbols, *cut, *how]))
        job = BoundedJob(order, path, held, memory_bytes, limits, threads, progress, how, shard_rows, on_disk)
        if expected_bytes:
            job.check_sample(blocks, expected_bytes)
        job.number(blocks, vocabulary, cut, skip_symbols)
        in_memory = job.shard()
        job.count()
        totals, discounts, fallbacks = job.write()
        held.remove()
    tokens = job.corpus.total - LEAD
    return Bounded(
        totals.sizes(), discounts, fallbacks, tokens, job.text.size, job.tree.report(),
        sum(len(closed.grams) for closed in totals.closed), held.most_bytes, in_memory, totals.wildcards(),
        tokens - int(job.corpus.counts[BOUNDARY]), (job.corpus.arena, job.corpus.starts), job.tree.limit,
    )  # fmt: skip
