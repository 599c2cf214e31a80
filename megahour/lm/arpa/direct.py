"""Files that threads write in large pieces at known places, past the page cache where the system supports it.

A model is written once and is the largest output of a job. Copying it into the page cache would take the kernel longer
than the estimator needs to compute it. Direct writes avoid the copy, but need whole pages that are aligned in memory
and in the file: the two ends of a piece go through the cache. If direct writes turn out slow, all later data go through
the cache.
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

from megahour.lm.text.arrays import Bytes

PAGE = 4096
BUFFER = 1 << 22
SLOWEST = 100e6  # bytes per second below which direct writes are given up
TRIAL_S = 2.0  # seconds of direct writes before their speed is judged


def page_buffer(size: int) -> Bytes:
    """A buffer of at least `size` bytes that begins at a page."""
    pages = mmap.mmap(-1, max(-(-size // PAGE), 1) * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


def aligned(size: int, place: int) -> int:
    """The first index ≥ `size` that lies as far into a page of the buffer as `place` into a page of the file."""
    return size + (place - size) % PAGE


class DirectFile:
    """A file for direct writes; an old one is emptied unless `keep`. Threads may write different places at once."""

    def __init__(self, path: Path, *, keep: bool = False) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | (0 if keep else os.O_TRUNC), 0o666)
        self._pages = _open_direct(path)  # -1: none
        self._direct = self._pages >= 0
        self._written, self._seconds = 0, 0.0

    def write(self, buffer: Bytes, begin: int, end: int, place: int) -> None:
        """Write buffer[begin:end] at `place`, directly if `begin` is `aligned` in a `page_buffer`.

        Raises OSError, for example when the disk is full.
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
        """Close the file; no thread may write any more."""
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
            self._direct = False  # the file system needs another alignment
            _write_at(self._file, pages, place)
        self._seconds += time.perf_counter() - begun
        self._written += len(pages)
        if self._seconds > TRIAL_S and self._written < SLOWEST * self._seconds:
            self._direct = False


class DirectStream:
    """The output of one thread. It fills one buffer of `room` bytes while `writer` writes the other to the file."""

    def __init__(self, file: DirectFile, writer: Executor, room: int = BUFFER) -> None:
        self._file, self._writer = file, writer
        self._buffer, self._spare = page_buffer(room), page_buffer(room)
        self._pieces: list[tuple[int, int, int]] = []  # begin, end in the buffer; place in the file
        self._writing: Future[None] | None = None

    def room(self, size: int, place: int) -> Bytes:
        """A buffer for at most `size` bytes that belong at `place`. Call `wrote` with the number of bytes filled."""
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
        """Report that `size` bytes of the last `room` are filled."""
        begin, end, place = self._pieces[-1]
        self._pieces[-1] = begin, end + size, place

    def flush(self) -> None:
        """Hand the buffer to the writer and continue with the other one. Waits until that is written.

        Raises OSError: the write of the other buffer failed.
        """
        self.wait()
        self._writing = self._writer.submit(self._write, self._buffer, self._pieces)
        self._buffer, self._spare, self._pieces = self._spare, self._buffer, []

    def wait(self) -> None:
        """Wait until the flushed buffer is written. Raises OSError: the write failed."""
        if self._writing is not None:
            self._writing.result()

    def _write(self, buffer: Bytes, pieces: list[tuple[int, int, int]]) -> None:
        for begin, end, place in pieces:
            self._file.write(buffer, begin, end, place)


class ThreadedFile:
    """A new file that several threads fill, each byte once. Gaps are zero.

    Each thread has its own `DirectStream`. A separate thread writes, so that the others do not wait for the disk.
    A context manager: on exit a file that has not been closed is abandoned.
    """

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
        """A buffer for at most `size` bytes at `place`; see `DirectStream.room`."""
        return self._stream().room(size, place)

    def wrote(self, size: int) -> None:
        """Report that `size` bytes of this thread's last `room` are filled. Without this call nothing is written."""
        self._stream().wrote(size)

    def write(self, data: memoryview | bytes, place: int) -> None:
        """Write small data immediately."""
        buffer = np.frombuffer(data, np.uint8)
        self._file.write(buffer, 0, len(buffer), place)

    def close(self) -> None:
        """Write the remaining data of all threads and close the file. Raises OSError, such as for a full disk."""
        for stream in self._streams:
            stream.flush()
        for stream in self._streams:
            stream.wait()
        self._release()

    def _stream(self) -> DirectStream:
        """The stream of this thread."""
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
    """A descriptor for direct writes, -1 where they are not supported."""
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT)
    except (AttributeError, OSError):  # AttributeError: not Linux; OSError: not on this file system
        return -1


def _write_at(file: int, data: memoryview, place: int) -> None:
    """Write all data; one system call takes at most 2 GB."""
    while data:
        written = os.pwrite(file, data, place)
        data, place = data[written:], place + written
