"""The phases of `bounded.estimate_bounded`. Each continues where an earlier run of the same job stopped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megahour.core.errors import StageError
from megahour.core.records import fingerprint
from megahour.lm.arpa.read import Progress
from megahour.lm.estimate.discounts import USUAL, Discount, KneserNey
from megahour.lm.estimate.history import buckets
from megahour.lm.scale.memory_rows import BYTES_OF_TOKEN, MemoryRows
from megahour.lm.scale.resources import SAMPLE, Need, Room, check_disk, need_of, room_for, room_of_rows
from megahour.lm.scale.row_files import LEAD, RowFiles
from megahour.lm.scale.shard_files import CountFiles, SweptFiles
from megahour.lm.scale.shard_lines import LineBlock
from megahour.lm.scale.shard_parts import Rows
from megahour.lm.scale.shard_types import Text
from megahour.lm.scale.shard_work import ShardWorker
from megahour.lm.scale.shards import ShardTree
from megahour.lm.scale.shared_context import smooth_all
from megahour.lm.scale.token_file import Blocks, NumberedText, number_text, save
from megahour.lm.scale.totals import Totals, unigram_lines
from megahour.lm.scale.whole_file import each, write_whole
from megahour.lm.text.arrays import Int64
from megahour.lm.text.cut import WordCut
from megahour.lm.text.tokenise import WordTable, encode


def foreseen(blocks: Blocks, expected_bytes: int, order: int, memory_bytes: int) -> Need:
    """Estimate the memory and disk that a text of `expected_bytes` needs from its first block."""
    for block in blocks():
        table, tokens = WordTable(), np.empty(block.end + 1, np.int32)
        count, _ = encode(block.text, block.end, table, tokens)
        total = expected_bytes * count // max(block.end, 1)
        lengths = np.diff(table.starts[: len(table) + 1])
        return need_of(tokens[:count], lengths, total, order, in_memory=BYTES_OF_TOKEN * total < memory_bytes)
    return Need(0, 0, [])


@dataclass
class BoundedJob:
    """The phases of one estimation. Call `number`, `shard`, `count` and `write` in this order.

    memory_bytes, shard_rows, on_disk: see `estimate_bounded`. corpus, text: the numbered text, after `number`. tree,
    rows: shards and their positions, after `shard`.
    """

    order: int
    path: Path
    scratch: ScratchFolder
    memory_bytes: int
    cutoffs: Int64
    threads: int
    progress: Progress
    how: KneserNey = USUAL
    shard_rows: int = 0
    on_disk: bool = False
    corpus: NumberedText = field(init=False)
    text: Text = field(init=False)
    tree: ShardTree = field(init=False)
    rows: Rows = field(init=False)

    def check_sample(self, blocks: Blocks, expected_bytes: int) -> None:
        """Raises StageError: by a sample of the text, the job will not fit on the disks."""
        self._check_disk(foreseen(blocks, expected_bytes, self.order, self.memory_bytes))

    def number(self, blocks: Blocks, vocabulary: WordTable | None, cut: WordCut, skip_symbols: bool) -> None:
        """Write the text as word numbers. Raises StageError: the job will not fit on the disks."""
        corpus = self.corpus = number_text(blocks, self.scratch.folder, vocabulary, cut, skip_symbols, self.progress)
        self.text = Text.of(self.order, self.cutoffs, corpus.arena, corpus.starts)
        sample = np.fromfile(corpus.tokens, np.int32, SAMPLE, offset=4 * LEAD)
        # An estimate: the vocabulary's share of memory is small. `_room` decides where positions are held.
        in_memory = BYTES_OF_TOKEN * corpus.total < self.memory_bytes if self.memory_bytes else self._room().in_memory
        self._check_disk(need_of(sample, self.text.lengths, corpus.total, self.order, in_memory=in_memory))

    def shard(self) -> bool:
        """Distribute the positions to shards; return whether they are in memory.

        Raises StageError: memory is too small.
        """
        corpus, order = self.corpus, self.order
        if order == 1:  # there are no histories to shard by
            self.tree = ShardTree(corpus.counts, np.zeros(1, np.int64), 1, 1)
            self.rows = RowFiles(self.scratch.folder, self.tree)
            return True
        room = self._room()
        tree = self.tree = ShardTree(corpus.counts, buckets(corpus.counts, room.smallest), room.shard_rows, order)
        if room.in_memory:
            self.rows = self._rows_in_memory()
            return True
        rows = self.rows = RowFiles(self.scratch.folder, tree)
        self._phase("round1", lambda: rows.first_round(corpus.tokens, corpus.total))
        while left := tree.left_over():
            grown = self.scratch.folder / f"grown{tree.rounds}.npz"
            if not grown.exists():
                result: dict[str, npt.NDArray[Any]] = {}
                for split in left:
                    listed, counted = rows.grow(split, tree.rounds)
                    result |= {f"words{split.number}": listed, f"counts{split.number}": counted[listed]}
                save(grown, result)
            tree.next_round()
            with np.load(grown) as saved:
                for split in left:
                    counts = np.zeros(self.text.size, np.int64)
                    counts[saved[f"words{split.number}"]] = saved[f"counts{split.number}"]
                    tree.grow(split, saved[f"words{split.number}"], counts)
            self._phase(f"round{tree.rounds}", partial(rows.later_round, left, tree.rounds))
            rows.drop_left(tree.rounds - 1)
        self.scratch.size()
        return False

    def _room(self) -> Room:
        total, rows, on_disk = self.corpus.total, self.shard_rows, self.on_disk
        if not self.memory_bytes:
            return room_of_rows(total, self.order, rows, on_disk)
        return room_for(self.text, total, self.memory_bytes, self.threads, shard_rows=rows, on_disk=on_disk)

    def _rows_in_memory(self) -> MemoryRows:
        tree, corpus = self.tree, self.corpus
        rows = MemoryRows(tree, np.fromfile(corpus.tokens, np.int32, corpus.total), corpus.counts)
        self.progress("round1", 1, 1)
        while left := tree.left_over():
            result = [rows.grow(split) for split in left]
            tree.next_round()
            for split, (listed, counts) in zip(left, result, strict=True):
                tree.grow(split, listed, counts)
            rows.later_round(left)
            self.progress(f"round{tree.rounds}", 1, 1)
        return rows

    def count(self) -> None:
        """Count every shard that an earlier run has not counted."""
        files, shards = CountFiles(self.scratch.folder), self.tree.shards

        def count(worker: ShardWorker, number: int) -> None:
            files.write(number, worker.count(shards[number], self.rows))

        missing = [shard.number for shard in shards if not files.done(shard.number)]
        for done, _ in enumerate(each(missing, self.threads, self._worker, count), len(shards) - len(missing) + 1):
            self.progress("count", done, len(shards))
        self.scratch.size()
        if isinstance(self.rows, RowFiles):
            self.rows.drop()

    def write(self) -> tuple[Totals, list[Discount], dict[int, str]]:
        """Compute the discounts and write the ARPA file, every line at its place."""
        files, text, folder, tree = CountFiles(self.scratch.folder), self.text, self.scratch.folder, self.tree
        counted = (files.read(shard.number) for shard in tree.shards)
        totals = Totals.of(tree, text, counted, files.share, self.corpus.counts)
        smoothing, discounts, fallbacks = totals.smoothing(self.how)
        shared = smooth_all(tree, totals.closed, smoothing)
        unfinished = self.path.with_name(f".{folder.name}.{fingerprint(str(folder.absolute()))[:8]}.part")
        unigrams = unigram_lines(text, self.corpus.counts, totals.contexts, smoothing)

        def lines(worker: ShardWorker, target: int, places: Sequence[int]) -> Iterator[LineBlock]:
            names = files.names(target, range(len(tree.shards)), totals.names_of(target))
            return worker.lines(target, self.rows, totals.closed, smoothing, shared, names, places)

        write_whole(
            unfinished, folder, tree, totals, unigrams, lines, threads=self.threads, new_worker=self._worker,
            progress=self.progress,
        )  # fmt: skip
        unfinished.replace(self.path)
        return totals, discounts, fallbacks

    def _worker(self) -> ShardWorker:
        return ShardWorker(self.text, self.tree, SweptFiles(self.scratch.folder, self.order))

    def _check_disk(self, need: Need) -> None:
        check_disk(need, self.order, self.scratch.folder, self.path.parent, self.scratch.size())

    def _phase(self, name: str, work: Callable[[], None]) -> None:
        self.scratch.phase(name, work)
        self.progress(name, 1, 1)


class ScratchFolder:
    """A directory. most_bytes: the largest total size of its files that `size` has seen."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._mark = folder, folder / ".megahour-lm"
        self.most_bytes = 0

    def claim(self, print_of_job: str) -> None:
        """Keep the files of an earlier run of the same job; remove those of another job.

        Raises StageError: the directory has other files.
        """
        if self.folder.exists() and any(self.folder.iterdir()):
            if not self._mark.exists():
                what, remedy = "the scratch directory has files of another program", "give an empty or a new directory"
                raise StageError(what, where=str(self.folder), remedy=remedy)
            if self._mark.read_text() != print_of_job:
                self.remove()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._mark.write_text(print_of_job)

    def remove(self) -> None:
        """Remove the folder. If we are killed meanwhile, it stays ours, and no job takes up its files."""
        self._mark.write_text("")
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path != self._mark:
                path.unlink()
        self._mark.unlink()
        self.folder.rmdir()

    def phase(self, name: str, work: Callable[[], None]) -> None:
        """Do the work of a phase unless it has been done."""
        mark = self.folder / f"{name}.done"
        if not mark.exists():
            work()
            mark.touch()

    def size(self) -> int:
        """Total size of the files now, in bytes."""
        held = sum(file.stat().st_size for file in self.folder.iterdir())
        self.most_bytes = max(self.most_bytes, held)
        return held
