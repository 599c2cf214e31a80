"""Text of language models as blocks of bytes: files, globs, URLs and pipes, compressed or not, and columns of tables.

Blocks end between words, so that a line may be longer than memory; a word may not be longer than MAX_WORD. Compression
is recognised by the first bytes. As in `lmplz`, bytes are taken as they are, whatever their encoding, unless UTF-8 is
asked for.
"""

from __future__ import annotations

import hashlib
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import numpy as np

from megahour.core.errors import ConfigError, MegahourError
from megahour.core.filesystems import open_file, size_of
from megahour.lm.text.compression import first_bytes, unpacked
from megahour.lm.text.tokenise import PADDING, Bytes
from megahour.units.texts import files_digest, find_files

BLOCK_BYTES = 1 << 20
MAX_WORD = 64 << 20  # bytes
STDIN = "-"
ROWS = 1 << 14  # of a column at a time
_COLUMN = re.compile(r"(?P<files>.+\.parquet):(?P<column>[^/:]+)")
_RESERVED = re.compile(rb"(?<![^ \t\r\n\0])(?:<unk>|</?s>)(?![^ \t\r\n\0])")
_PARTS = tuple(b" \t\r\0")
_UTF16 = ("UTF-16, whose every second byte would part words", "convert the file (iconv -f utf-16 -t utf-8 …)")
_SOUND = ("sound", "give its transcript")
_NO_TEXT = {
    b"PAR1": ("a Parquet table", "name a column: FILE.parquet:COLUMN"),
    b"PK\3\4": ("a zip archive", "unpack it; gzip, xz, bzip2 and zstd are read as they are"),
    b"%PDF-": ("a PDF", "extract its text"),
    b"\xff\xfe": _UTF16,
    b"\xfe\xff": _UTF16,
    **dict.fromkeys((b"fLaC\0", b"OggS\0", b"ID3\2", b"ID3\3", b"ID3\4", b"\xff\xfb"), _SOUND),
}
"""First bytes: what such a file is, and what to do. lmplz would estimate a model of it."""


class Readable(Protocol):
    """A file open for reading."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the buffer from its begin on; how many bytes, 0 at the end."""


@dataclass(frozen=True)
class Block:
    """Bytes text[:end] of whole words from the file `name`, of which `line` is the first; PADDING bytes follow.

    The array is used again for the next block.
    """

    name: str
    line: int
    text: Bytes
    end: int

    def tobytes(self) -> bytes:
        return self.text[: self.end].tobytes()

    def reserved(self) -> MegahourError:
        """The error that names the first of `<s>`, `</s>`, `<unk>` among the words."""
        data = self.tobytes()
        result = _RESERVED.search(data)
        if result is None:
            raise ValueError(f"{self.name}: no reserved word in the block from line {self.line} on")
        return MegahourError(
            f"the text has the word {result.group().decode()}, which is reserved in models",
            where=f"{self.name}:{self.line + data.count(10, 0, result.start())}",
            remedy="remove it from the text, or leave such words out: --skip-symbols (lmplz: --skip_symbols)",
        )

    def check_utf8(self) -> None:
        """Raises MegahourError, naming the line, where the bytes are not UTF-8."""
        data = self.tobytes()
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise MegahourError(
                f"not UTF-8: {data[max(0, error.start - 20) : error.start + 20]!r}",
                where=f"{self.name}:{self.line + data.count(10, 0, error.start)}",
                remedy="convert the file (iconv -f latin1 -t utf-8 …)",
            ) from None


