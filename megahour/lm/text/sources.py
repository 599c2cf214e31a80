"""Text for language models, read as blocks of bytes from files, globs, URLs, pipes and columns of Parquet tables.

Blocks end between words, so a line may be longer than memory, but a word may not be longer than MAX_WORD. The first
bytes of a file show its compression. As in `lmplz`, the encoding does not matter, unless the caller asks for UTF-8.
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
from megahour.lm.text.arrays import Bytes
from megahour.lm.text.compression import first_bytes, past_mark, unpacked
from megahour.lm.text.tokenise import PADDING
from megahour.units.texts import files_digest, find_files

BLOCK_BYTES = 1 << 20
MAX_WORD = 1 << 20  # bytes; `arpa.read` takes lines of 64 MB, of at most 32 words
STDIN = "-"
ROWS = 1 << 14  # of a column at a time
_COLUMN = re.compile(r"(?P<files>.+\.parquet):(?P<column>[^/:]+)")
_RESERVED = re.compile(rb"(?<![^ \t\r\n\0])(?:<unk>|</?s>)(?![^ \t\r\n\0])")
_COUNT = re.compile(rb"[^\n\t]*\t\d+\r?(?:\n|$)")  # what ends a line of n-gram counts
_SEPARATORS = tuple(b" \t\r\0")
_UTF16 = ("UTF-16, whose zero bytes would separate words", "convert the file (iconv -f utf-16 -t utf-8 …)")
_REMEDY_OF_PACKED = "unpack it; gzip, xz, bzip2 and zstd are read as they are"
_NO_TEXT = tuple(
    (re.compile(begin, re.DOTALL), (what, remedy))
    for begin, what, remedy in (
        (rb"PAR1", "a Parquet table", "name a column: FILE.parquet:COLUMN"),
        (rb"PK\x03\x04", "a zip archive", _REMEDY_OF_PACKED),
        (rb"\x04\x22\x4d\x18|\x1f\x9d|7z\xbc\xaf|Rar!\x1a|LZIP\x01|\]\0\0", "a compressed file", _REMEDY_OF_PACKED),
        (rb".{257}ustar(?:  )?\0", "a tar archive", "unpack it, or give its files on standard input: tar -xOf FILE"),
        (rb"%PDF-", "a PDF", "extract its text"),
        (
            # Empty lines and comments may come before \data\.
            rb"(?:\xef\xbb\xbf|\s|#[^\n]*\n)*\\data\\\s|MHNGRAM\n|mmap lm ",
            "a language model",
            "give text, one sentence per line",
        ),
        (
            rb"fLaC\0|OggS\0|ID3[\x02-\x04]|\xff[\xf1-\xf3\xf9-\xfb]|(?:RIFF|RIFX|RF64).{4}WAVE|FORM.{4}AIF[CF]|caff\0"
            rb"|riff\x2e\x91|NIST_1A\n|\0\0\0.ftyp|\x1a\x45\xdf\xa3",
            "audio",
            "give its transcript",
        ),
        (rb"\xff\xfe|\xfe\xff", *_UTF16),
    )
)
"""How files begin that are not text, what they are, and the remedy. lmplz would estimate a model of them."""


class Readable(Protocol):
    """A file open for reading."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Read into the buffer; return the number of bytes, 0 at the end of the file."""


