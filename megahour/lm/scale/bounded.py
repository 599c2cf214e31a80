"""Estimation in bounded memory: text → tokens → rows by shard → counts → an ARPA file, each through the disk.

The same numbers in the same order as `estimate.estimate`, so the same bytes. What one process holds: the vocabulary, a
chunk of tokens or one shard for each thread, and the n-grams of histories too frequent for a shard (`shards`).

A killed run goes on where it was: a phase is done when its marker is there, a shard when its file has its final name,
and every file is written whole before it gets that name.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from megahour.core.errors import StageError
from megahour.core.records import fingerprint
from megahour.lm.arpa.lines import line_bytes
from megahour.lm.estimate.discounts import Discount
from megahour.lm.estimate.estimate import Progress, thresholds
from megahour.lm.estimate.history import Int32, Int64, buckets
from megahour.lm.estimate.partitions import BUCKET
from megahour.lm.estimate.sweep import CHARACTERS, KEPT, SUMS
from megahour.lm.scale.disk_need import SAMPLE, Need, check_disk, need_of
from megahour.lm.scale.row_files import CHUNK, LEAD, RowFiles, row_bytes
from megahour.lm.scale.shard_files import CountFiles
from megahour.lm.scale.shard_work import (
    ShardWorker,
    Shared,
    Smoothing,
    Text,
    bytes_of_position,
    name_table,
)
from megahour.lm.scale.shards import Sharding, ShardTree, check_rounds
from megahour.lm.scale.shared_context import smooth_all, split_lines
from megahour.lm.scale.token_file import Blocks, number_text, save
from megahour.lm.scale.totals import Totals
from megahour.lm.scale.unigram_lines import unigram_lines
from megahour.lm.text.tokenise import WordTable, encode

R = TypeVar("R")
FIXED_BYTES = 180 << 20  # the interpreter, compiled kernels and libraries
SHARDS = 1024  # at most, where memory allows: every shard reads a piece of every other's names
LARGEST = 1 << 20  # rows of a shard that more memory does not make larger: caches are small


@dataclass(frozen=True)
class Bounded:
    """What was estimated: n-grams by order, discounts, fallbacks as of `discounts.discounts`, tokens, types, how the
    corpus was sharded, n-grams that shards shared above unigrams, and the scratch files' largest size in bytes."""

    sizes: list[int]
    discounts: list[Discount]
    fallbacks: dict[int, str]
    tokens: int
    types: int
    sharding: Sharding
    shared_ngrams: int
    spilled_bytes: int


def estimate_bounded(
    blocks: Blocks,
    order: int,
    path: Path,
    scratch: Path,
    *,
    memory_bytes: int,
    prune: Sequence[int] = (),
    threads: int = 1,
    rounds: int = 0,
    vocabulary: WordTable | None = None,
    skip_symbols: bool = False,
    identity: str = "",
    expected_bytes: int = 0,
    progress: Progress = lambda phase, done, total: None,
) -> Bounded:
    """Write the model of a text to `path` as an ARPA file, within `memory_bytes` and through files in `scratch`.

    blocks: gives the text (`text.blocks`), the same at every call. vocabulary: words to keep, others are `<unk>`.
    skip_symbols: leave `<s>`, `</s>` and `<unk>` in the text out. identity: names the text and the vocabulary, so that
    what another run left in `scratch` is taken up only if it was of the same. expected_bytes: size of the text, where
    it is known, for a check of the disk before anything is written. rounds: of sharding, 0 as many as it takes.

    Raises
    ------
    StageError: memory or disk cannot hold the job, or `rounds` are too few; says how much would.
    ValueError: no words, or `order` or `prune` is out of range.
    """
    limits = thresholds(order, prune)
    if order == 1:
        raise ValueError("order 1 has no histories to shard by: its counts fit in memory, use `estimate`")
    job = _Job(order, path, scratch, memory_bytes, limits, threads, progress, vocabulary, skip_symbols)
    job.claim(fingerprint([identity, order, limits.tolist(), memory_bytes, threads, skip_symbols]))
    if expected_bytes:
        job.check_sample(blocks, expected_bytes)
    words, counts, total = job.tokens(blocks)
    tree, rows = job.shard(words, counts, total, rounds)
    job.count(tree, rows, words)
    result = job.write(tree, rows, words, counts, total)
    shutil.rmtree(scratch)
    return result


