"""What the first pass leaves for the second: a file a shard, with the n-grams and contexts of each of its partitions.

n-grams that pruning drops are not there: of all that follow a context remains its wildcard entry, one number (`kept`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.core.errors import StageError
from megahour.lm.estimate.history import Int64
from megahour.lm.estimate.kept import Kept
from megahour.lm.estimate.sweep import TALLIES, Store


class Swept(NamedTuple):
    """n-grams and contexts of a partition, and its tally (order + 1, TALLIES)."""

    kept: Kept
    tally: Int64


class SweptFiles:
    """`swept000000` of each shard in a directory, visible when whole."""

    def __init__(self, folder: Path, order: int) -> None:
        self._folder, self._order = folder, order

    def write(self, shard: int) -> SweptWriter:
        return SweptWriter(self._path(shard))

    def read(self, shard: int, room: Store) -> Iterator[Swept]:
        """Partition by partition; arrays are those of `room`, used again for the next.

        Raises StageError: the file ends early.
        """
        path = self._path(shard)
        head = np.empty(2 + (self._order + 1) * TALLIES, np.int64)
        with path.open("rb", buffering=0) as file:
            while _fill(file, head, path):
                n, g = head[:2].tolist()
                kept = Kept(room.grams[:g], room.nodes[:n], room.sums[:n])
                for array in kept:
                    if array.size and not _fill(file, array, path):
                        raise short_file(path)
                yield Swept(kept, head[2:].reshape(-1, TALLIES))

    def _path(self, shard: int) -> Path:
        return self._folder / f"swept{shard:06d}"


class SweptWriter:
    """Takes the partitions of a shard in order. `close` makes the file visible."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._scratch = path.with_name(f"{path.name}.part")
        self._file = self._scratch.open("wb", buffering=0)

    def put(self, kept: Kept, tally: Int64) -> None:
        head = np.concatenate([[len(kept.nodes), len(kept.grams)], tally.reshape(-1)])
        for array in (head, *kept):
            write_all(self._file.fileno(), array)

    def close(self) -> None:
        self._file.close()
        self._scratch.replace(self._path)


def write_all(file: int, array: npt.NDArray[Any]) -> None:
    """All of an array at a file's position: a single write takes 2 GB at most."""
    data = array.reshape(-1).view(np.uint8).data
    while data:
        data = data[os.write(file, data) :]


def _fill(file: Any, array: npt.NDArray[Any], path: Path) -> bool:
    """Read an array; False at the end of the file."""
    view, done = array.reshape(-1).view(np.uint8).data, 0
    while done < len(view):
        got = file.readinto(view[done:])
        if not got:
            if done:
                raise short_file(path)
            return False
        done += got
    return True


def short_file(path: Path) -> StageError:
    """To be raised."""
    return StageError("a scratch file ends early", where=str(path), remedy="remove the scratch directory and run again")
