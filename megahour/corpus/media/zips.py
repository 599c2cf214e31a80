"""Read untrusted zip archives by range: the central directory, then only the requested members.

Member names are never used as paths on disk. Members that share bytes, as in the zip bombs of Fifield ("A better zip
bomb", WOOT 2019), are refused, so no byte is unpacked twice.

Layout: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3 (zip64).
"""

from __future__ import annotations

import stat
import struct
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from megahour.core.errors import BadRecord
from megahour.corpus.media.archives import MAX_MEMBERS, path_refusal
from megahour.corpus.media.containers import byte_size
from megahour.corpus.media.tar import COPY_BYTES, TarWindow

END, LOCATOR, END64, ENTRY, LOCAL = b"PK\5\6", b"PK\6\7", b"PK\6\6", b"PK\1\2", b"PK\3\4"
END_FORM, LOCATOR_FORM, END64_FORM = struct.Struct("<4s4H2LH"), struct.Struct("<4sLQL"), struct.Struct("<4sQ2H2L4Q")
ENTRY_FORM, LOCAL_FORM = struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")
IN_ZIP64 = 0xFFFFFFFF  # placeholder for a size or an offset: the actual value is in the extra field
ZIP64_FIELD = 1
MAX_DIRECTORY_BYTES = 256 << 20
STORED, DEFLATED = 0, 8
ENCRYPTED, UTF8 = 0x2041, 0x800  # flags: encrypted (plain, strong, or the directory is); names are UTF-8
SPOOL_BYTES = 16 << 20  # larger unpacked members go to disk
# Audio and text compress 10 to 50 times. A large member that compresses more than 200 times is a zip bomb.
BOMB_RATIO, BOMB_BYTES = 200, 64 << 20
LEFT_BY_MACS = "__MACOSX/"


@dataclass(frozen=True)
class ZipMember:
    """A file in a zip. offset: of its local header. end: upper bound on where its bytes end. raw_name: undecoded."""

    name: str
    raw_name: bytes
    method: int
    crc: int
    packed: int
    size: int
    offset: int
    end: int


class _Directory(NamedTuple):
    """Start and size of the central directory, its number of members, and the number of bytes before the archive."""

    start: int
    size: int
    members: int
    before: int


class _Entry(NamedTuple):
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    offset: int
    mode: int
    raw_name: bytes


def read_zip(file: BinaryIO, *, max_bytes: int) -> Iterator[ZipMember | BadRecord]:
    """Yield the members of a zip in a seekable file, in directory order, or a BadRecord for an unusable member.

    Reasons: ``zip-absolute-path``, ``zip-parent-path``, ``zip-link``, ``zip-encrypted``, ``zip-unsupported`` (an
    unknown method or a split archive), ``zip-overlap``, ``zip-bomb``, ``too-large`` (above `max_bytes`),
    ``duplicate-id``; ``zip-corrupt`` and ``zip-too-many`` end the walk if they concern the directory.
    """
    try:
        directory = _directory(file)
        entries = list(_entries(file, directory))
    except BadRecord as bad:
        yield bad
        return
    ends, shared = _spans(entries, directory.start)
    seen: set[str] = set()
    for entry, end, overlaps in zip(entries, ends, shared, strict=True):
        name = _decoded(entry)
        if name.startswith(LEFT_BY_MACS) or (name.endswith("/") and not entry.size):
            continue
        problem = _refusal(entry, name, max_bytes)
        if problem is None and entry.offset + LOCAL_FORM.size + len(entry.raw_name) + entry.packed > end:
            problem = "zip-corrupt", f"{entry.packed} bytes at byte {entry.offset} reach beyond byte {end}"
        if overlaps:
            problem = "zip-overlap", f"its bytes from {entry.offset} on overlap another member"
        elif problem is None and name in seen:
            problem = "duplicate-id", "an earlier member has the same name"
        seen.add(name)
        yield (
            BadRecord(*problem, record=name)
            if problem
            else ZipMember(name, entry.raw_name, entry.method, entry.crc, entry.packed, entry.size, entry.offset, end)
        )