@dataclass(frozen=True)
class Block:
    """Whole words of the file `name`: text[:end], followed by PADDING bytes. `line` is the number of the first line.

    The next block reuses the array.
    """

    name: str
    line: int
    text: Bytes
    end: int

    def tobytes(self) -> bytes:
        return self.text[: self.end].tobytes()

    def reserved(self) -> MegahourError:
        """An error that names the first `<s>`, `</s>` or `<unk>` of the block and its line."""
        data = self.tobytes()
        result = _RESERVED.search(data)
        if result is None:
            raise ValueError(f"{self.name}: no reserved word in the block from line {self.line} on")
        remedy = "remove it from the text, or skip such words: --skip-symbols (lmplz: --skip_symbols)"
        if _COUNT.match(data, result.end()):
            remedy = "if these are n-gram counts, and no text, read them with --counts"
        return MegahourError(
            f"the text contains {result.group().decode()}, a reserved word of language models",
            where=f"{self.name}:{self.line + data.count(10, 0, result.start())}",
            remedy=remedy,
        )

    def check_utf8(self) -> None:
        """Raises MegahourError with the line: the bytes are not UTF-8."""
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
    """Read the files of paths, URLs and globs in sorted order; `table.parquet:column` is a column of text.

    Streams (`is_stream`) come first and can be read only once.

    Raises ConfigError: nothing matches a source. MegahourError: damaged compression, no such column, not text.
    """
    for name in sorted(set(filter(is_stream, sources))):
        with open_stream(name) as raw, text_of(raw, name) as file:
            yield from file_blocks(file, "standard input" if name == STDIN else name, block_bytes)
    for url, column in source_files([source for source in sources if not is_stream(source)]):
        if column:
            yield from line_blocks(_column(url, column), f"{url}:{column}")
            continue
        with open_file(url) as raw, text_of(raw, url) as file:
            yield from file_blocks(file, url, block_bytes)


