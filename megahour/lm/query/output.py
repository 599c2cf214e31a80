"""The output of a mapped model in memory, with the interface of `ThreadedFile`."""

from __future__ import annotations

import numpy as np

from megahour.lm.text.arrays import Bytes

LINE_BYTES = 64


def aligned(size: int) -> Bytes:
    """Zeros that begin at a cache line, so that lines of slots are cache lines."""
    data = np.zeros(size + LINE_BYTES, np.uint8)
    return data[-data.ctypes.data % LINE_BYTES :][:size]


class MemoryFile:
    """Bytes in memory, written like a file by one thread."""

    def __init__(self) -> None:
        self._room: Bytes = aligned(1 << 20)
        self._size = self._end = 0

    @property
    def data(self) -> Bytes:
        """The bytes written so far."""
        return self._room[: self._size]

    def write(self, data: memoryview | bytes, offset: int) -> None:
        view = np.frombuffer(data, np.uint8)
        self.room(len(view), offset)[:] = view
        self.wrote(len(view))

    def room(self, size: int, offset: int) -> Bytes:
        """See `ThreadedFile.room`."""
        stop = offset + size
        if stop > len(self._room):
            grown = aligned(max(stop, 2 * len(self._room)))
            grown[: self._size] = self._room[: self._size]
            self._room = grown
        self._end = stop
        return self._room[offset:stop]

    def wrote(self, size: int) -> None:
        """See `ThreadedFile.wrote`."""
        self._size = max(self._size, self._end)

    def close(self) -> None:
        """Does nothing."""
