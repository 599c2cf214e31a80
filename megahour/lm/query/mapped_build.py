"""Builds mapped models, segment by segment, from partitions of the estimator or from arrays of n-grams."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.core.errors import MegahourError
from megahour.lm.arpa.direct import ThreadedFile
from megahour.lm.query.lookup import HALF, HIGH, LINE, LOAD, SLOT_BYTES, checksum, home, matches
from megahour.lm.query.mapped import ALIGN, ARRAYS, HEADER, header_bytes, sum_of
from megahour.lm.query.output import MemoryFile
from megahour.lm.text.arrays import Float32, Int32, Int64, UInt64
from megahour.lm.text.machine import prefetch, trailing_zeros
from megahour.lm.text.tokenise import BOUNDARY, PADDING, WordTable

FULL, TWICE = -1, -2  # errors
BATCH = 64  # n-grams whose lines are prefetched before the first is filled
_NOTHING = np.uint64(0)
_ENDS = np.float32(-0.0)


@compiled(inline=True)
def _place(keys, lines, key):  # type: ignore[no-untyped-def]
    """(slot of a key, True), or (the free slot for it, False). At least one slot must be free."""
    line = home(key, lines)
    while True:
        result = matches(keys, 2 * LINE * line, key)
        if result:
            return line * LINE + (trailing_zeros(result) >> 1), True
        free = matches(keys, 2 * LINE * line, _NOTHING)
        if free:
            return line * LINE + (trailing_zeros(free) >> 1), False
        line += 1
        if line == lines:
            line = 0


@compiled
def insert(keys, values, capacity, used, windows, at, logp, backoff, count, k):  # type: ignore[no-untyped-def]
    """Add `count` k-grams (k ≥ 2) to a segment that has the shorter ones already. Returns (slots used, code, index).

    keys (2 capacity,) uint64 and values (4 capacity,) float32 are one memory. windows (m, ≥ k): row at[i] has the words
    of n-gram i from the last to the first. Suffixes that the segment lacks are added as blanks. code: 0, or FULL, or
    TWICE if the segment has the n-gram; then index is that of the n-gram that failed.
    """
    room, lines = capacity - 1, capacity // LINE
    for i in range(count):
        row = at[i]
        slot, head, there = np.int64(0), HIGH | np.uint64(windows[row, 0]), False
        for j in range(1, k):
            key = (head << HALF) | np.uint64(windows[row, j])
            slot, there = _place(keys, lines, key)
            head = np.uint64(slot + 1)
            if not there:
                if used == room:
                    return used, FULL, i
                used += 1
                keys[2 * slot] = key
                values[4 * slot + 2] = np.nan
                values[4 * slot + 3] = 0.0
        if there and not np.isnan(values[4 * slot + 2]):
            return used, TWICE, i
        values[4 * slot + 2] = logp[i]
        values[4 * slot + 3] = backoff[i]
    return used, 0, count


@compiled
def insert_partition(  # type: ignore[no-untyped-def]
    keys, values, capacity, windows, order, at, logp, backoff, sizes, end, starts, seats, slots
):
    """Fill an empty segment with a partition's n-grams as `smooth` lists them. Returns 0 or FULL.

    keys, values: see `insert`. windows (m, order): sorted by history. at, logp, backoff (order + 1, ≥ sizes[k]): by
    order k, contexts from the last to the first; a weight of zero means that no longer n-gram begins with these words.
    end: the word to write for a predicted BOUNDARY. Scratch, int32: starts (order, ≥ m), seats (≥ V,), slots
    (2, ≥ sizes[k]).

    A k-gram and its suffix without the first word end in the same word w. The context of the suffix is the run of rows
    that has the k-gram's row; runs are visited in order, and seats[w] has the slot of the suffix in the current one. No
    n-gram may occur twice.
    """
    # unsigned: indexing needs no test for negative numbers
    windows, at, starts = windows.view(np.uint32), at.view(np.uint32), starts.view(np.uint32)
    seats, slots = seats.view(np.uint32), slots.view(np.uint32)
    lines = capacity // LINE
    if sizes[2 : order + 1].sum() >= capacity:
        return FULL
    wanted, places = np.empty(BATCH, np.uint64), np.empty(BATCH, np.int64)
    for n in range(1, order - 1):  # starts[n, i]: the first row of the run that shares n words of history with row i
        start = 0
        for i in range(1, len(windows)):
            same = windows[i, n] == windows[i - 1, n] and (n == 1 or starts[n - 1, i] < i)
            start = start if same else i
            starts[n, i] = start
        starts[n, 0] = 0
    for k in range(2, order + 1):
        passed, now, last = 0, k & 1, 1 - (k & 1)
        for first in range(0, sizes[k], BATCH):
            stop = min(first + BATCH, sizes[k])
            for i in range(first, stop):
                row = at[k, i]
                word = windows[row, 0]
                head = HIGH | np.uint64(end if word == BOUNDARY else word)
                if k > 2:
                    start = starts[k - 2, row]
                    while passed < sizes[k - 1] and starts[k - 2, at[k - 1, passed]] >= start:
                        seats[windows[at[k - 1, passed], 0]] = slots[last, passed]
                        passed += 1
                    head = np.uint64(seats[word] + 1)
                key = (head << HALF) | np.uint64(windows[row, k - 1])
                line = home(key, lines)
                prefetch(keys, 2 * LINE * line)
                wanted[i - first], places[i - first] = key, line
            for i in range(first, stop):
                key, line = wanted[i - first], places[i - first]
                free = matches(keys, 2 * LINE * line, _NOTHING)
                while not free:
                    line += 1
                    if line == lines:
                        line = 0
                    free = matches(keys, 2 * LINE * line, _NOTHING)
                slot = line * LINE + (trailing_zeros(free) >> 1)
                slots[now, i] = slot
                keys[2 * slot] = key
                values[4 * slot + 2] = logp[k, i]
                values[4 * slot + 3] = backoff[k, i] if backoff[k, i] != 0.0 else _ENDS
    return 0


Level = tuple[Int32, Int32, Float32, Float32, int]
"""windows, at, log10 p, log10 back-off, count: the n-grams of one order in a segment, as for `filling.insert`."""
PIECE = 1 << 21  # bytes of a huge page; large tables begin at a multiple of it


class DuplicateNgram(MegahourError):
    """An n-gram occurs twice. item: its index in the level of its order."""

    def __init__(self, order: int, item: int) -> None:
        super().__init__(f"a {order}-gram occurs twice")
        self.order, self.item = order, item


class Builder:
    """Writes a mapped model: segments in any order, everything else at the end.

    owner (V,): the segment of the n-grams with this last but one word. ngrams (P,): n-grams of two words and more by
    segment, without blanks; a segment that overflows with blanks moves to the end. logp, backoff (V,): of the words.
    """

    def __init__(
        self,
        file: MemoryFile | ThreadedFile,
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
        vocabulary.make_room(0)  # builds a table of the size for scoring, which does not grow
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
        """Build segment `number` from its n-grams of order 2, 3, …. Any thread may call it. Raises DuplicateNgram."""
        base, capacity = self.segments[number].tolist()
        levels, keys = list(levels), self._room(base, capacity)
        if not self._inserted(keys, levels):
            keys = self._grown(levels, capacity)
            with self._lock:
                base, self._end = self._end, self._end + len(keys) // 2
            self.segments[number] = base, len(keys) // 2
            self._room(base, len(keys) // 2)[:] = keys
        self._put(base, keys)

    def fill_partition(
        self, number: int, windows: Int32, at: Int32, logp: Float32, backoff: Float32, sizes: Int64, end: int
    ) -> None:
        """Build segment `number` from a whole partition of the estimator; see `filling.insert_partition`."""
        base, capacity = self.segments[number].tolist()
        keys = self._room(base, capacity)
        scratch = self._scratch(len(windows), at.shape[1])
        arrays = windows, self.order, at, logp, backoff, sizes, end, *scratch
        if insert_partition(keys, keys.view(np.float32), capacity, *arrays) == FULL:
            raise AssertionError(f"segment {number}: {sizes[2:].sum()} n-grams in {capacity} slots")
        self._put(base, keys)

    def _room(self, base: int, capacity: int) -> UInt64:
        """Empty slots, to be filled."""
        keys: UInt64 = self.file.room(capacity * SLOT_BYTES, self._entries + base * SLOT_BYTES).view(np.uint64)
        keys[:] = 0
        return keys

    def _put(self, base: int, keys: UInt64) -> None:
        """Report that the last room is filled with these slots."""
        total = int(checksum(keys, 2 * base))
        self.file.wrote(keys.nbytes)
        with self._lock:
            self._sum += total

    def _inserted(self, keys: UInt64, levels: list[Level]) -> bool:
        """Fill empty slots; return False if they are too few. Raises DuplicateNgram."""
        values, used = keys.view(np.float32), 0
        for k, (windows, at, logp, backoff, count) in enumerate(levels, 2):
            used, failed, item = insert(keys, values, len(keys) // 2, used, windows, at, logp, backoff, count, k)
            if failed == FULL:
                return False
            if failed == TWICE:
                raise DuplicateNgram(k, int(at[item]))
        return True

    def _grown(self, levels: list[Level], capacity: int) -> UInt64:
        """Slots for n-grams that need more than `capacity` with their blanks."""
        while True:
            capacity *= 2
            keys = np.zeros(2 * capacity, np.uint64)
            if self._inserted(keys, levels):
                return keys

    def _scratch(self, rows: int, ngrams: int) -> tuple[Int32, Int32, Int32]:
        """The scratch of this thread for `insert_partition`: starts, seats, slots."""
        held: tuple[Int32, Int32, Int32] | None = getattr(self._own, "scratch", None)
        if held is None or held[0].shape[1] < rows or held[2].shape[1] < ngrams:
            starts, slots = np.empty((self.order, rows), np.int32), np.empty((2, ngrams), np.int32)
            self._own.scratch = held = starts, np.zeros(self.size, np.int32), slots
        return held

    def finish(self, sizes: list[int], facts: Mapping[str, Any]) -> None:
        """Write all other arrays and the header. sizes: n-grams by order; facts: see `MappedModel`."""
        for key, array in self._arrays.items():
            self._places[key]["checksum"] = sum_of(array)
            self.file.write(np.ascontiguousarray(array).data, self._places[key]["offset"])
        self._places["entries"] = {
            "offset": self._entries,
            "items": 2 * self._end,
            "checksum": self._sum % (1 << 64),
        }
        self.file.write(header_bytes(self.order, sizes, self._places, facts), 0)
        self.file.close()
