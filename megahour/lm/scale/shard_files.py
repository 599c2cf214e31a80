"""Temporary files of shards: their counts, and the data that the first pass keeps for the second."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.lm.estimate.kept_ngrams import Kept
from megahour.lm.estimate.sweep import TALLIES
from megahour.lm.scale.shard_types import NAME, Counted
from megahour.lm.scale.streams import StreamReader, StreamWriter, short_file
from megahour.lm.text.arrays import Int32, Int64, Records

EDGES_BYTES = 64 << 20


class CountFiles:
    """The files `names000000` and `count000000.npz` of each shard in a directory; the second is written last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._edges: tuple[int, Int64] = -1, np.empty((0, 0), np.int64)  # the first target of a block, and its edges

    def done(self, shard: int) -> bool:
        """Whether a shard has been counted."""
        return self._count(shard).exists()

    def write(self, shard: int, counted: Counted) -> None:
        """Write the counts of a shard. They are visible when they are complete."""
        self._names(shard).write_bytes(counted.names.view(np.uint8).data)
        rest = {field.name: getattr(counted, field.name) for field in fields(counted) if field.name != "names"}
        scratch = self._count(shard).with_suffix(".part")
        with scratch.open("wb") as file:
            np.savez(file, **rest)
        scratch.replace(self._count(shard))

    def read(self, shard: int) -> Counted:
        """Read the counts of a shard, without the names."""
        with np.load(self._count(shard)) as saved:
            return Counted(names=np.empty(0, NAME), **{name: saved[name] for name in saved.files})

    def share(self, shard: int) -> Records:
        """Read a shard's n-grams of the context that it shares with others."""
        with np.load(self._count(shard)) as saved:
            result: Records = saved["share"]
            return result

    def names(self, target: int, shards: Sequence[int], more: Records) -> Records:
        """Names that a target prints, from the files of shards, followed by `more`. Ask for targets in order, always
        of the same shards.

        Raises StageError: a file ends early.
        """
        places = [(shard, *ends) for shard, ends in zip(shards, self._edges_of(target, shards).tolist(), strict=True)]
        result = np.empty(sum(end - begin for _, begin, end in places) + len(more), NAME)
        at = 0
        for shard, begin, end in places:
            if end > begin:
                data = result[at : at + end - begin].view(np.uint8).data
                self._read(self._names(shard), NAME.itemsize * begin, data)
                at += end - begin
        result[at:] = more
        return result

    def _edges_of(self, target: int, shards: Sequence[int]) -> Int64:
        """(shards, 2): where a target's names begin and end in each file. Those of a block of targets are held: of
        16,384 shards, all would be 2 GB. Several threads may ask.
        """
        most = max(1, EDGES_BYTES // (8 * max(1, len(shards))))
        first = target - target % most
        held, edges = self._edges
        if held != first:
            own = []
            for shard in shards:
                with np.load(self._count(shard)) as saved:
                    own.append(saved["edges"][first : first + most + 1].copy())
            edges = np.array(own)
            self._edges = first, edges
        return edges[:, target - first : target - first + 2]

    @staticmethod
    def _read(path: Path, place: int, data: memoryview) -> None:
        file = os.open(path, os.O_RDONLY)
        try:
            while data:
                got = os.preadv(file, [data], place)
                if not got:
                    raise short_file(path)
                data, place = data[got:], place + got
        finally:
            os.close(file)

    def _count(self, shard: int) -> Path:
        return self._folder / f"count{shard:06d}.npz"

    def _names(self, shard: int) -> Path:
        return self._folder / f"names{shard:06d}"


class Swept(NamedTuple):
    """A swept partition: sorted windows (m, order), positions (m,), stored n-grams and contexts, tally (order + 1,
    TALLIES)."""

    windows: Int32
    positions: Int32 | Int64
    kept: Kept
    tally: Int64


Room = Callable[[int, npt.DTypeLike], tuple[Int32, "Int32 | Int64", Kept]]
"""room(positions, type of positions): arrays for windows, positions and n-grams, reused for the next partition."""


class SweptFiles:
    """The file `swept000000` of each shard in a directory, visible when it is complete."""

    def __init__(self, folder: Path, order: int) -> None:
        self._folder, self._order = folder, order

    def write(self, shard: int) -> SweptWriter:
        """A writer for the partitions of a shard."""
        return SweptWriter(self._path(shard))

    def read(self, shard: int, room: Room) -> Iterator[Swept]:
        """Read the partitions of a shard into the arrays of `room`.

        Raises StageError: the file ends early.
        """
        path = self._path(shard)
        head = np.empty(4 + (self._order + 1) * TALLIES, np.int64)
        with closing(StreamReader(path)) as file:
            while file.fill(head):
                m, wide, n, g = head[:4].tolist()
                windows, positions, most = room(m, np.int64 if wide else np.int32)
                kept = Kept(most.grams[:g], most.nodes[:n])
                for array in (windows, positions, *kept):
                    if array.size and not file.fill(array):
                        raise short_file(path)
                yield Swept(windows, positions, kept, head[4:].reshape(-1, TALLIES))

    def _path(self, shard: int) -> Path:
        return self._folder / f"swept{shard:06d}"


class SweptWriter(StreamWriter):
    """Takes the partitions of a shard in order. `close` makes the file visible."""

    def put_partition(self, swept: Swept) -> None:
        """Write a partition."""
        wide = swept.positions.dtype == np.int64
        sizes = [len(swept.positions), wide, len(swept.kept.nodes), len(swept.kept.grams)]
        for array in (np.concatenate([sizes, swept.tally.reshape(-1)]), swept.windows, swept.positions, *swept.kept):
            self.put(array)