def line_blocks(lines: Iterable[str | bytes], name: str, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """Join lines, given without their line breaks, to blocks. A line break inside a line becomes a space.

    Raises MegahourError: a word longer than MAX_WORD.
    """
    held: list[bytes] = []
    size, first = 0, 1
    for count, line in enumerate(lines, 1):
        data = line if isinstance(line, bytes) else line.encode(errors="surrogatepass")
        if len(data) > MAX_WORD and max(map(len, data.split()), default=0) > MAX_WORD:
            raise _endless(name, count)
        held.append(data.replace(b"\n", b" "))
        size += len(held[-1]) + 1
        if size >= block_bytes:
            yield _joined(held, name, first)
            held, size, first = [], 0, count + 1
    if held:
        yield _joined(held, name, first)


def sources_digest(sources: Sequence[str]) -> str:
    """SHA-256 of the contents of the files and the names of the columns. The location of the files has no effect."""
    parts = [_split(source) for source in sources]
    digest = hashlib.sha256(files_digest([files for files, _ in parts]).encode())
    for column in sorted({column for _, column in parts if column}):
        digest.update(column.encode())
    return digest.hexdigest()


def is_stream(source: str) -> bool:
    """Whether a source is standard input (`-`) or a pipe, such as the shell's ``<(command)``."""
    try:
        return source == STDIN or stat.S_ISFIFO(Path(source).stat().st_mode)
    except (OSError, ValueError):
        return False  # a glob, a URL, or no file


def text_bytes(sources: Sequence[str]) -> int:
    """Total size of the files as stored, in bytes, for estimates of memory and disk; 0 if unknown."""
    if any(map(is_stream, sources)):
        return 0
    return sum(size_of(url) for url, _ in source_files(sources))


def _split(source: str) -> tuple[str, str]:
    result = _COLUMN.fullmatch(source)
    return (result["files"], result["column"]) if result else (source, "")


def source_files(sources: Sequence[str]) -> list[tuple[str, str]]:
    """(URL, column) of all sources, sorted and without duplicates; the column is "" for files that are no tables."""
    return sorted({(url, column) for files, column in map(_split, sources) for url in find_files([files])})


def _joined(lines: list[bytes], name: str, first: int) -> Block:
    data = bytearray(b"\n").join([*lines, bytes(PADDING)])  # writable as those of `file_blocks`: the same kernels
    return Block(name, first, np.frombuffer(data, np.uint8), len(data) - PADDING)


def _column(url: str, name: str) -> Iterator[bytes]:
    import pyarrow as pa  # takes a fifth of a second, which other sources do not need
    import pyarrow.parquet as pq

    try:
        with open_file(url) as file:
            table = pq.ParquetFile(file)
            if name not in table.schema_arrow.names:
                columns = ", ".join(table.schema_arrow.names)
                raise ConfigError(f"no column {name!r}", where=url, remedy=f"give one of: {columns}")
            for batch in table.iter_batches(ROWS, columns=[name]):
                values = batch.column(0).cast(pa.large_string()).cast(pa.large_binary())
                yield from (value for value in values.to_pylist() if value is not None)
    except (pa.ArrowException, ValueError) as error:  # fsspec raises ValueError where a server sends whole files only
        raise MegahourError(f"cannot read text from Parquet: {error}", where=f"{url}:{name}") from None


def open_stream(name: str) -> AbstractContextManager[BinaryIO]:
    """Open a file or a pipe of this machine; `-` is standard input, which stays open."""
    return nullcontext(sys.stdin.buffer) if name == STDIN else Path(name).open("rb")


def check_text(head: bytes, name: str) -> None:
    """Raises ConfigError: the `first_bytes` of a file show that it is not text."""
    found = next((why for begin, why in _NO_TEXT if begin.match(head)), None)
    if len(head) >= 64 and any(not any(head[i::2]) and all(head[1 - i :: 2]) for i in (0, 1)):
        found = _UTF16  # without a byte-order mark: every second byte is zero
    if found:
        raise ConfigError(f"{found[0]}, not text", where=name, remedy=found[1])


@contextmanager
def text_of(raw: BinaryIO, name: str) -> Iterator[Readable]:
    """`unpacked`, without a byte-order mark. Raises ConfigError: the first bytes show that it is not text."""
    with unpacked(raw, name) as file:
        check_text(first_bytes(file), name)
        past_mark(file)
        yield cast(Readable, file)


def file_blocks(file: Readable, name: str, block_bytes: int) -> Iterator[Block]:
    """Read an open file as blocks of about `block_bytes`. Raises MegahourError: a word longer than MAX_WORD;
    some of less than twice that pass, depending on where they are in the blocks."""
    buffer = bytearray(block_bytes + PADDING)
    held, line, last = 0, 1, 10
    while got := _fill(file, buffer, held):
        end = _word_boundary(buffer, held, held + got)
        held += got
        if end:
            view = np.frombuffer(buffer, np.uint8)
            for at in range(0, end - MAX_WORD, MAX_WORD):
                if not _word_boundary(buffer, at, at + MAX_WORD + 1):
                    raise _endless(name, line + int(np.count_nonzero(view[:at] == 10)))
            yield Block(name, line, view, end)
            last = buffer[end - 1]
            line += int(np.count_nonzero(view[:end] == 10))
            rest = bytes(memoryview(buffer)[end:held])
            buffer[: len(rest)] = rest
            held = len(rest)
        elif held > MAX_WORD:
            raise _endless(name, line)
        elif held + PADDING >= len(buffer):
            buffer = buffer + bytearray(len(buffer))
    if held or last != 10:  # the last line has no line break
        buffer[held] = 10
        yield Block(name, line, np.frombuffer(buffer, np.uint8), held + 1)


def _endless(name: str, line: int) -> MegahourError:
    remedy = "check that the file is text, with spaces between words"
    return MegahourError(f"a word of more than {MAX_WORD:,} bytes", where=f"{name}:{line}", remedy=remedy)


def _fill(file: Readable, buffer: bytearray, held: int) -> int:
    """Append to the `held` bytes until only PADDING bytes are free or the file ends; return the number of bytes."""
    begin, end = held, len(buffer) - PADDING
    with memoryview(buffer) as view:
        while held < end and (got := file.readinto(view[held:end])):
            held += got
    return held - begin


def _word_boundary(buffer: bytearray, begin: int, end: int) -> int:
    """The index after the last line break in buffer[begin:end], or else after the last separator; 0 without any."""
    line_end = buffer.rfind(10, begin, end)
    return 1 + (line_end if line_end >= 0 else max(buffer.rfind(char, begin, end) for char in _SEPARATORS))
