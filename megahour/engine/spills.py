"""Spill files of the local engine's exchange: they carry batches from split tasks to merges.

A spill file holds the batches of one or more split tasks, indexed by partition:

    blocks …                      Arrow IPC streams of one batch each
    entries  int64[n, 3]          (partition, offset, bytes), by partition, then in the order of (task, yielded)
    n        int64

Each split task writes one. If every merge read its blocks from all of them, S tasks and P partitions would open S · P
files. If that is too many, files are gathered first: runs of `TOGETHER` files become one file each, until `TOGETHER`
are left, and these become one file per worker, with a run of the partitions. Each merge then opens a single file.
"""

from __future__ import annotations

import os
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa

from megahour.core.surroundings import explaining
from megahour.engine.base import Call
from megahour.engine.blocks import blocks_of, decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOGETHER = 64  # files that one task has open
FEW_OPENS = 1024  # by merges, below which gathering does not pay
FEW_ENTRIES = 1024  # read whole rather than searched
WORD = 8  # bytes of an int64
FIRST = ".from-"  # in a file's name, before its first partition


def spill_path(folder: Path, task: int) -> Path:
    return folder / f"{task:06d}.spill"


def spill(split: Call, folder: str, partitions: int, task: int, item: Any) -> None:
    """Worker side of a local exchange, map half: write one split task's spill file.

    The file is renamed from a unique temporary name, so a killed attempt leaves nothing that a merge would read, and a
    second attempt writes the same file again.
    """
    _write(spill_path(Path(folder), task), blocks_of(split, item, partitions))


@dataclass(frozen=True)
class Gathering:
    """Merges spill files into one, `target`, with the partitions `first` to `stop` - 1."""

    sources: tuple[Path, ...]
    target: Path
    first: int
    stop: int


def levels(files: Sequence[Path], partitions: int, workers: int) -> Iterator[list[Gathering]]:
    """Levels of gatherings, each reading the files of the level before; none if merges open few files."""
    if len(files) * partitions <= FEW_OPENS:
        return
    number = 0
    while len(files) > TOGETHER:
        runs = [tuple(files[start : start + TOGETHER]) for start in range(0, len(files), TOGETHER)]
        folder = files[0].parent
        level = [Gathering(run, folder / f"{number}-{i:06d}.spill", 0, partitions) for i, run in enumerate(runs)]
        yield level
        files, number = [gathering.target for gathering in level], number + 1
    count = min(workers, partitions)
    bounds = [i * partitions // count for i in range(count + 1)]
    yield [
        Gathering(tuple(files), files[0].parent / f"last{FIRST}{first:09d}.spill", first, stop)
        for first, stop in pairwise(bounds)
    ]


def gather(gathering: Gathering) -> None:
    """Worker side: write one gathering's target. Its sources stay, in case of another attempt."""
    with ExitStack() as stack:
        files = [stack.enter_context(source.open("rb")) for source in gathering.sources]
        entries = [_entries(file, gathering.first, gathering.stop) for file in files]
        _write(gathering.target, _by_partition(files, entries))


def remove_gathered(level: Sequence[Gathering], at: int) -> None:
    """Remove the sources of a finished gathering, unless others of its level need them."""
    if len(level) == 1 or level[0].sources != level[-1].sources:
        for source in level[at].sources:
            source.unlink(missing_ok=True)


def merge_spilled(merge: Call, files: Sequence[Path], partition: int) -> Any:
    """Worker side of a local exchange, reduce half: merge one partition from the files that may contain it."""
    if files and FIRST in files[0].name:
        firsts = [int(file.stem.partition(FIRST)[2]) for file in files]
        files = [files[bisect_right(firsts, partition) - 1]]
    return merge(partition, (batch for file in files for batch in spilled(file, partition)))


def spilled(path: Path, partition: int) -> Iterator[pa.RecordBatch]:
    """Batches of one partition in a spill file, read one at a time."""
    with path.open("rb") as file:
        for _, offset, size in _entries(file, partition, partition + 1).tolist():
            file.seek(offset)
            yield decode(file.read(size))


def _by_partition(files: Sequence[BinaryIO], entries: Sequence[NDArray[np.int64]]) -> Iterator[tuple[int, bytes]]:
    """(partition, block) of several files, by partition and then by file."""
    order = np.concatenate([np.full(len(own), at) for at, own in enumerate(entries)])
    together = np.concatenate(entries)
    for entry in np.argsort(together[:, 0], kind="stable").tolist():
        partition, offset, size = together[entry].tolist()
        file = files[order[entry]]
        file.seek(offset)
        yield partition, file.read(size)


def _write(target: Path, blocks: Iterable[tuple[int, bytes]]) -> None:
    scratch = target.with_suffix(f".{uuid.uuid4().hex}.tmp")
    with explaining(str(target.parent), str(target.parent)), scratch.open("wb") as file:
        owners, sizes = [], []
        for partition, block in blocks:
            file.write(block)
            owners.append(partition)
            sizes.append(len(block))
        _write_index(file, np.array(owners, np.int64), np.array(sizes, np.int64))
    scratch.replace(target)


def _write_index(file: BinaryIO, owners: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
    order = np.argsort(owners, kind="stable")
    offsets = np.cumsum(sizes) - sizes
    entries = np.stack([owners[order], offsets[order], sizes[order]], axis=1)
    for part in (entries, np.array([len(owners)], np.int64)):
        file.write(part.astype("<i8").tobytes())


def _entries(file: BinaryIO, first: int, stop: int) -> NDArray[np.int64]:
    """(n, 3) entries of the partitions `first` to `stop` - 1."""
    end = file.seek(-WORD, os.SEEK_END)
    (count,) = _words(file, end, 1).tolist()
    start = end - 3 * WORD * count
    if count <= FEW_ENTRIES:
        entries = _words(file, start, 3 * count).reshape(-1, 3)
        return entries[slice(*np.searchsorted(entries[:, 0], [first, stop]).tolist())]

    def first_entry_of(partition: int) -> int:
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if _words(file, start + 3 * WORD * middle, 1)[0] < partition:
                low = middle + 1
            else:
                high = middle
        return low

    low, high = first_entry_of(first), first_entry_of(stop)
    return _words(file, start + 3 * WORD * low, 3 * (high - low)).reshape(-1, 3)


def _words(file: BinaryIO, offset: int, count: int) -> NDArray[np.int64]:
    file.seek(offset)
    return np.frombuffer(file.read(WORD * count), "<i8")
