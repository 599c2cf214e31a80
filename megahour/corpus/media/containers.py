"""Compare the length declared in a container's headers with the actual number of bytes.

libsndfile silently repairs a wrong `data` size or a missing last page, so truncation is detected before decoding.
WAV: "Multimedia Programming Interface and Data Specifications 1.0" (1991); RF64: EBU Tech 3306; Ogg: RFC 3533,
section 6; SPHERE: NIST SPeech HEader REsources 2.6 (its files are often named .wav, as in TIMIT). MP4, M4A, MOV:
ISO/IEC 14496-12, section 4.2, protected tracks in section 8.12. Matroska, WebM: RFC 8794 (EBML), RFC 9559, section
5.1.4.1.31 (ContentEncodings). Only headers are read, a few dozen bytes per element.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple, Protocol

from megahour.core.errors import BadRecord

UNKNOWN_SIZE = 0xFFFFFFFF  # written by programs that cannot seek back, such as ffmpeg into a pipe
UNKNOWN_SIZES = range(0x7FFFF000 - 256, 0x80000001)  # the same for SoX, which rounds down to whole frames, and arecord
OGG_TAIL = 1 << 17  # room for two pages of the maximum size (65,307 bytes)
MAX_ZEROS = 1 << 20  # that some recorders and damaged copies leave before an MP3's first frame
MAX_TRAILER = 4096  # padding and tags that some programs leave after the last chunk
END_OF_STREAM = 0x04
POINTER = b"version https://git-lfs.github.com/spec/"
POINTER_REMARK = "only a pointer of Git LFS to the file; get the file with `git lfs pull`"


def byte_size(file: BinaryIO) -> int:
    """Length of a seekable file in bytes; moves the position to the start."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    return size


class Unfinished(NamedTuple):
    """A file whose recorder or copy was interrupted: what is wrong with it, and where the header of a WAV is to be read
    as having other bytes."""

    remark: str
    offset: int = 0
    length: bytes = b""

    def mended(self, data: bytes, position: int) -> bytes:
        """`data`, read at `position`, with the right length where it has the header's."""
        first = max(0, position - self.offset)
        part = self.length[first : max(first, position + len(data) - self.offset)]
        at = self.offset + first - position
        return data[:at] + part + data[at + len(part) :] if part else data


def check_container(file: BinaryIO, size: int, *, cut_short: bool = False) -> Unfinished | None:
    """Raise BadRecord if `file` (`size` bytes) is empty, truncated, encrypted or declares a wrong length.

    Reasons: ``zero-length-audio``, ``unreadable-audio`` (a pointer of Git LFS), ``truncated-audio``, ``header-lies``,
    ``encrypted-audio``. Formats other than WAV, Ogg, SPHERE, AVI, MP4 and Matroska pass: their decoders detect errors.
    Moves the position to the start.

    Returns how to read a WAV file to its end whose header declares no samples although it has some: the recorder was
    interrupted. With `cut_short`, also one whose header declares more than there is, or fewer, as of a recorder that
    mends it from time to time, a SPHERE file that is cut, and an Ogg file without its last page. None: as it is.
    """
    unfinished = None
    if size == 0:
        raise BadRecord("zero-length-audio", "the file is empty")
    file.seek(0)
    magic = file.read(12)
    if magic == POINTER[:12]:
        raise BadRecord("unreadable-audio", POINTER_REMARK)
    if magic[:4] in (b"RIFF", b"RF64") and magic[8:12] == b"WAVE":
        unfinished = _check_wave(file, size, magic, cut_short)
    elif magic[:4] == b"OggS":
        unfinished = _check_ogg(file, size, cut_short)
    elif magic[:7] == b"NIST_1A":
        unfinished = _check_sphere(file, size, cut_short)
    elif magic[:4] == b"RIFF" and magic[8:12] == b"AVI ":
        if (end := struct.unpack("<I", magic[4:8])[0] + 8) > size:
            raise BadRecord(
                "truncated-audio", f"the first RIFF list should end at byte {end}, but the file has {size} bytes"
            )
    elif magic[4:8] in BOX_TYPES:
        check_boxes(file, size)
    elif magic[:4] == EBML:
        check_matroska(file, size)
    file.seek(0)
    return unfinished