def open_member(file: BinaryIO, member: ZipMember, folder: Path | None = None) -> BinaryIO:
    """Open a member as a seekable file: a window onto the archive, or unpacked into memory or a file in `folder`.

    Raises
    ------
    BadRecord: ``zip-corrupt`` if the local header or the member's bytes do not match the directory.
    """
    file.seek(member.offset)
    data = file.read(LOCAL_FORM.size + len(member.raw_name))
    if len(data) < LOCAL_FORM.size + len(member.raw_name) or data[:4] != LOCAL:
        raise BadRecord("zip-corrupt", f"there is no member at byte {member.offset}", record=member.name)
    *_, name_bytes, extra_bytes = LOCAL_FORM.unpack(data[: LOCAL_FORM.size])
    if name_bytes != len(member.raw_name) or data[LOCAL_FORM.size :] != member.raw_name:
        raise BadRecord("zip-corrupt", "the member's name differs from the directory's", record=member.name)
    start = member.offset + LOCAL_FORM.size + name_bytes + extra_bytes
    if start + member.packed > member.end:
        raise BadRecord("zip-corrupt", f"its bytes reach beyond byte {member.end}", record=member.name)
    packed = cast(BinaryIO, TarWindow(file, start, member.packed))
    return _checked(packed, member) if member.method == STORED else _inflated(packed, member, folder)


def _checked(stored: BinaryIO, member: ZipMember) -> BinaryIO:
    """A stored member, read once for its checksum: a damaged WAV has no other, and would be read as sound."""
    crc = 0
    while block := stored.read(COPY_BYTES):
        crc = zlib.crc32(block, crc)
    _compare(stored.tell(), crc, member)
    stored.seek(0)
    return stored


def _compare(size: int, crc: int, member: ZipMember) -> None:
    if size != member.size or crc != member.crc:
        detail = f"{size} bytes with CRC {crc:08x}, the directory says {member.size} with {member.crc:08x}"
        raise BadRecord("zip-corrupt", detail, record=member.name)


def _inflated(packed: BinaryIO, member: ZipMember, folder: Path | None) -> BinaryIO:
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    target = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES, dir=str(folder) if folder else None)  # noqa: SIM115 (it is handed out)
    try:
        crc = 0
        for block in _inflate(packed, member):
            crc = zlib.crc32(block, crc)
            target.write(block)
        _compare(target.tell(), crc, member)
    except BaseException:
        target.close()
        raise
    target.seek(0)
    return cast(BinaryIO, target)


def _inflate(packed: BinaryIO, member: ZipMember) -> Iterator[bytes]:
    """Yield unpacked blocks of at most `COPY_BYTES`; stops one byte past the declared size, so excess is detected."""
    inflater, left = zlib.decompressobj(-zlib.MAX_WBITS), member.size + 1
    try:
        while not inflater.eof and left > 0:
            data = inflater.unconsumed_tail or packed.read(COPY_BYTES)
            block = inflater.decompress(data, min(COPY_BYTES, left))
            left -= len(block)
            if not data and not block:
                return
            yield block
    except zlib.error as error:
        raise BadRecord("zip-corrupt", f"cannot unpack: {error}", record=member.name) from error


def _directory(file: BinaryIO) -> _Directory:
    """Find the central directory. Raises BadRecord if it is missing, split, too large or at an impossible offset."""
    size = byte_size(file)
    tail_start = max(0, size - END_FORM.size - 0xFFFF)  # room for the longest comment
    file.seek(tail_start)
    tail = file.read(size - tail_start)
    at = tail.rfind(END)
    while at >= 0 and (len(tail) - at < END_FORM.size or at + END_FORM.size + _comment_bytes(tail, at) > len(tail)):
        at = tail.rfind(END, 0, at)
    if at < 0:
        raise BadRecord("zip-corrupt", f"no end of the central directory in the last {len(tail)} of {size} bytes")
    _, disk, first_disk, _, members, bytes_, offset, _ = END_FORM.unpack_from(tail, at)
    end = tail_start + at
    if locator := _locator(file, end):
        end, members, bytes_, offset, disk, first_disk = locator
    if disk or first_disk:
        raise BadRecord("zip-unsupported", "a part of a multi-volume archive")
    before = end - bytes_ - offset  # bytes of the program in a self-extracting archive
    if before < 0:
        raise BadRecord("zip-corrupt", f"the directory of {bytes_} bytes at byte {offset} should end at byte {end}")
    if members > MAX_MEMBERS or bytes_ > MAX_DIRECTORY_BYTES:
        limits = f"{MAX_MEMBERS} and {MAX_DIRECTORY_BYTES}"
        raise BadRecord(
            "zip-too-many", f"the directory has {members} members in {bytes_} bytes, the limits are {limits}"
        )
    return _Directory(offset + before, bytes_, members, before)


def _comment_bytes(tail: bytes, at: int) -> int:
    return int(END_FORM.unpack_from(tail, at)[-1])


