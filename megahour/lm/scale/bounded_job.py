"""The phases of `bounded.estimate_bounded`, each of which finds what an earlier run has done."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from megahour.core.errors import StageError
from megahour.core.records import fingerprint
from megahour.lm.estimate.discounts import USUAL, Discount, KneserNey
from megahour.lm.estimate.estimate import Progress
from megahour.lm.estimate.history import buckets
from megahour.lm.scale.memory_rows import BYTES_OF_TOKEN, MemoryRows
from megahour.lm.scale.resources import SAMPLE, Need, check_disk, need_of, room_for
from megahour.lm.scale.row_files import LEAD, RowFiles
from megahour.lm.scale.shard_files import CountFiles, SweptFiles
from megahour.lm.scale.shard_lines import ModelFile, name_table
from megahour.lm.scale.shard_parts import Rows
from megahour.lm.scale.shard_types import Shared, Smoothing, Text
from megahour.lm.scale.shard_work import ShardWorker
from megahour.lm.scale.shards import ShardTree, check_rounds
from megahour.lm.scale.shared_context import smooth_all, split_lines
from megahour.lm.scale.token_file import Blocks, number_text, save
from megahour.lm.scale.totals import Totals, unigram_lines
from megahour.lm.text.arrays import Int64
from megahour.lm.text.cut import WordCut
from megahour.lm.text.tokenise import WordTable, encode

R = TypeVar("R")


def foreseen(blocks: Blocks, expected_bytes: int, order: int, memory_bytes: int) -> Need:
    """Memory and disk that a text of `expected_bytes` will take, from its first block."""
    for block in blocks():
        table, tokens = WordTable(), np.empty(block.end + 1, np.int32)
        count, _ = encode(block.text, block.end, table, tokens)
        total = expected_bytes * count // max(block.end, 1)
        lengths = np.diff(table.starts[: len(table) + 1])
        return need_of(tokens[:count], lengths, total, order, in_memory=BYTES_OF_TOKEN * total < memory_bytes)
    return Need(0, 0, [])


@dataclass(frozen=True)
class NumberedText:
    """text: the vocabulary as shards know it. counts (V,): how often each word ends a history. total: tokens of the
    file `tokens`, LEAD BOUNDARYs included."""

    text: Text
    counts: Int64
    total: int
    tokens: Path


@dataclass
class BoundedJob:
    order: int
    path: Path
    scratch: ScratchFolder
    memory_bytes: int
    cutoffs: Int64
    threads: int
    progress: Progress
    how: KneserNey = USUAL

    def check_sample(self, blocks: Blocks, expected_bytes: int) -> None:
        """Raises StageError when a sample says that the whole will not fit on the disks."""
        need = foreseen(blocks, expected_bytes, self.order, self.memory_bytes)
        check_disk(need, self.order, self.scratch.folder, self.path.parent, self.scratch.size())

    def tokens(self, blocks: Blocks, vocabulary: WordTable | None, cut: WordCut, skip_symbols: bool) -> NumberedText:
        """The text as numbers in a file, its vocabulary, and how often each word ends a history."""
        result = number_text(blocks, self.scratch.folder, vocabulary, cut, skip_symbols, self.progress)
        text = Text.of(self.order, self.cutoffs, result.arena, result.starts)
        sample = np.fromfile(result.tokens, np.int32, SAMPLE, offset=4 * LEAD)
        # Whether positions fit is decided when the vocabulary is known; it is a small part of what they take.
        in_memory = BYTES_OF_TOKEN * result.total < self.memory_bytes
        need = need_of(sample, text.lengths, result.total, self.order, in_memory=in_memory)
        check_disk(need, self.order, self.scratch.folder, self.path.parent, self.scratch.size())
        return NumberedText(text, result.counts, result.total, result.tokens)

    def shard(self, corpus: NumberedText, rounds: int, shard_rows: int, on_disk: bool) -> tuple[ShardTree, Rows, bool]:
        """Positions by shard, and whether they are in memory. shard_rows, on_disk: of `memory_need.room_for`."""
        if self.order == 1:  # there are no histories to shard by
            tree = ShardTree(corpus.counts, np.zeros(1, np.int64), 1, 1)
            return tree, RowFiles(self.scratch.folder, tree), True
        room = room_for(
            corpus.text, corpus.total, self.memory_bytes, self.threads, shard_rows=shard_rows, on_disk=on_disk
        )
        tree = ShardTree(corpus.counts, buckets(corpus.counts, room.smallest), room.shard_rows, self.order)
        check_rounds(tree, rounds or self.order, words := _Spelling(corpus.text))
        if room.in_memory:
            return tree, self._rows_in_memory(tree, corpus, rounds, words), True
        rows = RowFiles(self.scratch.folder, tree)
        self._phase("round1", lambda: rows.first_round(corpus.tokens, corpus.total))
        while left := tree.left_over():
            grown = self.scratch.folder / f"grown{tree.rounds}.npz"
            if not grown.exists():
                result: dict[str, npt.NDArray[Any]] = {}
                for split in left:
                    listed, each = rows.grow(split, tree.rounds)
                    result |= {f"words{split.number}": listed, f"counts{split.number}": each[listed]}
                save(grown, result)
            number = tree.rounds + 1
            tree.next_round()
            with np.load(grown) as saved:
                for split in left:
                    counts_of = np.zeros(corpus.text.size, np.int64)
                    counts_of[saved[f"words{split.number}"]] = saved[f"counts{split.number}"]
                    tree.grow(split, saved[f"words{split.number}"], counts_of)
            check_rounds(tree, rounds or self.order, words)
            self._phase(f"round{number}", partial(rows.later_round, left, number))
            rows.drop_left(number - 1)
        self.scratch.size()
        return tree, rows, False

    def _rows_in_memory(self, tree: ShardTree, corpus: NumberedText, rounds: int, words: list[str]) -> MemoryRows:
        rows = MemoryRows(tree, np.fromfile(corpus.tokens, np.int32, corpus.total), corpus.counts)
        self.progress("round1", 1, 1)
        while left := tree.left_over():
            result = [rows.grow(split) for split in left]
            tree.next_round()
            for split, (listed, each) in zip(left, result, strict=True):
                tree.grow(split, listed, each)
            check_rounds(tree, rounds or self.order, words)
            rows.later_round(left)
            self.progress(f"round{tree.rounds}", 1, 1)
        return rows

    def count(self, tree: ShardTree, rows: Rows, corpus: NumberedText) -> None:
        """Count every shard that has not been counted."""
        files = CountFiles(self.scratch.folder)
        pending = [shard.number for shard in tree.shards if not files.done(shard.number)]

        def count(worker: ShardWorker, number: int) -> None:
            files.write(number, worker.count(tree.shards[number], rows))

        for done, _ in enumerate(self._each(corpus.text, tree, pending, count), 1):
            self.progress("count", len(tree.shards) - len(pending) + done, len(tree.shards))
        self.scratch.size()
        if isinstance(rows, RowFiles):
            rows.drop()

    def write(self, tree: ShardTree, rows: Rows, corpus: NumberedText) -> tuple[Totals, list[Discount], dict[int, str]]:
        """Discounts, then every line at its place in the file."""
        files, text, folder = CountFiles(self.scratch.folder), corpus.text, self.scratch.folder
        counted = (files.read(shard.number) for shard in tree.shards)
        totals = Totals.of(tree, text, counted, files.share, corpus.counts)
        smoothing, discounts, fallbacks = totals.smoothing(self.how)
        shared = smooth_all(tree, totals.closed, smoothing)
        unfinished = self.path.with_name(f".{folder.name}.{fingerprint(str(folder.absolute()))[:8]}.part")
        resumed = unfinished.exists() and (folder / "begun").exists()
        for mark in folder.glob("written*") if not resumed else ():
            mark.unlink()
        file = ModelFile(unfinished, resumed=resumed)
        unigrams = unigram_lines(text, corpus.counts, totals.contexts, smoothing)
        file.begin(self.order, tree, totals.tallies, totals.sizes(), unigrams)
        (folder / "begun").touch()
        self._write_targets(tree, rows, text, totals, smoothing, shared, file)
        file.close()
        unfinished.replace(self.path)
        return totals, discounts, fallbacks

    def _write_targets(
        self, tree: ShardTree, rows: Rows, text: Text, totals: Totals, smoothing: Smoothing, shared: list[Shared],
        file: ModelFile,
    ) -> None:  # fmt: skip
        files, shards, folder = CountFiles(self.scratch.folder), len(tree.shards), self.scratch.folder

        def write(worker: ShardWorker, target: int) -> None:
            names = files.names(target, range(shards), totals.names_of(target))
            table, places = name_table(names, smoothing.discounts), file.places(target)
            if target < shards:
                shard = tree.shards[target]
                own = shared[shard.parent] if shard.floor else None
                file.write(worker.smooth(shard, rows, smoothing, own, table, places))
            else:
                split, closed = tree.splits[target - shards], totals.closed[target - shards]
                own = shared[split.number]
                file.write([split_lines(text, split, closed, own, smoothing.discounts, table, places)])
            (folder / f"written{target:06d}").touch()

        targets = shards + len(tree.splits)
        pending = [target for target in range(targets) if not (folder / f"written{target:06d}").exists()]
        for done, _ in enumerate(self._each(text, tree, pending, write), 1):
            self.progress("write", targets - len(pending) + done, targets)

    def _each(
        self, text: Text, tree: ShardTree, numbers: list[int], call: Callable[[ShardWorker, int], R]
    ) -> Iterator[R]:
        """call(worker, number) of each, by the job's threads, each with a worker of its own."""
        swept = SweptFiles(self.scratch.folder, self.order)
        if self.threads == 1:
            worker = ShardWorker(text, tree, swept)
            yield from (call(worker, number) for number in numbers)
            return
        own = threading.local()

        def in_thread(number: int) -> R:
            if not hasattr(own, "worker"):
                own.worker = ShardWorker(text, tree, swept)
            return call(own.worker, number)

        with ThreadPoolExecutor(self.threads) as pool:
            yield from pool.map(in_thread, numbers)

    def _phase(self, name: str, work: Callable[[], None]) -> None:
        self.scratch.phase(name, work)
        self.progress(name, 1, 1)