class Seekable(Protocol):
    """A binary file or a wrapper such as `soundfiles.Watched`."""

    def seek(self, offset: int, whence: int = ..., /) -> int: ...
    def read(self, size: int = ..., /) -> bytes: ...


class Sniffed(NamedTuple):
    """Whether libsndfile can read a file, and the FFmpeg demuxer to use otherwise or if libsndfile fails ("": none)."""

    libsndfile: bool
    demuxer: str


# libsndfile reads these containers but not every codec in them: Speex in Ogg, AMR in WAV, ALAC in CAF …
_SHARED = {b"RIFF": "wav", b"OggS": "ogg", b"FORM": "aiff", b"caff": "caf"}
EBML = b"\x1a\x45\xdf\xa3"
_WITH_TRACKS = {
    EBML: "matroska",
    b"\x30\x26\xb2\x75": "asf",
    b"#!AM": "amr",
    b"FLV\x01": "flv",
    b"\0\0\x01\xba": "mpeg",
}
_TS_PACKET = 188


def sniff(file: BinaryIO) -> Sniffed:
    """Detect a seekable file's format from its first bytes, not its name. Moves the position to the start."""
    file.seek(0)
    head = file.read(_TS_PACKET + 1)
    if start := _behind_tag(file):
        file.seek(start)  # MP3 or AAC may follow the tag
        after = file.read(2)
        file.seek(0)
        return Sniffed(False, "aac") if _is_adts(after) else Sniffed(True, "")
    file.seek(0)
    if head[4:8] in BOX_TYPES:
        return Sniffed(False, "mov")
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return Sniffed(False, "avi")
    if head[:4] in _WITH_TRACKS:
        return Sniffed(False, _WITH_TRACKS[head[:4]])
    if head[:2] == b"\x0b\x77" and len(head) > 5:
        return Sniffed(False, "eac3" if head[5] >> 3 > 10 else "ac3")  # bsid: ATSC A/52, annex E
    if head[:1] == head[_TS_PACKET:] == b"\x47":
        return Sniffed(False, "mpegts")
    if _is_adts(head):
        return Sniffed(False, "aac")
    return Sniffed(True, _SHARED.get(head[:4], ""))


def _behind_tag(file: Seekable) -> int:
    """Offset of the first byte after an ID3v2 tag, 0 without one. Sizes use 7 bits per byte (ID3v2.4, section 3.1)."""
    file.seek(0)
    head = file.read(10)
    if head[:3] != b"ID3" or len(head) < 10:
        return 0
    return 10 + sum((byte & 0x7F) << shift for byte, shift in zip(head[6:], (21, 14, 7, 0), strict=True))


def counts_frames(file: Seekable) -> bool:
    """Whether an MP3 begins with a Xing or LAME frame whose flags say that it contains the number of frames.

    That header follows the first frame's 4-byte header, optional 2-byte checksum and 9 to 32 bytes of side information.
    """
    file.seek(_behind_tag(file))
    found = re.match(rb"\xff[\xe0-\xff].{11,36}?(?:Xing|Info).{3}(.)", file.read(64), re.DOTALL)
    return bool(found and found[1][0] & 1)


def zeros_before_mpeg(file: Seekable) -> int:
    """Offset of an MP3's first frame if zeros precede it, behind a tag or without one; 0 for every other file. Moves
    the position to the start."""
    start = _behind_tag(file)
    file.seek(start)
    if (zeros := file.read(4)) == bytes(4):
        zeros += file.read(MAX_ZEROS)
    frame = zeros.lstrip(b"\0")
    file.seek(0)
    return start + len(zeros) - len(frame) if len(zeros) > 4 and _is_mpeg(frame[:4]) else 0


