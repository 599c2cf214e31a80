"""The ARPA file of a sharded model: every target's lines have their place before any are written."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from megahour.lm.arpa.lines import line_bytes
from megahour.lm.estimate.history import Int64
from megahour.lm.estimate.sweep import CHARACTERS, KEPT
from megahour.lm.scale.shards import ShardTree
from megahour.lm.text.tokenise import Bytes


class ModelFile:
    """A file that threads write at once. Targets are shards by number, then splits."""

    def __init__(self, path: Path, *, resumed: bool) -> None:
        self._file = path.open("r+b" if resumed else "w+b")
        self._places: Int64 = np.zeros((0, 0), np.int64)

    def begin(self, order: int, tree: ShardTree, tallies: Int64, sizes: list[int], unigrams: bytes) -> None:
        """Header, unigrams, and what is between sections. tallies (targets, order + 1, TALLIES), sizes: by order."""
        head = b"\\data\\\n" + b"".join(b"ngram %d=%d\n" % entry for entry in enumerate(sizes, 1))
        size = self._write(memoryview(head + b"\n\\1-grams:\n" + unigrams), 0)
        self._places = np.zeros((len(tallies), order + 1), np.int64)
        for k in range(2, order + 1):
            size = self._write(memoryview(b"\n\\%d-grams:\n" % k), size)
            for target in tree.printed():
                at = target if target >= 0 else len(tree.shards) + ~target
                self._places[at, k] = size
                size += line_bytes(k, k == order, int(tallies[at, k, KEPT]), int(tallies[at, k, CHARACTERS]))
        self._write(memoryview(b"\n\\end\\\n"), size)

    def write(self, target: int, pieces: Iterable[tuple[int, int, Bytes]]) -> None:
        """A target's lines: (order, how many, text)."""
        place = self._places[target].tolist()
        for k, _, lines in pieces:
            place[k] = self._write(lines.data, place[k])

    def close(self) -> None:
        self._file.close()

    def _write(self, data: memoryview, place: int) -> int:
        """All of the data: a single write takes 2 GB at most. Returns the place behind it."""
        while data:
            written = os.pwrite(self._file.fileno(), data, place)
            data, place = data[written:], place + written
        return place
