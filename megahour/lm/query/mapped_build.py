"""Building mapped models, segment by segment: from an estimator's partitions, or from arrays of n-grams."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from megahour.core.errors import MegahourError
from megahour.lm.query.filling import FULL, TWICE, insert, insert_partition
from megahour.lm.query.lookup import LINE, LOAD, SLOT_BYTES, checksum
from megahour.lm.query.mapped import ALIGN, ARRAYS, HEADER, header_bytes, sum_of
from megahour.lm.query.output import PIECE, DiskFile, MemoryFile
from megahour.lm.text.tokenise import PADDING, WordTable

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
Level = tuple[Int32, Int32, Float32, Float32, int]
"""windows, at, log10 p, log10 back-off, how many: n-grams of one order in a segment, as `filling.insert` takes them."""


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

    def fill(self, number: int, levels: Iterable[Level]) -> None:
        """Build segment `number` from its n-grams of order 2, 3, …; threads may do so together. Raises Duplicate."""
        capacity, levels = int(self.segments[number, 1]), list(levels)
        while (keys := self._inserted(levels, capacity)) is None:
            capacity *= 2
        self._put(number, keys)

    def fill_partition(
        self, number: int, windows: Int32, at: Int32, logp: Float32, backoff: Float32, sizes: Int64, end: int
    ) -> None:
        """Build segment `number` from an estimator's partition, all of it, as `filling.insert_partition` wants it."""
        keys = self._slots(int(self.segments[number, 1]))
        scratch = self._scratch(len(windows), at.shape[1])
        arrays = windows, self.order, at, logp, backoff, sizes, end, *scratch
        if insert_partition(keys, keys.view(np.float32), len(keys) // 2, *arrays) == FULL:
            raise AssertionError(f"segment {number}: {sizes[2:].sum()} n-grams in {len(keys) // 2} slots")
        self._put(number, keys)

    def _put(self, number: int, keys: UInt64) -> None:
        """Write a segment where it has its place, or to the end if it has grown."""
        base, capacity = self.segments[number].tolist()
        if len(keys) != 2 * capacity:
            with self._lock:
                base, self._end = self._end, self._end + len(keys) // 2
            self.segments[number] = base, len(keys) // 2
        total = int(checksum(keys, 2 * base))
        with self._lock:
            self._sum += total
        self.file.write(keys.data, self._entries + base * SLOT_BYTES)

    def _inserted(self, levels: list[Level], capacity: int) -> UInt64 | None:
        """Slots of a segment; None when they are too few."""
        keys = self._slots(capacity)
        values, used = keys.view(np.float32), 0
        for k, (windows, at, logp, backoff, count) in enumerate(levels, 2):
            used, failed, item = insert(keys, values, capacity, used, windows, at, logp, backoff, count, k)
            if failed == FULL:
                return None
            if failed == TWICE:
                raise Duplicate(k, int(at[item]))
        return keys

    def _slots(self, capacity: int) -> UInt64:
        """This thread's scratch, empty slots: new memory each time would cost more than filling it."""
        held: UInt64 | None = getattr(self._own, "slots", None)
        if held is None or len(held) < 2 * capacity:
            self._own.slots = held = np.empty(2 * capacity, np.uint64)
        held[: 2 * capacity] = 0
        return held[: 2 * capacity]

    def _scratch(self, rows: int, ngrams: int) -> tuple[Int32, Int32, Int32]:
        """This thread's for `insert_partition`: starts, seats, slots."""
        held: tuple[Int32, Int32, Int32] | None = getattr(self._own, "scratch", None)
        if held is None or held[0].shape[1] < rows or held[2].shape[1] < ngrams:
            starts, slots = np.empty((self.order, rows), np.int32), np.empty((2, ngrams), np.int32)
            self._own.scratch = held = starts, np.zeros(self.size, np.int32), slots
        return held

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
