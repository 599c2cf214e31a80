"""Lines of shards, the table of their back-off weights, and the ARPA file that threads write together."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from megahour.lm.arpa.direct import PAGE, DirectFile, aligned, page_buffer
from megahour.lm.arpa.lines import ROOM, line_bytes, spell_lines
from megahour.lm.arpa.write import END_OF_MODEL, header, section
from megahour.lm.estimate.sweep import CHARACTERS, KEPT
from megahour.lm.scale.shard_kernels import fill_gammas, place_names
from megahour.lm.scale.shard_types import NAME, Text
from megahour.lm.scale.shards import ShardTree
from megahour.lm.text.arrays import Bytes, Float32, Float64, Int32, Int64, Records
from megahour.lm.text.tokenise import END


class LineBlock(NamedTuple):
    """The lines of `lines` k-grams: buffer[begin:end], and their place in the file, at the same offset in a page."""

    k: int
    lines: int
    buffer: Bytes
    begin: int
    end: int
    place: int

    @property
    def text(self) -> Bytes:
        return self.buffer[self.begin : self.end]


class LineSpeller:
    """Formats lines in a reused buffer; touching the pages of a new one would take as long as the formatting."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._out = page_buffer(1 << 22)

    def spell(
        self,
        k: int,
        windows: Int32,
        at: Int32,
        logp: Float32,
        backoff: Float32,
        lines: int,
        characters: int,
        place: int = 0,
    ) -> LineBlock:
        """Format `lines` k-grams whose words have `characters` bytes. The result is valid until the next call."""
        highest = k == self._text.order
        size = line_bytes(k, highest, lines, characters)
        if len(self._out) < size + ROOM + PAGE:
            self._out = page_buffer(size + size // 4 + ROOM + PAGE)
        begin = aligned(0, place)
        out = self._out[begin : begin + size + ROOM]
        used = spell_lines(k, highest, windows, at, logp, backoff, lines, *self._text.spelling, END, out)
        if used != size:
            raise AssertionError(f"{lines} {k}-grams take {used} bytes, not {size}")
        return LineBlock(k, lines, self._out, begin, begin + size, place)


def by_target(tree: ShardTree, names: list[Records], targets: list[Int32]) -> tuple[Records, Int64]:
    """Names sorted by target, and edges: those of target t are edges[t] .. edges[t + 1] - 1, splits after shards."""
    shards, number = len(tree.shards), len(tree.shards) + len(tree.splits)
    slots = [np.where(to < 0, shards + ~to, to) for to in targets]
    edges = np.zeros(number + 1, np.int64)
    for slot in slots:
        edges[1:] += np.bincount(slot, minlength=number)
    np.cumsum(edges, out=edges)
    ordered, cursors = np.empty(int(edges[-1]), NAME), edges[:-1].copy()
    for own, slot in zip(names, slots, strict=True):
        place_names(columns(own), slot, cursors, columns(ordered))
    return ordered, edges


def columns(names: Records) -> Int32:
    """A view of names (N,) as int32 (N, 7): the halves of the key, then the sums."""
    return names.view(np.int32).reshape(len(names), NAME.itemsize // 4)


def name_table(names: Records, discounts: Float64) -> tuple[Int64, Float32]:
    """The hash table (keys, values) of `smooth.fill_names` from names and discounts (order + 2, 4)."""
    room = 1 << int(2 * len(names) + 2).bit_length()
    keys, values = np.empty(room, np.int64), np.empty(room, np.float32)
    fill_gammas(columns(names), discounts, keys, values)
    return keys, values


class ModelFile:
    """An ARPA file that threads write together. Targets are numbered: shards, then splits."""

    def __init__(self, path: Path, *, resumed: bool) -> None:
        self._file = DirectFile(path, keep=resumed)
        self._places: Int64 = np.zeros((0, 0), np.int64)

    def begin(self, order: int, tree: ShardTree, tallies: Int64, sizes: list[int], unigrams: bytes) -> None:
        """Write the header, the unigrams and the heads of sections, and compute the places of all other lines.

        tallies (targets, order + 1, TALLIES). sizes: n-grams by order.
        """
        size = self._text(header(sizes) + section(1) + unigrams, 0)
        self._places = np.zeros((len(tallies), order + 1), np.int64)
        for k in range(2, order + 1):
            size = self._text(section(k), size)
            for target in tree.printed():
                at = target if target >= 0 else len(tree.shards) + ~target
                self._places[at, k] = size
                size += line_bytes(k, k == order, int(tallies[at, k, KEPT]), int(tallies[at, k, CHARACTERS]))
        self._text(END_OF_MODEL, size)

    def places(self, target: int) -> list[int]:
        """The places of a target's lines, by order."""
        result: list[int] = self._places[target].tolist()
        return result

    def write(self, pieces: Iterable[LineBlock]) -> None:
        """Write lines at their places. Any thread may call it."""
        for piece in pieces:
            self._file.write(piece.buffer, piece.begin, piece.end, piece.place)

    def close(self) -> None:
        self._file.close()

    def _text(self, text: bytes, place: int) -> int:
        """Write text; return the place after it."""
        self._file.write(np.frombuffer(text, np.uint8), 0, len(text), place)
        return place + len(text)
