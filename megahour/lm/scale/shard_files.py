"""What counting found, on disk: a shard's `Counted`, whose names each target reads its own piece of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

from megahour.lm.scale.shard_work import NAME, Counted


class CountFiles:
    """`count000000.npz`, written last, and `names000000` of each shard in a directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._edges: dict[int, npt.NDArray[np.int64]] = {}

    def done(self, shard: int) -> bool:
        """Whether a shard has been counted."""
        return self._count(shard).exists()

    def write(self, shard: int, counted: Counted) -> None:
        """Keep what was found; a reader sees all of it or nothing."""
        counted.names.tofile(self._names(shard))
        rest = {field.name: getattr(counted, field.name) for field in fields(counted) if field.name != "names"}
        scratch = self._count(shard).with_suffix(".part")
        with scratch.open("wb") as file:
            np.savez(file, **rest)
        scratch.replace(self._count(shard))

    def read(self, shard: int) -> Counted:
        """All but the names."""
        with np.load(self._count(shard)) as saved:
            return Counted(names=np.empty(0, NAME), **{name: saved[name] for name in saved.files})

    def share(self, shard: int) -> npt.NDArray[np.void]:
        """The shard's n-grams of the context that it shares with others."""
        with np.load(self._count(shard)) as saved:
            found: npt.NDArray[np.void] = saved["share"]
            return found

    def names(self, target: int, shards: Iterable[int]) -> npt.NDArray[np.void]:
        """Names that a target prints, from all shards."""
        found = [np.empty(0, NAME)]
        for shard in shards:
            if shard not in self._edges:
                with np.load(self._count(shard)) as saved:
                    self._edges[shard] = saved["edges"]
            begin, end = self._edges[shard][target : target + 2].tolist()
            if end > begin:
                found.append(np.fromfile(self._names(shard), NAME, end - begin, offset=NAME.itemsize * begin))
        return np.concatenate(found)

    def _count(self, shard: int) -> Path:
        return self._folder / f"count{shard:06d}.npz"

    def _names(self, shard: int) -> Path:
        return self._folder / f"names{shard:06d}"
