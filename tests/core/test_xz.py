"""`.xz` files as the standard library reads them, but for the memory that their header may ask for."""

from __future__ import annotations

import io
import lzma
import random
import struct
import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

from megahour.core.errors import BadRecord, MegahourError
from megahour.core.xz import open_xz
from megahour.corpus.media import archives
from megahour.lm.text.compression import unpacked

TEXT = random.Random(0).randbytes(3 << 20)


@cache
def stream() -> bytes:
    return lzma.compress(TEXT, preset=0)


def asking(code: int, data: bytes = b"one line\n") -> bytes:
    """A file whose header asks for a dictionary of 2 to 3 · 2^(11 + code // 2) bytes."""
    packed = bytearray(lzma.compress(data))
    start, end = 12, 12 + 4 * (packed[12] + 1)  # of the block's header; its filter is LZMA2, with one byte
    assert packed[start + 2 : start + 4] == b"\x21\x01"
    packed[start + 4] = code
    packed[end - 4 : end] = struct.pack("<I", zlib.crc32(packed[start : end - 4]))
    return bytes(packed)


@pytest.mark.parametrize(
    "made",
    [
        *(stream, lambda: stream() * 2, lambda: stream() + b"garbage"),
        *(partial(lzma.compress, b""), partial(asking, 28)),
    ],
    ids=["one", "two", "garbage", "empty", "64 MiB"],
)
def test_the_bytes_are_those_of_the_standard_library(made: Callable[[], bytes]) -> None:
    data = made()
    with open_xz(io.BytesIO(data)) as file, lzma.open(io.BytesIO(data)) as standard:
        assert file.read() == standard.read()


def test_a_stream_behind_padding_is_read_too() -> None:
    with open_xz(io.BytesIO(stream() + b"\0" * 8 + stream() + b"\0" * 4)) as file:
        assert file.read() == TEXT + TEXT


def test_a_file_that_ends_early_is_no_whole_file() -> None:
    for end in (0, 5, 100, len(stream()) - 1):
        with open_xz(io.BytesIO(stream()[:end])) as file, pytest.raises(EOFError):
            file.read()


def test_four_gigabytes_for_a_line_are_refused(tmp_path: Path) -> None:
    bomb = asking(39)
    with lzma.open(io.BytesIO(bomb)) as standard:
        assert standard.read() == b"one line\n", "it is a whole file"
    with open_xz(io.BytesIO(bomb)) as file, pytest.raises(lzma.LZMAError, match="Memory usage limit exceeded"):
        file.read()
    with pytest.raises(BadRecord, match="tar-corrupt: cannot unpack: Memory usage limit exceeded"):
        archives.unpacked(io.BytesIO(bomb), folder=tmp_path, max_bytes=1 << 20).__enter__()
    with pytest.raises(MegahourError, match="Memory usage limit"), unpacked(io.BytesIO(bomb), "a.xz") as text:
        text.read()
