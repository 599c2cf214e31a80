"""Scratch files that are written once and read once, sequentially, in large pieces past the page cache.

Data that are read once do not profit from the cache, and the copy to it takes longer than the estimator's own loops.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from megahour.core.errors import StageError
from megahour.lm.arpa.direct import PAGE, DirectFile, page_buffer

PIECE_BYTES = 1 << 20

if TYPE_CHECKING:
    from megahour.core.writer import ShardWriter

Array = npt.NDArray[Any]


class StreamWriter:
    """Writes arrays one after the other. The file gets its name on `close`. hashed: compute the SHA-256, `digest`."""

    def __init__(self, path: Path, *, hashed: bool = False) -> None:
        self._path, self._scratch = path, path.with_name(f"{path.name}.part")
        self._file = DirectFile(self._scratch)
        self.digest = hashlib.sha256() if hashed else None
        self._buffer = page_buffer(PIECE_BYTES)
        self._used = self._place = 0

    def put(self, array: Array) -> None:
        """Write a contiguous array."""
        data = array.reshape(-1).view(np.uint8)
        while len(data):
            share = min(len(data), PIECE_BYTES - self._used)
            self._buffer[self._used : self._used + share] = data[:share]
            self._used, data = self._used + share, data[share:]
            if self._used == PIECE_BYTES:
                self._flush()

    def close(self) -> None:
        self._flush()
        self._file.close()
        self._scratch.replace(self._path)

    def abandon(self) -> None:
        """Close the file without its name."""
        self._file.close()

    def _flush(self) -> None:
        if self.digest is not None:
            self.digest.update(self._buffer[: self._used].data)
        self._file.write(self._buffer, 0, self._used, self._place)
        self._place, self._used = self._place + self._used, 0


@contextmanager
def shard_stream(out: ShardWriter, suffix: str) -> Iterator[StreamWriter]:
    """Write the file *suffix* of a shard past the page cache; its SHA-256 is computed on the way."""
    writer = StreamWriter(out.path(suffix), hashed=True)
    try:
        yield writer
    except BaseException:
        writer.abandon()
        raise
    writer.close()
    assert writer.digest is not None
    out.hashed(suffix, writer.digest.hexdigest())


class StreamReader:
    """Reads what a `StreamWriter` wrote, from byte `begin` on."""

    def __init__(self, path: Path, begin: int = 0) -> None:
        self._path, self._place = path, begin // PAGE * PAGE
        self._file = _open(path, getattr(os, "O_DIRECT", 0))
        self._buffer = page_buffer(PIECE_BYTES)
        self._at, self._end, self._last = begin % PAGE, 0, False

    def pieces(self) -> Iterator[Array]:
        """The rest of the file. A piece is valid until the next one."""
        while self._at < self._end or self._read():
            yield self._buffer[self._at : self._end]
            self._at = self._end

    def fill(self, array: Array) -> bool:
        """Read a contiguous array; False at the end of the file.

        Raises StageError: the file ends within the array.
        """
        view = array.reshape(-1).view(np.uint8)
        done = 0
        while done < len(view):
            if self._at >= self._end and not self._read():
                if done:
                    raise short_file(self._path)
                return False
            share = min(len(view) - done, self._end - self._at)
            view[done : done + share] = self._buffer[self._at : self._at + share]
            done, self._at = done + share, self._at + share
        return True

    def close(self) -> None:
        os.close(self._file)

    def _read(self) -> bool:
        """Read the next piece; False at the end of the file."""
        while not self._last:
            got = self._got()
            self._at, self._end, self._place = max(self._at - self._end, 0), got, self._place + got
            self._last = got == 0  # a read may return less than is left
            if self._at < got:
                return True
        return False

    def _got(self) -> int:
        """Read to the buffer; return the number of bytes, 0 at the end of the file."""
        try:
            return os.preadv(self._file, [self._buffer.data], self._place)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        os.close(self._file)  # the file system needs another alignment
        self._file = _open(self._path, 0)
        return os.preadv(self._file, [self._buffer.data], self._place)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, read past the page cache."""
    digest = hashlib.sha256()
    with closing(StreamReader(path)) as file:
        for piece in file.pieces():
            digest.update(piece.data)
    return digest.hexdigest()


def short_file(path: Path) -> StageError:
    """An error for a scratch file that is cut short."""
    return StageError("a scratch file ends early", where=str(path), remedy="remove the scratch directory and run again")


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, os.O_RDONLY | flags)
    except OSError:
        if not flags:
            raise
        return os.open(path, os.O_RDONLY)
