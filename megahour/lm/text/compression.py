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
BYTE_ORDER_MARK = "\ufeff".encode()  # Windows' editors put it before the first line


def first_bytes(raw: BinaryIO) -> bytes:
    """The first six bytes of a file, which show its compression. The next read returns them again, also of a pipe."""
    if isinstance(raw, io.BufferedReader) and not raw.seekable():
        return raw.peek(6)[:6]
    magic = raw.read(6)
    raw.seek(0)
    return magic


def past_mark(file: BinaryIO) -> int:
    """Skip a byte-order mark, which would become part of the first word; return the number of bytes skipped."""
    size = len(BYTE_ORDER_MARK)
    if isinstance(file, io.BufferedReader | gzip.GzipFile | bz2.BZ2File):  # a pipe cannot go back
        marked = file.peek(size)[:size] == BYTE_ORDER_MARK
        return len(file.read(size)) if marked else 0
    if file.read(size) == BYTE_ORDER_MARK:
        return size
    file.seek(0)
    return 0


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
        elif magic == b"\xfd7zXZ\0":
            with open_xz(raw) as file:
                yield file
        elif magic[:3] == b"BZh":
            with bz2.open(raw) as file:
                yield cast(BinaryIO, file)
        elif magic[:4] == b"\x28\xb5\x2f\xfd":
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
