"""What a container's own bytes say about its length, compared with the bytes that are really there.

libsndfile repairs a wrong `data` size or a missing last page silently, so truncation has to be found before it decodes.
WAV: "Multimedia Programming Interface and Data Specifications 1.0" (1991); RF64: EBU Tech 3306; Ogg: RFC 3533,
section 6; SPHERE: NIST SPeech HEader REsources 2.6, whose files are often named .wav (TIMIT's are).
"""

from __future__ import annotations

import io
import re
import struct
from typing import BinaryIO, NamedTuple

from megahour.core.errors import BadRecord
from megahour.corpus.boxes import BOX_TYPES, EBML, check_boxes, check_matroska

UNKNOWN_SIZE = 0xFFFFFFFF  # what a program writes that cannot seek back, such as a pipe of ffmpeg
OGG_TAIL = 1 << 17  # two of the largest possible pages (65,307 bytes)
MAX_TRAILER = 4096  # padding and tags that careless writers leave after the last chunk
END_OF_STREAM = 0x04


def byte_size(file: BinaryIO) -> int:
    """Length of a seekable file in bytes; the position is put back to the start."""
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    return size


def check_container(file: BinaryIO, size: int) -> None:
    """Raise BadRecord when `file` (`size` bytes) is empty, cut off, or says a length that it does not have.

    Reasons: ``zero-length-audio``, ``truncated-audio``, ``header-lies``, ``encrypted-audio``. Formats other than WAV,
    Ogg, SPHERE, MP4 and Matroska pass: their decoders notice. The position is put back to the start.
    """
    if size == 0:
        raise BadRecord("zero-length-audio", "the file has 0 bytes")
    file.seek(0)
    magic = file.read(12)
    if magic[:4] in (b"RIFF", b"RF64") and magic[8:12] == b"WAVE":
        _check_wave(file, size, magic)
    elif magic[:4] == b"OggS":
        _check_ogg(file, size)
    elif magic[:7] == b"NIST_1A":
        _check_sphere(file, size)
    elif magic[:4] == b"RIFF" and magic[8:12] == b"AVI ":
        if (end := struct.unpack("<I", magic[4:8])[0] + 8) > size:
            raise BadRecord("truncated-audio", f"the first RIFF list should end at byte {end}, the file has {size}")
    elif magic[4:8] in BOX_TYPES:
        check_boxes(file, size)
    elif magic[:4] == EBML:
        check_matroska(file, size)
    file.seek(0)


class Sniffed(NamedTuple):
    """Who can read a file: libsndfile, FFmpeg's demuxer of that name ("" for none), or the second after the first."""

    libsndfile: bool
    demuxer: str


# libsndfile reads these containers, but not every codec that they may hold: Speex in Ogg, AMR in WAV, ALAC in CAF …
_SHARED = {b"RIFF": "wav", b"OggS": "ogg", b"FORM": "aiff", b"caff": "caf"}
_TRACKS = {EBML: "matroska", b"\x30\x26\xb2\x75": "asf", b"#!AM": "amr", b"FLV\x01": "flv", b"\0\0\x01\xba": "mpeg"}
_TS_PACKET = 188


def sniff(file: BinaryIO) -> Sniffed:
    """What a seekable file is by its first bytes; names are not asked. The position is put back to the start."""
    file.seek(0)
    head = file.read(_TS_PACKET + 1)
    if head[:3] == b"ID3" and len(head) >= 10:
        # The tag's size has 7 bits a byte (ID3v2.4, section 6.2); MP3 or AAC may follow it.
        file.seek(10 + sum((byte & 0x7F) << shift for byte, shift in zip(head[6:10], (21, 14, 7, 0), strict=True)))
        after = file.read(2)
        file.seek(0)
        return Sniffed(False, "aac") if _is_adts(after) else Sniffed(True, "")
    file.seek(0)
    if head[4:8] in BOX_TYPES:
        return Sniffed(False, "mov")
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return Sniffed(False, "avi")
    if head[:4] in _TRACKS:
        return Sniffed(False, _TRACKS[head[:4]])
    if head[:2] == b"\x0b\x77" and len(head) > 5:
        return Sniffed(False, "eac3" if head[5] >> 3 > 10 else "ac3")  # bsid: ATSC A/52, annex E
    if head[:1] == head[_TS_PACKET:] == b"\x47":
        return Sniffed(False, "mpegts")
    if _is_adts(head):
        return Sniffed(False, "aac")
    return Sniffed(True, _SHARED.get(head[:4], ""))


