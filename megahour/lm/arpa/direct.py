"""A file that threads write in large pieces, each at its own place, past the page cache where the system lets them.

A model is written once and is larger than anything else in the job. Copying it into the page cache takes the kernel
longer than the estimator needs to make it; direct writes leave that out, and need pages: the buffer's, the file's. What
is left over at both ends of a piece goes through the cache. A disk that is slow to take direct writes gets the rest
through the cache too.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

import numpy as np

from megahour.lm.text.tokenise import Bytes

PAGE = 4096
BUFFER = 1 << 22
SLOWEST = 100e6  # bytes a second of direct writes
TRIAL_S = 2.0  # of direct writing, before its speed counts


def page_buffer(size: int) -> Bytes:
    """At least `size` bytes, aligned to a page."""
    pages = mmap.mmap(-1, max(-(-size // PAGE), 1) * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def aligned(size: int, place: int) -> int:
    """The first index from `size` on where a buffer's bytes for `place` may begin: both are as far into a page."""
    return size + (place - size) % PAGE


class DirectFile:
    """A new file at `path`, or one that is gone on with (`keep`). Threads may write different places at once."""

    def __init__(self, path: Path, *, keep: bool = False) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | (0 if keep else os.O_TRUNC), 0o666)
        self._pages = _open_direct(path)  # -1: none
        self._direct = self._pages >= 0
        self._written, self._seconds = 0, 0.0

    def write(self, buffer: Bytes, begin: int, end: int, place: int) -> None:
        """Write buffer[begin:end] at `place`. Past the cache, if in memory too it is `aligned`, as in a `page_buffer`.

        Raises OSError: the disk is full, ….
        """
        data, head = buffer.data[begin:end], -place % PAGE
        tail = head + (len(data) - head) // PAGE * PAGE
        if not self._direct or tail <= head or (buffer.ctypes.data + begin - place) % PAGE:
            _write_at(self._file, data, place)
            return
        _write_at(self._file, data[:head], place)
        self._write_pages(data[head:tail], place + head)
        _write_at(self._file, data[tail:], place + tail)

    def close(self) -> None:
        """After all has been written, or given up."""
        os.close(self._file)
        if self._pages >= 0:
            os.close(self._pages)

    def _write_pages(self, pages: memoryview, place: int) -> None:
        begun = time.perf_counter()
        try:
            _write_at(self._pages, pages, place)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._direct = False  # the file system has other ideas of pages
            _write_at(self._file, pages, place)
        self._seconds += time.perf_counter() - begun
        self._written += len(pages)
        if self._seconds > TRIAL_S and self._written < SLOWEST * self._seconds:
            self._direct = False


class DirectStream:
    """One thread's bytes on their way to a file: a buffer of `room` bytes is filled while `writer` writes the other."""

    def __init__(self, file: DirectFile, writer: Executor, room: int = BUFFER) -> None:
        self._file, self._writer = file, writer
        self._buffer, self._spare = page_buffer(room), page_buffer(room)
        self._pieces: list[tuple[int, int, int]] = []  # begin, end in the buffer; place in the file
        self._writing: Future[None] | None = None

    def room(self, size: int, place: int) -> Bytes:
        """A buffer for at most `size` bytes that belong at `place`; `wrote` reports how many there were."""
        begin, end, before = self._pieces[-1] if self._pieces else (0, 0, 0)
        if end == begin or before + end - begin != place:
            begin = end = aligned(end, place)
            self._pieces.append((begin, end, place))
        if end + size > len(self._buffer):
            self.flush()
            if size + PAGE > len(self._buffer):
                self._buffer = page_buffer(size + PAGE)
            begin = end = aligned(0, place)
            self._pieces.append((begin, end, place))
        return self._buffer[end : end + size]

    def wrote(self, size: int) -> None:
        """So many bytes are in the room that was asked for last."""
        begin, end, place = self._pieces[-1]
        self._pieces[-1] = begin, end + size, place

    def flush(self) -> None:
        """Have the buffer written, and go on with the other one once that has been.

        Raises OSError: what `DirectFile.write` raised for that one.
        """
        self.wait()
        self._writing = self._writer.submit(self._write, self._buffer, self._pieces)
        self._buffer, self._spare, self._pieces = self._spare, self._buffer, []

    def wait(self) -> None:
        """Until all that was flushed is written. Raises OSError: what `DirectFile.write` raised."""
        if self._writing is not None:
            self._writing.result()

    def _write(self, buffer: Bytes, pieces: list[tuple[int, int, int]]) -> None:
        for begin, end, place in pieces:
            self._file.write(buffer, begin, end, place)


class ThreadedFile:
    """A new file that threads fill together, each byte once, each thread by a stream of its own; another one writes, so
    that none of them waits for the disk. What is left between their places is zero. A context, at the end of which a
    file that has not been closed is given up."""

    def __init__(self, path: Path) -> None:
        self._file = DirectFile(path)
        self._writer = ThreadPoolExecutor(1)
        self._own = threading.local()
        self._streams: list[DirectStream] = []
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._closed:
            self._release()

    def room(self, size: int, place: int) -> Bytes:
        """A buffer of `size` bytes for `place`, at the same place within a page as the file's."""
        return self._stream().room(size, place)

    def wrote(self, size: int) -> None:
        """So many bytes are in the room that this thread asked for last; without this it is as if not asked for."""
        self._stream().wrote(size)

    def write(self, data: memoryview | bytes, place: int) -> None:
        """Write something small at once."""
        buffer = np.frombuffer(data, np.uint8)
        self._file.write(buffer, 0, len(buffer), place)

    def close(self) -> None:
        """Write what threads still hold, and wait for all of it. Raises OSError: the disk is full, …."""
        for stream in self._streams:
            stream.flush()
        for stream in self._streams:
            stream.wait()
        self._release()

    def _stream(self) -> DirectStream:
        """This thread's."""
        held: DirectStream | None = getattr(self._own, "stream", None)
        if held is None:
            self._own.stream = held = DirectStream(self._file, self._writer)
            self._streams.append(held)
        return held

    def _release(self) -> None:
        self._closed = True
        self._writer.shutdown(cancel_futures=True)
        self._file.close()


def _open_direct(path: Path) -> int:
    """A descriptor for writes past the cache; -1 where there is no such thing."""
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT)
    except (AttributeError, OSError):  # not Linux; a file system without it
        return -1


def _write_at(file: int, data: memoryview, place: int) -> None:
    """All of the data: a single write takes 2 GB at most."""
    while data:
        written = os.pwrite(file, data, place)
        data, place = data[written:], place + written
