"""Where a mapped model is written to: memory, or a file past the page cache.

A model is several times larger than what it is looked up in at once, and copying it into the page cache takes the
kernel as long as building it. Whoever maps it has it read a huge page at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np

from megahour.lm.arpa.direct import ThreadedFile
from megahour.lm.text.tokenise import Bytes

LINE_BYTES = 64


def aligned(size: int) -> Bytes:
    """Zeros that begin with a cache line, so that lines of slots are cache lines."""
    data = np.zeros(size + LINE_BYTES, np.uint8)
    return data[-data.ctypes.data % LINE_BYTES :][:size]


class MemoryFile:
    """Bytes in memory that are written like a file, by one thread."""

    def __init__(self) -> None:
        self._room: Bytes = aligned(1 << 20)
        self._size = self._end = 0

    @property
    def data(self) -> Bytes:
        """What has been written."""
        return self._room[: self._size]

    def write(self, data: memoryview | bytes, offset: int) -> None:
        view = np.frombuffer(data, np.uint8)
        self.room(len(view), offset)[:] = view
        self.wrote(len(view))

    def room(self, size: int, offset: int) -> Bytes:
        """See `DiskFile.room`."""
        stop = offset + size
        if stop > len(self._room):
            grown = aligned(max(stop, 2 * len(self._room)))
            grown[: self._size] = self._room[: self._size]
            self._room = grown
        self._end = stop
        return self._room[offset:stop]

    def wrote(self, size: int) -> None:
        """See `DiskFile.wrote`."""
        self._size = max(self._size, self._end)

    def close(self) -> None:
        """Nothing is left to write."""


class DiskFile:
    """A new file that threads write to at places of their own, each byte once; what is left between them is zero. A
    context, at the end of which a file that has not been closed is given up."""

    def __init__(self, path: Path) -> None:
        self._file, self._open = ThreadedFile(path), True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._open:
            self._open = False
            self._file.close()

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Write something small."""
        self._file.write(data, offset)

    def room(self, size: int, offset: int) -> Bytes:
        """A buffer of `size` bytes for `offset`, at the same place within a page as the file's."""
        return self._file.stream().room(size, offset)

    def wrote(self, size: int) -> None:
        """The room that this thread asked for last is filled, all of it; without this it is as if not asked for."""
        self._file.stream().wrote(size)

    def close(self) -> None:
        """Write what threads still hold. Raises OSError: the disk is full, …."""
        self._file.end()
        self._open = False
        self._file.close()