@dataclass
class _Job:
    order: int
    path: Path
    scratch: Path
    memory_bytes: int
    prune: Int64
    threads: int
    progress: Progress
    vocabulary: WordTable | None = None
    skip_symbols: bool = False
    spilled_bytes: int = 0

    def claim(self, print_of_job: str) -> None:
        """Keep what an earlier run of the same job left, remove what another job did."""
        mark = self.scratch / ".megahour-lm"
        if self.scratch.exists() and any(self.scratch.iterdir()):
            if not mark.exists():
                raise StageError(
                    "the scratch directory is not empty, and not of an earlier run", where=str(self.scratch),
                    remedy="give an empty or a new directory",
                )  # fmt: skip
            if mark.read_text() != print_of_job:
                shutil.rmtree(self.scratch)
        self.scratch.mkdir(parents=True, exist_ok=True)
        mark.write_text(print_of_job)

    def check_sample(self, blocks: Blocks, expected_bytes: int) -> None:
        """Raises StageError when a sample says that the whole will not fit on the disks."""
        for block in blocks():
            table, tokens = WordTable(), np.empty(block.end + 1, np.int32)
            count, _ = encode(block.text, block.end, table, tokens)
            total = expected_bytes * count // max(block.end, 1)
            self._check(tokens[:count], np.diff(table.starts[: len(table) + 1]), total)
            return

    def _check(self, sample: Int32, lengths: Int32 | Int64, total: int) -> Need:
        need = need_of(sample, lengths, total, self.order)
        held = sum(file.stat().st_size for file in self.scratch.iterdir())
        check_disk(need, self.order, self.scratch, self.path.parent, held)
        return need

    def tokens(self, blocks: Blocks) -> tuple[Text, Int64, int]:
        """The text as numbers in a file, its vocabulary, and how often each word ends a history."""
        found = number_text(blocks, self.scratch, self.vocabulary, self.skip_symbols, self.progress)
        text = Text.of(self.order, self.prune, found.arena, found.starts)
        sample = np.fromfile(found.tokens, np.int32, SAMPLE, offset=4 * LEAD)
        self._check(sample, text.lengths, found.total)
        return text, found.counts, found.total

    def shard(self, text: Text, counts: Int64, total: int, rounds: int) -> tuple[ShardTree, RowFiles]:
        """Rows on disk, by shard."""
        smallest = max(BUCKET, total >> 14)
        edges = buckets(counts, smallest)
        tree = ShardTree(counts, edges, self._limit(text, total, smallest), self.order)
        rows = RowFiles(self.scratch, tree)
        words = _Spelling(text)
        check_rounds(tree, rounds or self.order, words)
        self._phase("round1", lambda: rows.first_round(self.scratch / "tokens", total))
        while left := tree.left_over():
            grown = self.scratch / f"grown{tree.rounds}.npz"
            if not grown.exists():
                found: dict[str, npt.NDArray[Any]] = {}
                for split in left:
                    listed, each = rows.grow(split, tree.rounds)
                    found |= {f"words{split.number}": listed, f"counts{split.number}": each[listed]}
                save(grown, found)
            number = tree.rounds + 1
            tree.next_round()
            with np.load(grown) as saved:
                for split in left:
                    counts_of = np.zeros(text.size, np.int64)
                    counts_of[saved[f"words{split.number}"]] = saved[f"counts{split.number}"]
                    tree.grow(split, saved[f"words{split.number}"], counts_of)
            check_rounds(tree, rounds or self.order, words)
            self._phase(f"round{number}", partial(rows.later_round, left, number))
            rows.drop_left(number - 1)
        self._spilled()
        return tree, rows

    def _limit(self, text: Text, total: int, smallest: int) -> int:
        """Rows of a shard that memory allows."""
        held = FIXED_BYTES + text.spelling.arena.nbytes + text.size * (8 + 16 + 4 + 8 + 8 + 8 * SUMS + 8)
        for_thread = text.size * (4 * (self.order + 3) + 8) + CHUNK * row_bytes(self.order)
        each = (self.memory_bytes - held) // self.threads - for_thread
        room = bytes_of_position(self.order)
        if each < smallest * room:
            least = held + self.threads * (for_thread + smallest * room)
            raise StageError(
                f"memory of {self.memory_bytes / 1e6:.0f} MB is too little for {total} tokens, {text.size} words and "
                f"{self.threads} threads: the least is {least / 1e6:.0f} MB",
                remedy="allow more memory, or fewer threads",
            )
        return int(min(each // room, max(LARGEST, total // SHARDS)))

    def count(self, tree: ShardTree, rows: RowFiles, text: Text) -> None:
        """Count every shard that has not been counted."""
        files = CountFiles(self.scratch)
        pending = [shard for shard in tree.shards if not files.done(shard.number)]

        def count(worker: ShardWorker, number: int) -> None:
            files.write(number, worker.count(tree.shards[number], rows.read(number)))

        for done, _ in enumerate(self._each(text, tree, [shard.number for shard in pending], count), 1):
            self.progress("count", len(tree.shards) - len(pending) + done, len(tree.shards))
        self._spilled()

    def write(self, tree: ShardTree, rows: RowFiles, text: Text, counts: Int64, total: int) -> Bounded:
        """Discounts, then every line at its place in the file."""
        files = CountFiles(self.scratch)
        totals = Totals.of(tree, text, (files.read(shard.number) for shard in tree.shards), files.share)
        smoothing, found, fallbacks = totals.smoothing()
        shared = smooth_all(tree, totals.closed, smoothing)
        sizes = totals.sizes()
        unfinished = self.path.with_name(f".{self.path.name}.{self.scratch.name}.part")
        resumed = unfinished.exists() and (self.scratch / "begun").exists()
        for mark in self.scratch.glob("written*") if not resumed else ():
            mark.unlink()
        with unfinished.open("r+b" if resumed else "w+b") as file:
            head = _header(sizes) + b"\n\\1-grams:\n" + unigram_lines(text, counts, totals.contexts, smoothing)
            os.pwrite(file.fileno(), head, 0)
            places = self._places(tree, totals.tallies, len(head), file.fileno())
            (self.scratch / "begun").touch()
            self._write_targets(tree, rows, text, totals, smoothing, shared, places, file.fileno())
        unfinished.replace(self.path)
        shared_ngrams = sum(len(closed.grams) for closed in totals.closed)
        return Bounded(
            sizes, found, fallbacks, total - LEAD, text.size, tree.report(), shared_ngrams, self.spilled_bytes
        )

    def _places(self, tree: ShardTree, tallies: Int64, size: int, file: int) -> Int64:
        """(targets, order + 1) where the lines of each target, shards before splits, go; writes what is between."""
        places = np.zeros((len(tallies), self.order + 1), np.int64)
        shards = len(tree.shards)
        for k in range(2, self.order + 1):
            size += os.pwrite(file, b"\n\\%d-grams:\n" % k, size)
            for target in tree.printed():
                at = target if target >= 0 else shards + ~target
                places[at, k] = size
                tally = tallies[at, k]
                size += line_bytes(k, k == self.order, int(tally[KEPT]), int(tally[CHARACTERS]))
        os.pwrite(file, b"\n\\end\\\n", size)
        return places

    def _write_targets(
        self, tree: ShardTree, rows: RowFiles, text: Text, totals: Totals, smoothing: Smoothing,
        shared: list[Shared], places: Int64, file: int,
    ) -> None:  # fmt: skip
        files, shards = CountFiles(self.scratch), len(tree.shards)

        def write(worker: ShardWorker, target: int) -> None:
            names = np.concatenate([files.names(target, range(shards)), totals.names_of(target)])
            keys, values = name_table(names, smoothing.discounts)
            place = places[target].copy()
            if target < shards:
                shard = tree.shards[target]
                own = shared[shard.parent] if shard.floor else None
                pieces: Iterable[tuple[int, int, npt.NDArray[np.uint8]]]
                pieces = worker.smooth(shard, rows.read(target), smoothing, own, keys, values)
            else:
                number = target - shards
                closed = totals.closed[number]
                pieces = [
                    split_lines(text, tree.splits[number], closed, shared[number], smoothing.discounts, keys, values)
                ]
            for k, _, lines in pieces:
                place[k] += os.pwrite(file, lines.data, int(place[k]))
            (self.scratch / f"written{target:06d}").touch()

        pending = [t for t in range(shards + len(tree.splits)) if not (self.scratch / f"written{t:06d}").exists()]
        for done, _ in enumerate(self._each(text, tree, pending, write), 1):
            self.progress("write", shards + len(tree.splits) - len(pending) + done, shards + len(tree.splits))

    def _each(
        self, text: Text, tree: ShardTree, numbers: list[int], call: Callable[[ShardWorker, int], R]
    ) -> Iterator[R]:
        """call(worker, number) of each, by the job's threads, each with a worker of its own."""
        if self.threads == 1:
            worker = ShardWorker(text, tree)
            yield from (call(worker, number) for number in numbers)
            return
        own = threading.local()

        def in_thread(number: int) -> R:
            if not hasattr(own, "worker"):
                own.worker = ShardWorker(text, tree)
            return call(own.worker, number)

        with ThreadPoolExecutor(self.threads) as pool:
            yield from pool.map(in_thread, numbers)

    def _phase(self, name: str, work: Callable[[], None]) -> None:
        mark = self.scratch / f"{name}.done"
        if not mark.exists():
            work()
            mark.touch()
        self.progress(name, 1, 1)

    def _spilled(self) -> None:
        self.spilled_bytes = max(self.spilled_bytes, sum(file.stat().st_size for file in self.scratch.iterdir()))


class _Spelling(list[str]):
    """Words by number, spelled when they are asked for."""

    def __init__(self, text: Text) -> None:
        super().__init__()
        self._text = text

    def __getitem__(self, number: int) -> str:  # type: ignore[override]
        arena, starts = self._text.spelling.arena, self._text.spelling.starts
        return arena[starts[number] : starts[number + 1]].tobytes().decode("utf-8", "replace")


def _header(sizes: list[int]) -> bytes:
    return b"\\data\\\n" + b"".join(b"ngram %d=%d\n" % entry for entry in enumerate(sizes, 1))
