"""Find CAF, AIFF, AU and W64 files that end before their last sample.

FFmpeg reads a CAF file that was cut as if it were whole, and libsndfile mends the lengths in headers to what is there.
AIFF: Apple, "Audio Interchange File Format" 1.3; CAF: Apple, "Core Audio Format Specification" 1.0; AU: Sun,
audio(5); W64: Sony, "Wave64", whose chunks are multiples of eight bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from megahour.core.errors import BadRecord
from megahour.corpus.media.containers import MAX_ELEMENTS, UNKNOWN_SIZE, Unfinished

_W64 = b"riff\x2e\x91\xcf\x11"
_SAMPLES = (b"SSND", b"data")
_NEEDED = (b"pakt",)  # CAF's sizes of packets, without which compressed samples cannot be told apart


def check_early_end(file: BinaryIO, size: int, *, cut_short: bool = False) -> Unfinished | None:
    """Raise BadRecord (``truncated-audio``) if a CAF, AIFF, AU or W64 file of `size` bytes ends too early.

    With `cut_short`, returns instead what is wrong with it, as it can be read as far as it goes. None: whole, or of
    another format. Moves the position to the start.
    """
    found = _early_end(file, size)
    file.seek(0)
    if found and not cut_short:
        raise BadRecord("truncated-audio", found.remark)
    return found


def _early_end(file: BinaryIO, size: int) -> Unfinished | None:
    file.seek(0)
    head = file.read(24).ljust(24, b"\0")
    declared = 0  # length of the file, if its header has one
    if head[:4] in (b".snd", b"dns."):
        start, length = struct.unpack(">II" if head[:4] == b".snd" else "<II", head[4:12])
        chunks = iter([(b"data", start, length)] if length != UNKNOWN_SIZE else [])
    elif head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        chunks, declared = _chunks(file, size, 12, ">4sI", 2), struct.unpack(">I", head[4:8])[0] + 8
    elif head[:4] == b"caff":
        chunks = _chunks(file, size, 8, ">4sq", 1)
    elif head[:8] == _W64:
        chunks, declared = _chunks(file, size, 40, "<4s12xq", 8), struct.unpack("<q", head[16:24])[0]
    else:
        return None
    for name, start, length in chunks:
        if name in _SAMPLES and start + length > size:
            what = f"the file ends early, after {(left := max(0, size - start))} of {length} bytes of samples"
            # libsndfile reads what there is, but of a CAF file some samples less
            return Unfinished(what, start - 8, struct.pack(">q", left)) if head[:4] == b"caff" else Unfinished(what)
        if name in _NEEDED and start + length > size:
            return Unfinished(f"the file ends early, within its chunk {name.decode()}")
    if declared <= size:
        return None
    return Unfinished(f"the file ends early, after {size} of {declared} bytes, behind its samples")


def _chunks(file: BinaryIO, size: int, position: int, form: str, multiple: int) -> Iterator[tuple[bytes, int, int]]:
    """Names of chunks (four bytes), starts and lengths in bytes of what they hold, up to one without a length.

    size: of the file, beyond which a length may lead, even further than a file's position can be.
    """
    head = struct.calcsize(form)
    for _ in range(MAX_ELEMENTS):
        if position >= size:
            return
        file.seek(position)
        if len(data := file.read(head)) < head:
            return
        name, length = struct.unpack(form, data)
        length -= head * (multiple == 8)  # W64 counts the head
        if length < 0:
            return
        yield name, position + head, length
        position += head - (-length // multiple) * multiple
