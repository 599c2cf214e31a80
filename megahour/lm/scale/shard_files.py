"""What counting found, on disk: a shard's `Counted`, whose names each target reads its own piece of."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import numpy as np

from megahour.lm.estimate.history import Int64
from megahour.lm.scale.shard_types import NAME, Counted, Records
from megahour.lm.scale.streams import short_file


class CountFiles:
    """`count000000.npz`, written last, and `names000000` of each shard in a directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._edges: dict[int, Int64] = {}

    def done(self, shard: int) -> bool:
        """Whether a shard has been counted."""
        return self._count(shard).exists()

    def write(self, shard: int, counted: Counted) -> None:
        """Keep what was found; a reader sees all of it or nothing."""
        self._names(shard).write_bytes(counted.names.view(np.uint8).data)
        rest = {field.name: getattr(counted, field.name) for field in fields(counted) if field.name != "names"}
        scratch = self._count(shard).with_suffix(".part")
        with scratch.open("wb") as file:
            np.savez(file, **rest)
        scratch.replace(self._count(shard))

    def read(self, shard: int) -> Counted:
        """All but the names."""
        with np.load(self._count(shard)) as saved:
            return Counted(names=np.empty(0, NAME), **{name: saved[name] for name in saved.files})

    def share(self, shard: int) -> Records:
        """The shard's n-grams of the context that it shares with others."""
        with np.load(self._count(shard)) as saved:
            found: Records = saved["share"]
            return found

    def names(self, target: int, shards: Iterable[int], more: Records) -> Records:
        """Names that a target prints, from all shards, and `more` behind them.

        Raises StageError: a file ends early.
        """
        places = [(shard, *self._edges_of(shard)[target : target + 2].tolist()) for shard in shards]
        found = np.empty(sum(end - begin for _, begin, end in places) + len(more), NAME)
        at = 0
        for shard, begin, end in places:
            if end > begin:
                data = found[at : at + end - begin].view(np.uint8).data
                self._read(self._names(shard), NAME.itemsize * begin, data)
                at += end - begin
        found[at:] = more
        return found

    def _edges_of(self, shard: int) -> Int64:
        if shard not in self._edges:
            with np.load(self._count(shard)) as saved:
                self._edges[shard] = saved["edges"]
        return self._edges[shard]

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
