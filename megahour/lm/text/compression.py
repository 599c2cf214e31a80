"""Reading of files that may be compressed by gzip, xz, bzip2 or zstd. The first bytes decide, not the name."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from megahour.core.errors import MegahourError
from megahour.core.xz import open_xz

BUFFER = 1 << 20
HEAD = 512  # bytes; those of a tar archive from 257 on show that it is one
ZSTD = (b"\x28\xb5\x2f\xfd", *(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60)))
"""How a file of zstd begins, or that of pzstd: with a frame to skip."""
COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ\0", b"BZh", *ZSTD)
BYTE_ORDER_MARK = "\ufeff".encode()  # Windows' editors put it before the first line


def first_bytes(file: BinaryIO, size: int = HEAD) -> bytes:
    """The first bytes of an open file, which show what it is. The next read returns them again, also of a pipe."""
    piped = isinstance(file, io.BufferedReader) and not file.seekable()
    if piped or isinstance(file, gzip.GzipFile | bz2.BZ2File):
        return cast(io.BufferedReader, file).peek(size)[:size]
    found = file.read(size)
    file.seek(0)
    return found


def past_mark(file: BinaryIO) -> int:
    """Skip a byte-order mark, which would become part of the first word; return the number of bytes skipped."""
    size = len(BYTE_ORDER_MARK)
    return len(file.read(size)) if first_bytes(file, size) == BYTE_ORDER_MARK else 0


@contextmanager
def unpacked(raw: BinaryIO, name: str) -> Iterator[BinaryIO]:
    """Open the decompressed content of a file that is open already.

    Raises MegahourError on reading: the compressed data are damaged or end early.
    """
    magic = first_bytes(raw)
    try:
        if magic[:2] == b"\x1f\x8b":
            with gzip.open(raw) as file:
                yield cast(BinaryIO, file)
        elif magic.startswith(b"\xfd7zXZ\0"):
            with open_xz(raw) as file:
                yield file
        elif magic[:3] == b"BZh":
            with bz2.open(raw) as file:
                yield cast(BinaryIO, file)
        elif magic.startswith(ZSTD):
            from pyarrow import CompressedInputStream, PythonFile

            with CompressedInputStream(PythonFile(raw, "r"), "zstd") as file:
                yield cast(BinaryIO, io.BufferedReader(file, BUFFER))  # it has no `readlines` itself
        else:
            yield raw
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # from the system, not from a decompressor
            raise
        raise MegahourError(
            f"the compressed data are damaged or end early: {error}", where=name, remedy="copy the file again"
        ) from None
