"""The ARPA file of a sharded model: every target's lines have their place before any are written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from megahour.lm.arpa.direct import DirectFile
from megahour.lm.arpa.lines import line_bytes
from megahour.lm.estimate.history import Int64
from megahour.lm.estimate.sweep import CHARACTERS, KEPT
from megahour.lm.scale.shard_lines import Piece
from megahour.lm.scale.shards import ShardTree


class ModelFile:
    """A file that threads write at once. Targets are shards by number, then splits."""

    def __init__(self, path: Path, *, resumed: bool) -> None:
        self._file = DirectFile(path, keep=resumed)
        self._places: Int64 = np.zeros((0, 0), np.int64)

    def begin(self, order: int, tree: ShardTree, tallies: Int64, sizes: list[int], unigrams: bytes) -> None:
        """Header, unigrams, and what is between sections. tallies (targets, order + 1, TALLIES), sizes: by order."""
        head = b"\\data\\\n" + b"".join(b"ngram %d=%d\n" % entry for entry in enumerate(sizes, 1))
        size = self._text(head + b"\n\\1-grams:\n" + unigrams, 0)
        self._places = np.zeros((len(tallies), order + 1), np.int64)
        for k in range(2, order + 1):
            size = self._text(b"\n\\%d-grams:\n" % k, size)
            for target in tree.printed():
                at = target if target >= 0 else len(tree.shards) + ~target
                self._places[at, k] = size
                size += line_bytes(k, k == order, int(tallies[at, k, KEPT]), int(tallies[at, k, CHARACTERS]))
        self._text(b"\n\\end\\\n", size)

    def places(self, target: int) -> list[int]:
        """Where a target's lines go, by order."""
        found: list[int] = self._places[target].tolist()
        return found

    def write(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            self._file.write(piece.buffer, piece.begin, piece.end, piece.place)

    def close(self) -> None:
        self._file.close()

    def _text(self, text: bytes, place: int) -> int:
        """Write text; the place behind it."""
        self._file.write(np.frombuffer(text, np.uint8), 0, len(text), place)
        return place + len(text)
