"""Lines of shards, and the table of back-off weights that they are printed with."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from megahour.lm.arpa.direct import PAGE, aligned, page_buffer
from megahour.lm.arpa.lines import ROOM, line_bytes, spell_lines
from megahour.lm.estimate.history import Int32, Int64
from megahour.lm.scale.shard_kernels import fill_gammas, place_names
from megahour.lm.scale.shard_types import NAME, Float32, Float64, Records, Text
from megahour.lm.scale.shards import ShardTree
from megahour.lm.text.tokenise import END, Bytes


class Piece(NamedTuple):
    """Lines of `lines` k-grams, buffer[begin:end], and their place in a file: both are as far into a page."""

    k: int
    lines: int
    buffer: Bytes
    begin: int
    end: int
    place: int

    @property
    def text(self) -> Bytes:
        return self.buffer[self.begin : self.end]


class Lines:
    """Spells lines into a buffer that is used again: a new one would cost as much as the lines, in pages touched."""

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
    ) -> Piece:
        """The text of so many k-grams, whose words have so many bytes; until the next call."""
        highest = k == self._text.order
        size = line_bytes(k, highest, lines, characters)
        if len(self._out) < size + ROOM + PAGE:
            self._out = page_buffer(size + size // 4 + ROOM + PAGE)
        begin = aligned(0, place)
        out = self._out[begin : begin + size + ROOM]
        used = spell_lines(k, highest, windows, at, logp, backoff, lines, *self._text.spelling, END, out)
        if used != size:
            raise AssertionError(f"{lines} {k}-grams take {used} bytes, not {size}")
        return Piece(k, lines, self._out, begin, begin + size, place)


def by_target(tree: ShardTree, names: list[Records], targets: list[Int32]) -> tuple[Records, Int64]:
    """Names in order of their targets, and where each target's begin: shards, then splits."""
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
    """Names (N,) as they lie in memory, (N, 7) int32: the halves of the key, the sums."""
    return names.view(np.int32).reshape(len(names), NAME.itemsize // 4)


def name_table(names: Records, discounts: Float64) -> tuple[Int64, Float32]:
    """keys, values of `smooth.fill_names` from names and discounts (order + 2, 4)."""
    room = 1 << int(2 * len(names) + 2).bit_length()
    keys, values = np.empty(room, np.int64), np.empty(room, np.float32)
    fill_gammas(columns(names), discounts, keys, values)
    return keys, values