def _locator(file: BinaryIO, end: int) -> tuple[int, int, int, int, int, int] | None:
    """zip64 values: end of the directory, its members, bytes and offset, and two disk numbers; None if not zip64."""
    if end < LOCATOR_FORM.size + END64_FORM.size:
        return None
    file.seek(end - LOCATOR_FORM.size)
    name, _, _, _ = LOCATOR_FORM.unpack(file.read(LOCATOR_FORM.size))
    if name != LOCATOR:
        return None
    at = end - LOCATOR_FORM.size - END64_FORM.size  # assuming no extensible data sector; writers leave it out
    file.seek(at)
    name, *_, disk, first_disk, _, members, bytes_, offset = END64_FORM.unpack(file.read(END64_FORM.size))
    if name != END64:
        raise BadRecord("zip-corrupt", f"no zip64 end of the central directory at byte {at}")
    return at, members, bytes_, offset, disk, first_disk


def _entries(file: BinaryIO, directory: _Directory) -> Iterator[_Entry]:
    """Yield the directory's entries. Raises BadRecord if there are fewer or more than declared.

    Some programs count more than 65,535 members from 0 again.
    """
    file.seek(directory.start)
    data, at, number = file.read(directory.size), 0, 0
    while len(data) - at >= ENTRY_FORM.size and data[at : at + 4] == ENTRY:
        if number == MAX_MEMBERS:
            raise BadRecord("zip-too-many", f"the directory has more members than the limit, {MAX_MEMBERS}")
        _, _, _, flags, method, _, _, crc, packed, size, name, extra, comment, _, _, mode, offset = (
            ENTRY_FORM.unpack_from(data, at)
        )
        at += ENTRY_FORM.size
        raw_name, fields = data[at : at + name], data[at + name : at + name + extra]
        at += name + extra + comment
        size, packed, offset = _wide([size, packed, offset], fields)
        yield _Entry(flags, method, crc, packed, size, offset + directory.before, mode >> 16, raw_name)
        number += 1
    if number < directory.members or (number - directory.members) % 0x10000:
        raise BadRecord("zip-corrupt", f"the directory has {number} members, but declares {directory.members}")


def _wide(values: list[int], fields: bytes) -> list[int]:
    """Replace placeholder sizes and offsets with their zip64 values. Raises BadRecord if those are missing."""
    if IN_ZIP64 not in values:
        return values
    at = 0
    while at + 4 <= len(fields):
        kind, size = struct.unpack_from("<2H", fields, at)
        if kind == ZIP64_FIELD:
            wanted = sum(value == IN_ZIP64 for value in values)
            if size < 8 * wanted or at + 4 + size > len(fields):
                break
            wide = iter(struct.unpack_from(f"<{wanted}Q", fields, at + 4))
            return [next(wide) if value == IN_ZIP64 else value for value in values]
        at += 4 + size
    raise BadRecord("zip-corrupt", "a member lacks its zip64 sizes")


def _spans(entries: list[_Entry], limit: int) -> tuple[list[int], list[bool]]:
    """For each member, its latest possible end (the next member or the directory) and whether it overlaps another."""
    order = sorted(range(len(entries)), key=lambda i: entries[i].offset)
    ends, shared = [limit] * len(entries), [False] * len(entries)
    furthest, holder = 0, -1
    for i in order:
        entry = entries[i]
        if entry.offset < furthest:
            shared[i] = shared[holder] = True
        reach = entry.offset + LOCAL_FORM.size + len(entry.raw_name) + entry.packed
        if reach > furthest:
            furthest, holder = reach, i
    for i, following in pairwise(order):
        ends[i] = min(limit, entries[following].offset)
    return ends, shared


def _decoded(entry: _Entry) -> str:
    """Decode a name. Many programs write UTF-8 without setting the flag; other names use the DOS code page (cp437)."""
    try:
        return entry.raw_name.decode("utf-8")
    except UnicodeDecodeError:
        return (
            entry.raw_name.decode("utf-8", "surrogateescape") if entry.flags & UTF8 else entry.raw_name.decode("cp437")
        )


def _refusal(entry: _Entry, name: str, max_bytes: int) -> tuple[str, str] | None:
    """(reason, detail) if a member must not be used, else None."""
    if stat.S_IFMT(entry.mode) not in (0, stat.S_IFREG):
        return "zip-link", f"a link or a device, mode {entry.mode:o}"
    if problem := path_refusal("zip", name):
        return problem
    if entry.flags & ENCRYPTED:
        return "zip-encrypted", "it needs a password"
    if entry.method not in (STORED, DEFLATED):
        return "zip-unsupported", f"compressed by method {entry.method}; only {STORED} and {DEFLATED} can be read"
    if entry.size > max_bytes:
        return "too-large", f"{entry.size} bytes, the limit max_bytes is {max_bytes}"
    if entry.method == STORED and entry.size != entry.packed:
        return "zip-corrupt", f"{entry.size} bytes cannot be stored in {entry.packed}"
    if entry.size > BOMB_BYTES and entry.size > BOMB_RATIO * entry.packed:
        return "zip-bomb", f"{entry.packed} bytes would unpack to {entry.size}"
    return None
