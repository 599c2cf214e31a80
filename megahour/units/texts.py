"""Reads lines of text from the inputs of a stage: text artifacts, transcripts in tables, files and globs."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, cast

from megahour.core.errors import ConfigError
from megahour.core.filesystems import file_system, local_file, open_file
from megahour.core.transfer import file_digest

if TYPE_CHECKING:
    from megahour.core.store import Artifact

TABLES = {"features": ".arrow", "selection": ".parquet"}
"""Roles whose tables have a `text` column, and the tables' suffix."""
_FIELD = re.compile(r"[^ \t\r\n]+")


def find_files(sources: Sequence[str]) -> list[str]:
    """URLs of the files that the paths, URLs and globs match, sorted, without repeats.

    Raises ConfigError, naming a source that is a folder, matches no file, or has an unknown or uninstalled protocol.
    """
    paths: set[str] = set()
    for source in sources:
        if local := local_file(source):
            paths.add(f"file://{local}")
            continue
        fs, path = file_system(source)
        matches = [path] if fs.isfile(path) else [match for match in fs.glob(path) if fs.isfile(match)]
        if not matches and fs.isdir(path):
            raise ConfigError(
                "a folder, not a file", where=source, remedy=f"name its files: {source.rstrip('/')}/*.txt"
            )
        if not matches:
            raise ConfigError(f"no file matches {source!r}", remedy="give paths, URLs or globs of files that exist")
        paths.update(fs.unstrip_protocol(match) for match in matches)
    return sorted(paths)


def files_digest(sources: Sequence[str]) -> str:
    """SHA-256 over the contents of the files, so that a stage runs again when they change but not when they move."""
    digest = hashlib.sha256()
    for url in find_files(sources):
        fs, path = file_system(url)
        digest.update(file_digest(fs, path)[1].encode())
    return digest.hexdigest()


def file_lines(sources: Sequence[str]) -> Iterator[str]:
    """Lines of UTF-8 text files; names ending in ``.gz`` are decompressed."""
    for url in find_files(sources):
        with open_file(url) as file:
            yield from _lines(file, packed=url.endswith(".gz"), where=url)


def lines_of(text: str) -> list[str]:
    r"""Lines that end at a line feed only: words may hold the other line ends of Unicode.

    >>> lines_of("a\u2028b 1\nc 2\n")
    ['a\u2028b 1', 'c 2']
    """
    return text.removesuffix("\n").split("\n") if text else []


def fields_of(line: str) -> list[str]:
    """What stands between spaces, tabs and line ends of ASCII: a word may hold a no-break space, as in 10 000."""
    return _FIELD.findall(line)


def word_list(words: Iterable[str]) -> str:
    """Kaldi's words.txt: lines ``word number``, numbered from 0."""
    return "".join(f"{word} {number}\n" for number, word in enumerate(words))


def listed_words(text: str) -> list[str]:
    """Inverse of `word_list`."""
    return [line.rpartition(" ")[0] for line in lines_of(text)]


def check_text_sets(inputs: Mapping[str, Artifact], sets: Sequence[str], *, where: str) -> None:
    """Raises ConfigError: one of `sets` has no shard in any table of `TABLES`; a text has no sets."""
    from megahour.features.sets import check_sets  # here: `lm train` reads files alone, and starts without it

    if tables := [inputs[role] for role in TABLES if role in inputs]:
        check_sets(tables, sets, where=where)


def input_lines(inputs: Mapping[str, Artifact], sets: Sequence[str] = ()) -> Iterator[str]:
    """Lines of the `text` artifact's ``.txt`` and ``.txt.gz`` files, then the `text` column of the tables of `TABLES`.

    `sets` limits tables to shards whose tag `set` is among these; empty means all shards.
    """
    if "text" in inputs:
        for receipt in inputs["text"].receipts():
            for suffix in sorted(suffix for suffix in receipt.files if suffix.endswith((".txt", ".txt.gz"))):
                with inputs["text"].open(receipt.shard, suffix) as file:
                    yield from _lines(file, packed=suffix.endswith(".gz"), where=inputs["text"].url)
    for role, suffix in TABLES.items():
        for receipt in inputs[role].receipts() if role in inputs else ():
            if not sets or receipt.tags.get("set") in sets:
                table = inputs[role].read_table(receipt.shard, suffix, columns=["text"])
                for chunk in table["text"].chunks:
                    yield from chunk.to_pylist()


def _lines(file: BinaryIO, *, packed: bool, where: str) -> Iterator[str]:
    """Raises ConfigError: `where` is not UTF-8, or not whole gzip although its name says so."""
    raw = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
    read = 0
    try:
        for line in io.TextIOWrapper(raw, encoding="utf-8-sig", newline="\n"):
            yield line
            read += 1
    except UnicodeDecodeError as error:
        what = f"not UTF-8, after line {read}: byte {error.object[error.start]:#04x}"
        raise ConfigError(what, where=where, remedy="iconv -f latin1 -t utf-8 FILE, with the encoding it has") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        what = f"damaged gzip, after line {read}: {error}"
        raise ConfigError(what, where=where, remedy="copy it again; `gzip -t FILE` tests it") from None
