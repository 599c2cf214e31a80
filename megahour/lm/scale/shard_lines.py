"""Lines of shards, and the table of back-off weights that they are printed with."""

from __future__ import annotations

import numpy as np

from megahour.lm.arpa.lines import ROOM, line_bytes, spell_lines
from megahour.lm.estimate.history import Int32, Int64
from megahour.lm.scale.shard_kernels import fill_gammas, place_names
from megahour.lm.scale.shard_types import NAME, Float32, Float64, Records, Text
from megahour.lm.scale.shards import ShardTree
from megahour.lm.text.tokenise import END, Bytes


class Lines:
    """Spells lines into a buffer that is used again: a new one would cost as much as the lines, in pages touched."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._out: Bytes = np.empty(1 << 16, np.uint8)

    def spell(
        self, k: int, windows: Int32, at: Int32, logp: Float32, backoff: Float32, lines: int, characters: int
    ) -> Bytes:
        """The text of so many k-grams, whose words have so many bytes; until the next call."""
        highest = k == self._text.order
        size = line_bytes(k, highest, lines, characters)
        if len(self._out) < size + ROOM:
            self._out = np.empty(2 * size + ROOM, np.uint8)
        used = spell_lines(k, highest, windows, at, logp, backoff, lines, *self._text.spelling, END, self._out)
        if used != size:
            raise AssertionError(f"{lines} {k}-grams take {used} bytes, not {size}")
        return self._out[:size]


def by_target(tree: ShardTree, names: list[Records], targets: list[Int32]) -> tuple[Records, Int64]:
    """Names in order of their targets, and where each target's begin: shards, then splits."""
    shards, number = len(tree.shards), len(tree.shards) + len(tree.splits)
    joined = np.concatenate([np.empty(0, NAME), *names])
    to = np.concatenate([np.empty(0, np.int32), *targets])
    to = np.where(to < 0, shards + ~to, to)
    edges = np.concatenate([[0], np.cumsum(np.bincount(to, minlength=number))])
    ordered = np.empty_like(joined)
    place_names(columns(joined), to, edges[:-1].copy(), columns(ordered))
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