class _Spelling(list[str]):
    """Words by number, spelled when they are asked for."""

    def __init__(self, text: Text) -> None:
        super().__init__()
        self._text = text

    def __getitem__(self, number: int) -> str:  # type: ignore[override]
        arena, starts = self._text.spelling.arena, self._text.spelling.starts
        return arena[starts[number] : starts[number + 1]].tobytes().decode("utf-8", "replace")


class ScratchFolder:
    """A directory, and the largest size in bytes that its files were seen to have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.most_bytes = 0

    def claim(self, print_of_job: str) -> None:
        """Keep what an earlier run of the same job left, remove what another job did.

        Raises StageError: the directory has other files.
        """
        mark = self.folder / ".megahour-lm"
        if self.folder.exists() and any(self.folder.iterdir()):
            if not mark.exists():
                raise StageError(
                    "the scratch directory is not empty, and not of an earlier run", where=str(self.folder),
                    remedy="give an empty or a new directory",
                )  # fmt: skip
            if mark.read_text() != print_of_job:
                shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(print_of_job)

    def phase(self, name: str, work: Callable[[], None]) -> None:
        """Do the work of a phase unless it has been done."""
        mark = self.folder / f"{name}.done"
        if not mark.exists():
            work()
            mark.touch()

    def size(self) -> int:
        """Bytes of the files now."""
        held = sum(file.stat().st_size for file in self.folder.iterdir())
        self.most_bytes = max(self.most_bytes, held)
        return held
