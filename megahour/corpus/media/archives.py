"""Read untrusted tar archives.

The reader walks the headers and returns windows onto the archive's bytes. It never uses a member's name as a path on
disk.
Header layout: POSIX.1-2017, pax, "ustar Interchange Format"; long names of GNU tar are understood as well.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from megahour.core.errors import BadRecord
from megahour.core.xz import open_xz
from megahour.corpus.media.containers import byte_size
from megahour.corpus.media.tar import BLOCK, COPY_BYTES, TarWindow

MAX_HEADER_BYTES = 1 << 16  # limit for a long name or a pax header; real ones have a few hundred bytes
MAX_MEMBERS = 1_000_000
REFUSED = {
    tarfile.LNKTYPE: "tar-link",
    tarfile.SYMTYPE: "tar-link",
    tarfile.CHRTYPE: "tar-device",
    tarfile.BLKTYPE: "tar-device",
    tarfile.FIFOTYPE: "tar-device",
}
LONG_NAME = b"L"
PAX_RECORD = re.compile(rb"(\d{1,6}) ([^=]+)=")
SPARSE = "a sparse file (tar -S); pack it again without -S"
# Positions of the flag that another header of a sparse file's map follows, in the member's header and in such a header.
EXTENDED, EXTENDED_AGAIN = 482, 504
REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
USTAR = slice(257, 262)  # position of the magic in the first header; an archive without it may still be an old (v7) tar
PACKED: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": open_xz}


@dataclass(frozen=True)
class Member:
    """A regular file in an archive: its name, and the offset and size of its bytes."""

    name: str
    offset: int
    size: int


def read_members(file: BinaryIO, *, max_bytes: int) -> Iterator[Member | BadRecord]:
    """Walk an uncompressed tar in a seekable file. Yields a BadRecord in place of each member that must not be used.

    Reasons: ``tar-absolute-path``, ``tar-parent-path``, ``tar-link``, ``tar-device``, ``tar-unsupported``,
    ``too-large`` (above `max_bytes`), ``duplicate-id``; ``tar-truncated``, ``tar-corrupt`` and ``tar-too-many`` end
    the walk. An archive behind the end of another, as `cat` joins them, is read as well.
    """
    size, position = byte_size(file), 0
    seen: set[str] = set()
    extended = _Extended()
    while (position := _behind_zeros(file, position)) < size:
        file.seek(position)
        try:
            info = tarfile.TarInfo.frombuf(file.read(BLOCK), "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            yield BadRecord("tar-corrupt", f"at byte {position} of {size}: {error}")
            return
        if extended.size >= 0 and info.type in REGULAR:
            info.size = extended.size
        data = position + BLOCK if info.type != tarfile.GNUTYPE_SPARSE else _behind_map(file, position)
        position = data + -(-info.size // BLOCK) * BLOCK
        if info.size < 0 or data + info.size > size:
            detail = f"{info.size} bytes declared at byte {data}, but the archive ends at byte {size}"
            yield BadRecord("tar-truncated", detail, record=info.name)
            return
        if info.type in (LONG_NAME, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK):
            if info.size > MAX_HEADER_BYTES:
                yield BadRecord("tar-corrupt", f"a header of {info.size} bytes, the limit is {MAX_HEADER_BYTES}")
                return
            extended = _extended(info.type, file.read(info.size), extended)
            continue
        name, is_sparse, extended = extended.name or info.name, extended.is_sparse, _Extended()
        if info.type == tarfile.DIRTYPE:
            continue
        if len(seen) >= MAX_MEMBERS:
            yield BadRecord("tar-too-many", f"more than {MAX_MEMBERS} members")
            return
        problem = (("tar-unsupported", SPARSE) if is_sparse else _refusal(info, name, max_bytes)) or (
            ("duplicate-id", "an earlier member has the same name") if name in seen else None
        )
        seen.add(name)
        yield BadRecord(*problem, record=name) if problem else Member(name, data, info.size)


def _behind_zeros(file: BinaryIO, position: int) -> int:
    """The first block from `position` on that is not all zeros; those end an archive, and pad it."""
    file.seek(position)
    block = file.read(BLOCK)
    while block and not (rest := block.lstrip(b"\0")):
        position += len(block)
        block = file.read(COPY_BYTES)
    return position + (len(block) - len(rest)) // BLOCK * BLOCK if block else position


def _behind_map(file: BinaryIO, position: int) -> int:
    """Where the bytes of a sparse member of GNU tar begin: its map may go on in further headers."""
    file.seek(position + EXTENDED)
    extended, position = file.read(1), position + BLOCK
    while extended.strip(b"\0"):
        file.seek(position + EXTENDED_AGAIN)
        extended, position = file.read(1), position + BLOCK
    return position


class _Extended(NamedTuple):
    """What headers before a member say of it: its name, its size (-1: nothing), and that it is sparse."""

    name: str = ""
    size: int = -1
    is_sparse: bool = False


def _extended(kind: bytes, payload: bytes, so_far: _Extended) -> _Extended:
    """The next member's name, from a GNU long-name block or a pax header, and its size, from a pax header.

    A pax header has the sizes from 8 GiB on, for which the member's own field is too small.
    """
    if kind == LONG_NAME:
        return so_far._replace(name=payload.rstrip(b"\0").decode("utf-8", "surrogateescape"))
    fields = dict(_records(payload)) if kind == tarfile.XHDTYPE else {}
    name = fields.get(b"GNU.sparse.name", fields.get(b"path", b"")).decode("utf-8", "surrogateescape")
    size = fields.get(b"size", b"")
    return _Extended(
        name or so_far.name,
        int(size) if re.fullmatch(rb"\d{1,19}", size) else so_far.size,
        so_far.is_sparse or any(key.startswith(b"GNU.sparse.") for key in fields),
    )


def _records(payload: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keywords and values of a pax header: ``LENGTH KEYWORD=VALUE`` and a line end, which the length counts."""
    at = 0
    while match := PAX_RECORD.match(payload, at):
        end = at + int(match[1])
        yield match[2], payload[match.end() : end - 1]
        if end <= at:
            return
        at = end