def _is_mpeg(head: bytes) -> bool:
    """Whether this is the header of an MP3 frame: eleven ones, and no value that is reserved (ISO 11172-3, 2.4.1.3)."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return False
    return head[1] & 0x18 != 0x08 and head[1] & 0x06 == 0x02 and head[2] >> 4 < 15 and head[2] & 0x0C != 0x0C


def _is_adts(head: bytes) -> bool:
    """Whether this is an AAC frame header: twelve ones and layer 0, unused by MPEG audio (ISO 13818-7, 6.2)."""
    return len(head) > 1 and head[0] == 0xFF and head[1] & 0xF6 == 0xF0


def _check_wave(file: BinaryIO, size: int, magic: bytes, cut_short: bool) -> Unfinished | None:
    """Walk the chunks: `data` must end inside the file, and only chunks may follow it."""
    riff_end = struct.unpack("<I", magic[4:8])[0] + 8
    data_bytes_64 = None
    position, data_start, data_end, chunks = 12, 0, None, 0
    while position + 8 <= size:
        if (chunks := chunks + 1) > MAX_ELEMENTS:
            raise BadRecord("header-lies", f"more than {MAX_ELEMENTS} chunks in the first {position} bytes")
        file.seek(position)
        name, length = struct.unpack("<4sI", file.read(8))
        if not all(0x20 <= byte < 0x7F for byte in name):
            break
        if name == b"ds64":
            riff_64, data_bytes_64 = struct.unpack("<QQ", file.read(16).ljust(16, b"\0"))
            riff_end = riff_64 + 8
        if name == b"data" and (length == UNKNOWN_SIZE or (length in UNKNOWN_SIZES and position + 8 + length > size)):
            if data_bytes_64 is None:
                return None  # a stream of unknown length: the recording is all that is there
            length = data_bytes_64
            if cut_short and length > (left := size - position - 8) > 0:
                return Unfinished(f"the file ends early, after {left} of {length} bytes of samples")
        if name == b"data" and data_bytes_64 is None and (left := size - position - 8) > 0:
            if length == 0 and not _only_chunks(file, position + 8, size):
                what = f"the header declares no samples, but {left} bytes follow: the recorder was interrupted"
                return Unfinished(what, position + 4, struct.pack("<I", min(left, UNKNOWN_SIZE)))
            if cut_short and length > left:
                what = f"the file ends early, after {left} of {length} bytes of samples"
                return Unfinished(what, position + 4, struct.pack("<I", left))
        position += 8 + length
        if name == b"data":
            data_start, data_end = position - length, position
        position += length % 2
    if data_end is None:
        raise BadRecord("truncated-audio", f"no data chunk within the file's {size} bytes")
    if data_end > size:
        # In a truncated file both declared sizes exceed the file; if only `data` does, the header contradicts itself.
        reason = "header-lies" if riff_end <= size else "truncated-audio"
        raise BadRecord(reason, f"the data should end at byte {data_end}, but the file has {size} bytes")
    if size - position > MAX_TRAILER:
        if cut_short and data_bytes_64 is None and position - data_end in (0, 1):
            left = size - data_start
            what = f"the header declares {data_end - data_start} bytes of samples, but {left} follow: the recorder "
            return Unfinished(f"{what}was interrupted", data_start - 4, struct.pack("<I", min(left, UNKNOWN_SIZE)))
        raise BadRecord(
            "header-lies", f"{size - position} bytes after the data's end at byte {data_end} are not chunks"
        )
    return None


def _only_chunks(file: BinaryIO, position: int, size: int) -> bool:
    """Whether chunks fill the file from `position` on."""
    for _ in range(MAX_ELEMENTS):
        if position + 8 > size:
            return position in (size, size + 1)
        file.seek(position)
        name, length = struct.unpack("<4sI", file.read(8))
        if not all(0x20 <= byte < 0x7F for byte in name):
            return False
        position += 8 + length + length % 2
    return True  # samples do not look like 100,000 chunks in a row


def _check_sphere(file: BinaryIO, size: int, cut_short: bool) -> Unfinished | None:
    """Check a NIST SPHERE file: its text header of `name -i value` lines gives the size of the samples after it."""
    file.seek(0)
    header = file.read(1024).decode("latin-1")
    fields = {name: int(value) for name, value in re.findall(r"^(\w+) -i (\d+)$", header, re.MULTILINE)}
    counts = [fields.get(name, 1) for name in ("sample_count", "sample_n_bytes", "channel_count")]
    declared = 1024 + counts[0] * counts[1] * counts[2]
    is_packed = "shorten" in header
    if declared > size and not is_packed:
        if cut_short and size > 1024:
            return Unfinished(f"the file ends early, after {size} of {declared} bytes")
        raise BadRecord("truncated-audio", f"{declared} bytes declared, but the file has {size}")
    return None


def _check_ogg(file: BinaryIO, size: int, cut_short: bool) -> Unfinished | None:
    """The last page must be complete and have the end-of-stream flag (RFC 3533, section 6, header type 0x04)."""
    start = max(0, size - OGG_TAIL)
    file.seek(start)
    tail = file.read(OGG_TAIL)
    at = tail.rfind(b"OggS")
    if at < 0:
        raise BadRecord("header-lies", f"no Ogg page in the last {len(tail)} of {size} bytes")
    missing = _missing_of_page(tail[at:])
    if missing and not cut_short:
        raise BadRecord("truncated-audio", missing)
    return Unfinished(f"the file ends early: {missing}") if missing else None


def _missing_of_page(page: bytes) -> str:
    """What an Ogg file lacks whose last page this is; "" if nothing."""
    if len(page) < 27 or len(page) < 27 + page[26]:
        return "the last Ogg page ends inside its header"
    length = 27 + page[26] + sum(page[27 : 27 + page[26]])
    if len(page) < length:
        return f"the last Ogg page has only {len(page)} of {length} bytes"
    return "" if page[5] & END_OF_STREAM else "the last Ogg page does not end its stream"


BOX_TYPES = frozenset({b"ftyp", b"styp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"})
PROTECTED = frozenset({b"enca", b"drms", b"aavd"})  # Common Encryption, FairPlay, Audible
MAX_ELEMENTS = 100_000  # per level, and of a WAV's chunks; ten hours in two-second fragments have 36,000
_TRACK_PATH = (b"trak", b"mdia", b"minf", b"stbl", b"stsd")
_SEGMENT, _TRACKS, _CLUSTER = b"\x18\x53\x80\x67", b"\x16\x54\xae\x6b", b"\x1f\x43\xb6\x75"
# TrackEntry, ContentEncodings, ContentEncoding, ContentEncryption
_ENCRYPTION_PATH = (b"\xae", b"\x6d\x80", b"\x62\x40", b"\x50\x35")


class Element(NamedTuple):
    """A box or EBML element: its body spans bytes `start` to `end` (None: the end of the file)."""

    name: bytes
    start: int
    end: int | None


Level = Callable[[BinaryIO, int, int], Iterator[Element]]


def check_boxes(file: BinaryIO, size: int) -> None:
    """Raise BadRecord (``truncated-audio``, ``header-lies``, ``encrypted-audio``) for an MP4 that cannot be used."""
    index = None
    end = 0
    for box in _boxes(file, 0, size):
        if box.end is not None and box.end > size:
            raise BadRecord(
                "truncated-audio", f"{box.name!r} should end at byte {box.end}, but the file has {size} bytes"
            )
        if box.name == b"moov":
            index = box
        end = size if box.end is None else box.end
    if index is None:
        raise BadRecord("truncated-audio", f"no index (moov), which is written last, in the file's {size} bytes")
    if size - end > 8:
        raise BadRecord("header-lies", f"the {size - end} bytes after byte {end} are not boxes")
    for entry in _descend(_boxes, file, index, size, _TRACK_PATH):
        file.seek(entry.start + 12)  # skip version, flags, number of entries and the first entry's size
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


def _descend(level: Level, file: BinaryIO, parent: Element, size: int, path: tuple[bytes, ...]) -> Iterator[Element]:
    """Yield the elements at `path` below `parent`; `level` reads those of one level."""
    for element in level(file, parent.start, size if parent.end is None else min(parent.end, size)):
        if element.name == path[0]:
            if len(path) == 1:
                yield element
            else:
                yield from _descend(level, file, element, size, path[1:])


def check_matroska(file: BinaryIO, size: int) -> None:
    """Raise BadRecord (``truncated-audio``, ``encrypted-audio``) for a Matroska or WebM file that cannot be used."""
    for element in _elements(file, 0, size):
        if element.name != _SEGMENT:
            continue
        if element.end is not None and element.end > size:
            raise BadRecord(
                "truncated-audio", f"the segment should end at byte {element.end}, but the file has {size} bytes"
            )
        for part in _elements(file, element.start, element.end or size):
            if part.name == _TRACKS and any(_descend(_elements, file, part, size, _ENCRYPTION_PATH)):
                raise BadRecord("encrypted-audio", "a track has a ContentEncryption element")
            if part.name in (_TRACKS, _CLUSTER):
                return  # tracks come before the first cluster


def _elements(file: BinaryIO, start: int, stop: int) -> Iterator[Element]:
    """Yield the EBML elements of one level; an element of unknown size is the last."""
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
