"""Range reads from object stores and web servers: only what is asked for, and no byte twice.

fsspec's own buffers fetch 5 MB (s3fs: 50 MB) after every seek, a thousand utterances when one is wanted. Here the
first read after a seek fetches `block_bytes`, and each read that continues from there fetches twice as much as the
last: sequential reading needs few requests, random access few bytes.
"""

from __future__ import annotations

import io
import tempfile
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

Span = tuple[int, int]

BLOCK_BYTES = 64 << 10  # the first read after a seek
MOST_BYTES = 8 << 20  # the largest read, in sequential reading
HELD_BYTES = 16 << 20  # most recently fetched bytes of a file that stay in memory
GAP = 16 << 10  # two ranges at most this far apart become one request
REQUEST, TOGETHER = 8 << 20, 16 << 20  # most bytes of one request, and of concurrent requests (in memory)


def open_ranges(fs: Any, path: str, *, block_bytes: int = BLOCK_BYTES, keep: BinaryIO | None = None) -> BinaryIO:
    """Open a file of a remote fsspec file system as `ReadAhead`; a file of unknown size as fsspec opens it.

    Raises what `fs` raises for a missing file.
    """
    from fsspec.spec import AbstractBufferedFile

    file = fs.open(path, "rb", block_size=MOST_BYTES, cache_type="none")
    if not isinstance(file, AbstractBufferedFile) or file.size is None:
        return cast(BinaryIO, file)
    return cast(BinaryIO, ReadAhead(file, int(file.size), block_bytes=block_bytes, keep=keep))


def scratch_file(folder: Path) -> BinaryIO:
    """An unnamed temporary file in a local folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return cast(BinaryIO, tempfile.TemporaryFile(dir=folder))


class RangeFile(io.RawIOBase):
    """A seekable, readable file; subclasses define `read` and `seek`, and keep their position in `_position`."""

    _position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer)) or b""
        buffer[: len(data)] = data
        return len(data)


class ReadAhead(RangeFile):
    """A buffered file of `size` bytes over `file`, which itself fetches exactly the bytes it is asked for.

    Parameters
    ----------
    file: the remote file; closed with this one.
    block_bytes: least bytes that the first read after a seek fetches. 0: exactly the bytes asked for, for readers that
        know their ranges.
    keep: a file on disk that stores everything fetched, for files that are scanned first and read afterwards; closed
        with this one. None: the last `HELD_BYTES` stay in memory.
    """

    def __init__(self, file: Any, size: int, *, block_bytes: int = BLOCK_BYTES, keep: BinaryIO | None = None) -> None:
        self.size, self._file, self._block_bytes = size, file, block_bytes
        self._held: _Held | _Fetched = _Held() if keep is None else _Fetched(keep)
        self._ahead = block_bytes

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Raises ValueError for a position before the start of the file."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to byte {base + offset}: it is before the start of the file")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self.size - self._position)
        left = left if size is None or size < 0 else min(size, left)
        parts = []
        while left:
            part = self._held.at(self._position, left) or self._fetched(left)
            if not part:
                break  # the file has been truncated
            parts.append(part)
            self._position += len(part)
            left -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _fetched(self, size: int) -> bytes:
        start = self._position
        continues = start > 0 and self._held.holds(start - 1)
        self._ahead = min(2 * self._ahead, MOST_BYTES) if continues else self._block_bytes
        end = min(start + max(size, self._ahead), self._held.next_after(start, self.size))
        self._file.seek(start)
        data = bytes(self._file.read(end - start))
        if data:
            self._held.put(start, data)
        return data[:size]

    def close(self) -> None:
        if not self.closed:
            self._file.close()
            self._held.close()
        super().close()


class _Held:
    """Recently fetched bytes in memory: pieces by their first byte, the most recently used last."""

    def __init__(self) -> None:
        self._pieces: OrderedDict[int, bytes] = OrderedDict()
        self._bytes = 0

    def at(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from a position; empty if the first of them is not held."""
        for start in reversed(self._pieces):
            piece = self._pieces[start]
            if start <= position < start + len(piece):
                self._pieces.move_to_end(start)
                return piece[position - start : position - start + size]
        return b""

    def holds(self, position: int) -> bool:
        return any(start <= position < start + len(piece) for start, piece in self._pieces.items())

    def next_after(self, position: int, end: int) -> int:
        """The first held byte after a position, or `end`."""
        return min((start for start in self._pieces if start > position), default=end)

    def put(self, start: int, data: bytes) -> None:
        self._pieces[start] = data
        self._bytes += len(data)
        while self._bytes > HELD_BYTES and len(self._pieces) > 1:
            self._bytes -= len(self._pieces.popitem(last=False)[1])

    def close(self) -> None:
        self._pieces.clear()


class _Fetched:
    """All fetched bytes, at their offsets in a sparse file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._starts: list[int] = []  # of spans that do not touch, rising
        self._ends: list[int] = []

    def at(self, position: int, size: int) -> bytes:
        index = bisect_right(self._starts, position) - 1
        if index < 0 or position >= self._ends[index]:
            return b""
        self._file.seek(position)
        return self._file.read(min(size, self._ends[index] - position))

    def holds(self, position: int) -> bool:
        index = bisect_right(self._starts, position) - 1
        return index >= 0 and position < self._ends[index]

    def next_after(self, position: int, end: int) -> int:
        index = bisect_right(self._starts, position)
        return self._starts[index] if index < len(self._starts) else end

    def put(self, start: int, data: bytes) -> None:
        self._file.seek(start)
        self._file.write(data)
        end = start + len(data)
        first = bisect_right(self._starts, start)
        if first and self._ends[first - 1] == start:
            first -= 1
            start = self._starts[first]
        last = bisect_right(self._starts, end)
        if last > first:
            end = max(end, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start], [end]

    def close(self) -> None:
        self._file.close()


def merged(spans: Iterable[Span], size: int, gap: int = GAP) -> list[Span]:
    """Spans of a file of `size` bytes in order; those at most `gap` bytes apart are joined."""
    joined: list[Span] = []
    for start, end in sorted((max(0, start), min(end, size)) for start, end in spans if end > start):
        if joined and start - joined[-1][1] <= gap:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def requests(spans: Iterable[Span]) -> Iterator[list[Span]]:
    """Groups of requests to be made concurrently."""
    group: list[Span] = []
    for first, last in spans:
        for start in range(first, last, REQUEST):
            group.append((start, min(start + REQUEST, last)))
            if sum(end - start for start, end in group) >= TOGETHER:
                yield group
                group = []
    if group:
        yield group
