"""Nested containers, MP4 and Matroska: whether they are whole, and whether they are encrypted.

MP4, M4A, MOV: ISO/IEC 14496-12, section 4.2; sample entries of protected tracks: section 8.12. Matroska, WebM: RFC 8794
(EBML), RFC 9559, section 5.1.4.1.31 (ContentEncodings). Only headers are read, a few dozen bytes per element.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from megahour.core.errors import BadRecord

BOX_TYPES = frozenset({b"ftyp", b"styp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"})
PROTECTED = frozenset({b"enca", b"drms", b"aavd"})  # Common Encryption, FairPlay, Audible
EBML = b"\x1a\x45\xdf\xa3"
MAX_ELEMENTS = 100_000  # of one level; a recording of ten hours in two-second fragments has 36,000
_TRACK_PATH = (b"trak", b"mdia", b"minf", b"stbl", b"stsd")
_SEGMENT, _TRACKS, _CLUSTER = 0x18538067, 0x1654AE6B, 0x1F43B675
_ENCRYPTION_PATH = (0xAE, 0x6D80, 0x6240, 0x5035)  # TrackEntry, ContentEncodings, ContentEncoding, ContentEncryption


class Element(NamedTuple):
    """A box or EBML element: its body is at bytes `start` to `end` (None: to the end of the file)."""

    name: bytes
    start: int
    end: int | None


def check_boxes(file: BinaryIO, size: int) -> None:
    """Raise BadRecord (``truncated-audio``, ``header-lies``, ``encrypted-audio``) for an MP4 that cannot be used."""
    index = None
    end = 0
    for box in _boxes(file, 0, size):
        if box.end is not None and box.end > size:
            raise BadRecord("truncated-audio", f"{box.name!r} should end at byte {box.end}, the file has {size}")
        if box.name == b"moov":
            index = box
        end = size if box.end is None else box.end
    if index is None:
        raise BadRecord("truncated-audio", f"no index (moov) in the file's {size} bytes; it is written last")
    if size - end > 8:
        raise BadRecord("header-lies", f"{size - end} bytes after byte {end} are no boxes")
    for entry in _descend(file, index, size, _TRACK_PATH):
        file.seek(entry.start + 12)  # version, flags and number of entries, then the first entry's size
        if (kind := file.read(4)) in PROTECTED:
            raise BadRecord("encrypted-audio", f"the sound track is protected ({kind.decode()})")


def _boxes(file: BinaryIO, start: int, stop: int) -> Iterator[Element]:
    position = start
    for _ in range(MAX_ELEMENTS):
        if position + 8 > stop:
            return
        file.seek(position)
        head = file.read(16)
        length, name, data = int.from_bytes(head[:4], "big"), head[4:8], position + 8
        if length == 1:
            length, data = int.from_bytes(head[8:16], "big"), position + 16
        if length == 0:
            yield Element(name, data, None)
            return
        if length < data - position:
            return
        position += length
        yield Element(name, data, position)


def _descend(file: BinaryIO, parent: Element, size: int, path: tuple[bytes, ...]) -> Iterator[Element]:
    for box in _boxes(file, parent.start, size if parent.end is None else parent.end):
        if box.name == path[0]:
            if len(path) == 1:
                yield box
            else:
                yield from _descend(file, box, size, path[1:])


def check_matroska(file: BinaryIO, size: int) -> None:
    """Raise BadRecord (``truncated-audio``, ``encrypted-audio``) for a Matroska or WebM file that cannot be used."""
    for element in _elements(file, 0, size):
        if int.from_bytes(element.name, "big") != _SEGMENT:
            continue
        if element.end is not None and element.end > size:
            raise BadRecord("truncated-audio", f"the segment should end at byte {element.end}, the file has {size}")
        for part in _elements(file, element.start, element.end or size):
            identifier = int.from_bytes(part.name, "big")
            if identifier == _TRACKS and _has(file, part, size, _ENCRYPTION_PATH):
                raise BadRecord("encrypted-audio", "a track has a ContentEncryption element")
            if identifier in (_TRACKS, _CLUSTER):
                return  # tracks come before the first cluster


def _has(file: BinaryIO, parent: Element, size: int, path: tuple[int, ...]) -> bool:
    return any(
        int.from_bytes(element.name, "big") == path[0] and (len(path) == 1 or _has(file, element, size, path[1:]))
        for element in _elements(file, parent.start, parent.end or size)
    )


def _elements(file: BinaryIO, start: int, stop: int) -> Iterator[Element]:
    """EBML elements of one level; one of unknown size is the last."""
    position = start
    for _ in range(MAX_ELEMENTS):
        if position >= stop:
            return
        file.seek(position)
        head = file.read(12)
        wide = 9 - head[0].bit_length() if head else 9
        if wide > 4 or len(head) <= wide:
            return
        name, first = head[:wide], head[wide]
        digits = 9 - first.bit_length()
        if digits > 8 or len(head) < wide + digits:
            return
        length = int.from_bytes(head[wide : wide + digits], "big") & ((1 << 7 * digits) - 1)
        data = position + wide + digits
        if length == (1 << 7 * digits) - 1:
            yield Element(name, data, None)
            return
        position = data + length
        yield Element(name, data, position)