def _is_adts(head: bytes) -> bool:
    """AAC's frame header: twelve ones, and a layer of 0, which MPEG audio does not have (ISO 13818-7, 6.2)."""
    return len(head) > 1 and head[0] == 0xFF and head[1] & 0xF6 == 0xF0


def _check_wave(file: BinaryIO, size: int, magic: bytes) -> None:
    """Walk the chunks: `data` has to end inside the file, and what follows it has to be chunks again."""
    riff_end = struct.unpack("<I", magic[4:8])[0] + 8
    data_bytes_64 = None
    position, data_end = 12, None
    while position + 8 <= size:
        file.seek(position)
        name, length = struct.unpack("<4sI", file.read(8))
        if not all(0x20 <= byte < 0x7F for byte in name):
            break
        if name == b"ds64":
            riff_64, data_bytes_64 = struct.unpack("<QQ", file.read(16).ljust(16, b"\0"))
            riff_end = riff_64 + 8
        if name == b"data" and length == UNKNOWN_SIZE:
            if data_bytes_64 is None:
                return  # a stream of unknown length: whatever is there is the recording
            length = data_bytes_64
        position += 8 + length
        if name == b"data":
            data_end = position
        position += length % 2
    if data_end is None:
        raise BadRecord("truncated-audio", f"no data chunk within the file's {size} bytes")
    if data_end > size:
        # A file that was cut disagrees with both of its sizes; a header that lies disagrees with itself.
        reason = "header-lies" if riff_end <= size else "truncated-audio"
        raise BadRecord(reason, f"data should end at byte {data_end}, the file has {size} bytes")
    if size - position > MAX_TRAILER:
        raise BadRecord(
            "header-lies", f"{size - position} bytes after the data's end at byte {data_end} are not chunks"
        )


def _check_sphere(file: BinaryIO, size: int) -> None:
    """NIST SPHERE: a text header of `name -i value` lines; the samples follow it without a size of their own."""
    file.seek(0)
    header = file.read(1024).decode("latin-1")
    fields = {name: int(value) for name, value in re.findall(r"^(\w+) -i (\d+)$", header, re.MULTILINE)}
    counts = [fields.get(name, 1) for name in ("sample_count", "sample_n_bytes", "channel_count")]
    declared = 1024 + counts[0] * counts[1] * counts[2]
    is_packed = "shorten" in header
    if declared > size and not is_packed:
        raise BadRecord("truncated-audio", f"{declared} bytes declared, the file has {size}")


def _check_ogg(file: BinaryIO, size: int) -> None:
    """The last page has to be complete and to carry the end-of-stream flag (RFC 3533, section 6, header type 0x04)."""
    start = max(0, size - OGG_TAIL)
    file.seek(start)
    tail = file.read(OGG_TAIL)
    found = tail.rfind(b"OggS")
    if found < 0:
        raise BadRecord("header-lies", f"no Ogg page in the last {len(tail)} of {size} bytes")
    page = tail[found:]
    if len(page) < 27 or len(page) < 27 + page[26]:
        raise BadRecord("truncated-audio", "the last Ogg page ends inside its header")
    length = 27 + page[26] + sum(page[27 : 27 + page[26]])
    if len(page) < length:
        raise BadRecord("truncated-audio", f"the last Ogg page has {len(page)} of {length} bytes")
    if not page[5] & END_OF_STREAM:
        raise BadRecord("truncated-audio", "the last Ogg page is not the end of its stream")
