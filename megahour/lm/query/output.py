"""Where a mapped model is written to: memory, or a file in large aligned pieces.

Linux keeps what is written 2 MB at a time, from a multiple of 2 MB on, in huge pages: writing then takes a quarter of
the system's time, and looking up n-grams in the mapped file half of the misses of page tables.
"""

from __future__ import annotations

import os
import threading
from typing import BinaryIO

import numpy as np

from megahour.lm.text.tokenise import Bytes

PIECE = 1 << 21
LINE_BYTES = 64


def aligned(size: int) -> Bytes:
    """Zeros that begin with a cache line, so that lines of slots are cache lines."""
    data = np.zeros(size + LINE_BYTES, np.uint8)
    return data[-data.ctypes.data % LINE_BYTES :][:size]


class MemoryFile:
    """Bytes in memory that are written like a file, by one thread."""

    def __init__(self) -> None:
        self._room: Bytes = aligned(1 << 20)
        self._size = 0

    @property
    def data(self) -> Bytes:
        """What has been written."""
        return self._room[: self._size]

    def write(self, data: memoryview | bytes, offset: int) -> None:
        view = np.frombuffer(data, np.uint8)
        stop = offset + len(view)
        if stop > len(self._room):
            grown = aligned(max(stop, 2 * len(self._room)))
            grown[: self._size] = self._room[: self._size]
            self._room = grown
        self._size = max(self._size, stop)
        self._room[offset:stop] = view

    def close(self) -> None:
        """Nothing is left to write."""


class DiskFile:
    """A file that threads write to at places of their own, each byte once; what is left between them is zero."""

    def __init__(self, file: BinaryIO, piece: int = PIECE) -> None:
        self._file, self._piece = file.fileno(), piece
        self._begun: dict[int, tuple[Bytes, int]] = {}  # pieces by number: bytes, and how many of them are there
        self._spare: list[Bytes] = []  # buffers to use again: pages touched first cost as much as writing them
        self._end = 0
        self._lock = threading.Lock()

    def write(self, data: memoryview | bytes, offset: int) -> None:
        """Whole pieces go to the file, of others the bytes are kept until their pieces are whole."""
        view = np.frombuffer(data, np.uint8)
        at = min(-offset % self._piece, len(view))
        whole = (len(view) - at) // self._piece * self._piece
        self._add(view[:at], offset)
        self._put(view[at : at + whole], offset + at)
        self._add(view[at + whole :], offset + at + whole)

    def close(self) -> None:
        """Write the pieces that never became whole."""
        for number, (held, _) in sorted(self._begun.items()):
            self._put(held[: self._end - number * self._piece], number * self._piece)
        self._begun.clear()

    def _add(self, part: Bytes, offset: int) -> None:
        """Bytes of a single piece."""
        if not len(part):
            return
        number, at = divmod(offset, self._piece)
        with self._lock:
            self._end = max(self._end, offset + len(part))
            begun = self._begun.pop(number, None)
            held, count = begun if begun is not None else (self._empty(), 0)
            held[at : at + len(part)] = part
            count += len(part)
            if count < self._piece:
                self._begun[number] = held, count
        if count == self._piece:
            self._put(held, number * self._piece)
            self._spare.append(held)

    def _empty(self) -> Bytes:
        held = self._spare.pop() if self._spare else np.empty(self._piece, np.uint8)
        held[:] = 0
        return held

    def _put(self, data: Bytes, offset: int) -> None:
        rest = data.data
        while len(rest):
            done = os.pwrite(self._file, rest, offset)
            rest, offset = rest[done:], offset + done
