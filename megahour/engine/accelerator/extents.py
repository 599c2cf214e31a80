"""First-fit allocation of extents within one piece of memory."""

from __future__ import annotations

from bisect import bisect_left

ALIGNMENT_BYTES = 64  # a cache line: neighbours written by one process and read by another share none


class Extents:
    """Which bytes of [start, end) are taken. Not thread-safe."""

    def __init__(self, start: int, end: int) -> None:
        start = _aligned(start)
        self._free = [(start, end - start)] if end > start else []  # (offset, bytes), by offset, never touching
        self._taken: dict[int, int] = {}

    def take(self, n_bytes: int) -> int | None:
        """The offset of a free extent of at least `n_bytes` >= 1, a multiple of 64; None when there is none."""
        due = _aligned(n_bytes)
        for index, (offset, size) in enumerate(self._free):
            if size >= due:
                self._free[index : index + 1] = [(offset + due, size - due)] if size > due else []
                self._taken[offset] = due
                return offset
        return None

    def give(self, offset: int) -> None:
        """Take back what `take` gave; KeyError for any other offset."""
        size = self._taken.pop(offset)
        index = bisect_left(self._free, (offset, 0))
        if index < len(self._free) and self._free[index][0] == offset + size:
            size += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == offset:
            index -= 1
            offset, size = self._free[index][0], size + self._free.pop(index)[1]
        self._free.insert(index, (offset, size))


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
