"""Building mapped models, segment by segment: from an estimator's partitions, or from arrays of n-grams."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from megahour.core.errors import MegahourError
from megahour.lm.query.lookup import FULL, LINE, LOAD, SLOT_BYTES, TWICE, checksum, insert
from megahour.lm.query.mapped import ALIGN, ARRAYS, HEADER, header_bytes, sum_of
from megahour.lm.query.output import PIECE, DiskFile, MemoryFile
from megahour.lm.text.tokenise import BOUNDARY, PADDING, WordTable

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Level = tuple[Int32, Int32, Float32, Float32, int]
"""windows, at, log10 p, log10 back-off, how many: n-grams of one order in a segment, as `lookup.insert` takes them."""


class Duplicate(MegahourError):
    """An n-gram is there twice. order, item: which one, by its place in its level."""

    def __init__(self, order: int, item: int) -> None:
        super().__init__(f"a {order}-gram is there twice")
        self.order, self.item = order, item


class Builder:
    """Writes a mapped model: unigrams at once, segments as they come, the header last.

    owner (V,): segment of the n-grams whose last but one word is this. ngrams (P,): n-grams of two words and more by
    segment; blanks may come on top, a segment that they fill moves to the end. logp, backoff (V,): of the words.
    """

    def __init__(
        self,
        file: MemoryFile | DiskFile,
        vocabulary: WordTable,
        order: int,
        owner: npt.NDArray[np.integer[Any]],
        ngrams: Int64,
        logp: Float32,
        backoff: Float32,
    ) -> None:
        self.file, self.order, self.size = file, order, len(vocabulary)
        self._lock, self._own = threading.Lock(), threading.local()
        capacities = ((ngrams * LOAD).astype(np.int64) // LINE + 1) * LINE
        self.segments = np.stack([np.cumsum(capacities) - capacities, capacities], axis=1)
        self._end = int(capacities.sum())
        self._sum = 0
        words = np.zeros((self.size, 4), np.int32)
        words[:, 0], words[:, 1], words[:, 2] = logp.view(np.int32), backoff.view(np.int32), owner
        vocabulary.table = np.zeros(2, np.uint64)
        vocabulary.make_room(0)  # fills a table of the size that scoring wants, one that need not grow
        self._arrays: dict[str, npt.NDArray[Any]] = {
            "table": vocabulary.table,
            "arena": vocabulary.arena[: int(vocabulary.starts[self.size]) + PADDING],
            "starts": vocabulary.starts[: self.size + 3],
            "words": words.reshape(-1),
            "segments": self.segments.reshape(-1),
        }
        self._places: dict[str, dict[str, int]] = {}
        at = HEADER
        for key, kind in ARRAYS.items():
            items = len(self._arrays[key])
            self._places[key] = {"offset": at, "items": items}
            at += -(-items * np.dtype(kind).itemsize // ALIGN) * ALIGN
        huge = self._end * SLOT_BYTES > PIECE and not isinstance(file, MemoryFile)
        self._entries = -(-at // PIECE) * PIECE if huge else at

    def fill(self, number: int, levels: Iterable[Level], end: int = BOUNDARY, *, shared: bool = False) -> None:
        """Build segment `number` from its n-grams of order 2, 3, …; threads may do so side by side.

        shared: rows of the levels' windows are the same, as they are in an estimator's partition. Raises Duplicate.
        """
        levels = list(levels)
        base, capacity = self.segments[number].tolist()
        while (keys := self._insert(levels, capacity, end, shared)) is None:
            capacity *= 2
        with self._lock:
            if capacity != self.segments[number, 1]:
                base, self._end = self._end, self._end + capacity
                self.segments[number] = base, capacity
            self._sum += int(checksum(keys, 2 * base))
            if isinstance(self.file, MemoryFile):
                self.file.write(keys.data, self._entries + base * SLOT_BYTES)
        if isinstance(self.file, DiskFile):
            self.file.write(keys.data, self._entries + base * SLOT_BYTES)

    def _insert(self, levels: list[Level], capacity: int, end: int, shared: bool) -> npt.NDArray[np.uint64] | None:
        """Slots of a segment, in this thread's scratch; None when they are too few."""
        held: npt.NDArray[np.uint64] | None = getattr(self._own, "slots", None)
        if held is None or len(held) < 2 * capacity:
            self._own.slots = held = np.empty(2 * capacity, np.uint64)
        keys = held[: 2 * capacity]
        keys.fill(0)
        values, used = keys.view(np.float32), 0
        walked = np.zeros(len(levels[0][0]) if shared and levels else 0, np.int64)
        for k, (windows, at, logp, backoff, count) in enumerate(levels, 2):
            used, failed, item = insert(keys, values, capacity, used, windows, at, logp, backoff, count, k, end, walked)
            if failed == FULL:
                return None
            if failed == TWICE:
                raise Duplicate(k, int(at[item]))
        return keys

    def finish(self, sizes: list[int], facts: Mapping[str, Any], *, closed: bool) -> None:
        """Write what is left. sizes: n-grams by order; facts, closed: see `MappedModel`."""
        for key, array in self._arrays.items():
            self._places[key]["checksum"] = sum_of(array)
            self.file.write(np.ascontiguousarray(array).data, self._places[key]["offset"])
        self._places["entries"] = {
            "offset": self._entries,
            "items": 2 * self._end,
            "checksum": self._sum % (1 << 64),
        }
        self.file.write(header_bytes(self.order, sizes, closed, self._places, facts), 0)
        self.file.close()