def blocks(sources: Sequence[str], block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Blocks of the files that paths, URLs and globs name, sorted; `table.parquet:column` names a column of text.
    Streams (`is_stream`) come first, and can be read once.

    Raises ConfigError: nothing matches a source. MegahourError: damaged compression, no such column, no text.
    """
    for name in sorted(set(filter(is_stream, sources))):
        with _open_stream(name) as raw, _text(raw, name) as file:
            yield from file_blocks(file, "standard input" if name == STDIN else name, block_bytes)
    for url, column in source_files([source for source in sources if not is_stream(source)]):
        if column:
            yield from line_blocks(_column(url, column), f"{url}:{column}")
            continue
        with open_file(url) as raw, _text(raw, url) as file:
            yield from file_blocks(file, url, block_bytes)


def line_blocks(lines: Iterable[str | bytes], name: str, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Blocks of lines without their ends; line ends inside a line are taken as spaces."""
    held: list[bytes] = []
    size, first = 0, 1
    for count, line in enumerate(lines, 1):
        data = line if isinstance(line, bytes) else line.encode(errors="surrogatepass")
        held.append(data.replace(b"\n", b" "))
        size += len(held[-1]) + 1
        if size >= block_bytes:
            yield _joined(held, name, first)
            held, size, first = [], 0, count + 1
    if held:
        yield _joined(held, name, first)


def sources_digest(sources: Sequence[str]) -> str:
    """SHA-256 over the contents of the files and the names of columns, wherever the files are."""
    parts = [_split(source) for source in sources]
    digest = hashlib.sha256(files_digest([files for files, _ in parts]).encode())
    for column in sorted({column for _, column in parts if column}):
        digest.update(column.encode())
    return digest.hexdigest()


def is_stream(source: str) -> bool:
    """Whether it is `-`, standard input, or a pipe such as the shell's ``<(command)``."""
    try:
        return source == STDIN or stat.S_ISFIFO(Path(source).stat().st_mode)
    except (OSError, ValueError):
        return False  # a glob, a URL, or nothing that is there


def text_bytes(sources: Sequence[str]) -> int:
    """Stored size of the files in bytes, to estimate memory and disk; 0 if unknown."""
    if any(map(is_stream, sources)):
        return 0
    return sum(size_of(url) for url, _ in source_files(sources))


def _split(source: str) -> tuple[str, str]:
    result = _COLUMN.fullmatch(source)
    return (result["files"], result["column"]) if result else (source, "")


def source_files(sources: Sequence[str]) -> list[tuple[str, str]]:
    """(URL, column or "") of all sources, sorted, each once."""
    return sorted({(url, column) for files, column in map(_split, sources) for url in find_files([files])})


def _joined(lines: list[bytes], name: str, first: int) -> Block:
    data = b"\n".join([*lines, bytes(PADDING)])
    return Block(name, first, np.frombuffer(data, np.uint8), len(data) - PADDING)


def _column(url: str, name: str) -> Iterator[bytes]:
    import pyarrow as pa  # a fifth of a second that other text need not wait for
    import pyarrow.parquet as pq

    try:
        with open_file(url) as file:
            table = pq.ParquetFile(file)
            if name not in table.schema_arrow.names:
                columns = ", ".join(table.schema_arrow.names)
                raise ConfigError(f"no column {name!r}; there are: {columns}", where=url)
            for batch in table.iter_batches(ROWS, columns=[name]):
                values = batch.column(0).cast(pa.large_string()).cast(pa.large_binary())
                yield from (value for value in values.to_pylist() if value is not None)
    except (pa.ArrowException, ValueError) as error:  # ValueError: fsspec's, of servers that send whole files only
        raise MegahourError(f"not text in Parquet: {error}", where=f"{url}:{name}") from None


def _open_stream(name: str) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if name == STDIN else Path(name).open("rb")


@contextmanager
def _text(raw: BinaryIO, name: str) -> Iterator[Readable]:
    """`unpacked`; raises ConfigError where the first bytes say that it is no text of bytes."""
    magic = first_bytes(raw)
    for begin, (what, remedy) in _NO_TEXT.items():
        if magic.startswith(begin):
            raise ConfigError(f"{what}, not text", where=name, remedy=remedy)
    with unpacked(raw, name) as file:
        yield cast(Readable, file)


def file_blocks(file: Readable, name: str, block_bytes: int) -> Iterator[Block]:
    buffer = bytearray(block_bytes + PADDING)
    held, line, last = 0, 1, 10
    while got := _fill(file, buffer, held):
        end = _last_part(buffer, held, held + got)
        held += got
        if end:
            yield Block(name, line, np.frombuffer(buffer, np.uint8), end)
            last = buffer[end - 1]
            line += buffer.count(10, 0, end)
            rest = bytes(memoryview(buffer)[end:held])
            buffer[: len(rest)] = rest
            held = len(rest)
        elif held > MAX_WORD:
            raise MegahourError(
                f"a word of more than {MAX_WORD >> 20} MB", where=f"{name}:{line}", remedy="check that it is text"
            )
        elif held + PADDING >= len(buffer):
            buffer = buffer + bytearray(len(buffer))
    if held or last != 10:  # the last line has no end
        buffer[held] = 10
        yield Block(name, line, np.frombuffer(buffer, np.uint8), held + 1)


def _fill(file: Readable, buffer: bytearray, held: int) -> int:
    """Read on behind the bytes held until the buffer is full, but for PADDING, or the file ends."""
    begin, end = held, len(buffer) - PADDING
    with memoryview(buffer) as view:
        while held < end and (got := file.readinto(view[held:end])):
            held += got
    return held - begin


def _last_part(buffer: bytearray, begin: int, end: int) -> int:
    """The place behind the last line end, or else the last byte that parts words, of buffer[begin:end]; 0: none."""
    line_end = buffer.rfind(10, begin, end)
    return 1 + (line_end if line_end >= 0 else max(buffer.rfind(part, begin, end) for part in _PARTS))
