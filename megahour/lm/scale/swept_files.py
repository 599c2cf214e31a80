"""What the first pass leaves for the second: a file a shard, with each partition's positions as they were sorted, and
the n-grams and contexts that were found in them.

n-grams that pruning drops are not there: of all that follow a context remains its wildcard entry, one number (`kept`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.lm.estimate.history import Int32, Int64
from megahour.lm.estimate.kept import Kept
from megahour.lm.estimate.sweep import TALLIES
from megahour.lm.scale.streams import StreamReader, StreamWriter, short_file


class Swept(NamedTuple):
    """A partition: sorted windows (m, order) and positions (m,), the n-grams and contexts that are kept of it, and its
    tally (order + 1, TALLIES)."""

    windows: Int32
    positions: Int32 | Int64
    kept: Kept
    tally: Int64


Room = Callable[[int, npt.DTypeLike], tuple[Int32, "Int32 | Int64", Kept]]
"""Windows, positions of a type, and what is kept of so many at most; used again for the next partition."""


class SweptFiles:
    """`swept000000` of each shard in a directory, visible when whole."""

    def __init__(self, folder: Path, order: int) -> None:
        self._folder, self._order = folder, order

    def write(self, shard: int) -> SweptWriter:
        return SweptWriter(self._path(shard))

    def read(self, shard: int, room: Room) -> Iterator[Swept]:
        """Partition by partition, in the arrays of `room`.

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


class SweptWriter:
    """Takes the partitions of a shard in order. `close` makes the file visible."""

    def __init__(self, path: Path) -> None:
        self._file = StreamWriter(path)

    def put(self, swept: Swept) -> None:
        wide = swept.positions.dtype == np.int64
        sizes = [len(swept.positions), wide, len(swept.kept.nodes), len(swept.kept.grams)]
        for array in (np.concatenate([sizes, swept.tally.reshape(-1)]), swept.windows, swept.positions, *swept.kept):
            self._file.put(array)

    def close(self) -> None:
        self._file.close()