def _refusal(info: tarfile.TarInfo, name: str, max_bytes: int) -> tuple[str, str] | None:
    """(reason, detail) if a member must not be used, else None."""
    if info.type in REFUSED:
        return REFUSED[info.type], f"type {info.type!r} to {info.linkname!r}"
    if info.type not in REGULAR:
        return "tar-unsupported", SPARSE if info.type == tarfile.GNUTYPE_SPARSE else f"type {info.type!r}"
    if problem := path_refusal("tar", name):
        return problem
    if info.size > max_bytes:
        return "too-large", f"{info.size} bytes, the limit max_bytes is {max_bytes}"
    return None


def path_refusal(kind: str, name: str) -> tuple[str, str] | None:
    """(reason, detail) if a member's name points outside the archive, else None. kind: "tar" or "zip"."""
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or parts[0].endswith(":"):
        return f"{kind}-absolute-path", repr(name)
    if ".." in parts:
        return f"{kind}-parent-path", repr(name)
    return None


@contextmanager
def unpacked(file: BinaryIO, *, max_bytes: int, folder: Path | None = None) -> Iterator[BinaryIO]:
    """Give the uncompressed bytes of a tar (gzip, bzip2, xz or plain) as a seekable file.

    A compressed archive is unpacked into one anonymous temporary file of at most `max_bytes`.

    Raises
    ------
    BadRecord: ``tar-too-large`` for an archive that grows beyond `max_bytes`, ``tar-corrupt`` for broken compression.
    """
    head = file.read(USTAR.stop)
    file.seek(0)
    opener = None if head[USTAR] == b"ustar" else PACKED.get(head[:2])
    if opener is None:
        yield file
        return
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as target:
        for block in _plain_blocks(file, opener):
            target.write(block)
            if target.tell() > max_bytes:
                raise BadRecord("tar-too-large", f"more than {max_bytes} bytes when unpacked")
        target.seek(0)
        yield cast(BinaryIO, target)


def _plain_blocks(file: BinaryIO, opener: Callable[..., Any]) -> Iterator[bytes]:
    """Decompressed blocks; broken compression is a BadRecord, a failing disk or network stays an OSError."""
    try:
        with opener(file, "rb") as source:
            while block := source.read(COPY_BYTES):
                yield block
    except (EOFError, zlib.error, lzma.LZMAError) as error:
        raise BadRecord("tar-corrupt", f"cannot unpack: {error}") from error
    except OSError as error:
        if error.errno is not None:  # the operating system's; those of the decompressors have no number
            raise
        raise BadRecord("tar-corrupt", f"cannot unpack: {error}") from error


def window(file: BinaryIO, member: Member) -> BinaryIO:
    """A member's bytes as a binary file."""
    return cast(BinaryIO, TarWindow(file, member.offset, member.size))
