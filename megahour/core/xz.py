"""Reads `.xz` files in bounded memory: what unpacking one takes, up to 4 GB, is what its header says."""

from __future__ import annotations

import io
import lzma
from typing import BinaryIO

MEMORY_BYTES = 256 << 20  # `xz -9` needs 65 MiB
READ_BYTES = 1 << 16
MAGIC = b"\xfd7zXZ\0"


class _Unpacked(io.RawIOBase):
    """The streams of a file, one after the other; what follows the last one and is none is ignored, as xz does."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed, self._rest = packed, packed.read(READ_BYTES)
        self._decoder = lzma.LZMADecompressor(memlimit=MEMORY_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while True:
            if self._decoder.eof and not self._next_stream():
                return 0
            if self._decoder.needs_input and not self._rest:
                self._rest = self._packed.read(READ_BYTES)
                if not self._rest:
                    raise EOFError("the compressed file ends before its end-of-stream marker")
            made, self._rest = self._decoder.decompress(self._rest, len(buffer)), b""
            if made:
                buffer[: len(made)] = made
                return len(made)

    def _next_stream(self) -> bool:
        """Begin another stream, which zeros may precede; False at the end of the file."""
        rest = self._decoder.unused_data.lstrip(b"\0")
        while len(rest) < len(MAGIC) and (more := self._packed.read(READ_BYTES)):
            rest = (rest + more).lstrip(b"\0")
        if not rest.startswith(MAGIC):
            return False
        self._rest, self._decoder = rest, lzma.LZMADecompressor(memlimit=MEMORY_BYTES)
        return True


def open_xz(packed: BinaryIO, mode: str = "rb") -> BinaryIO:
    """The unpacked bytes of an open file, to read from its start to its end.

    Raises, when read, LZMAError: damaged, or more than `MEMORY_BYTES` are needed; EOFError: it ends early.
    """
    return io.BufferedReader(_Unpacked(packed), 1 << 20)
