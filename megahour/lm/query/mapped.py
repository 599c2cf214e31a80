"""Models in files that are mapped into memory: vocabulary, unigrams, and the hash tables of `lookup`.

    0       b"MHNGRAM\\n", version uint32, bytes of the JSON uint32, its SHA-256, JSON (order, sizes, arrays, …)
    HEADER  arrays, each at a multiple of ALIGN, little-endian; `entries` is the last

The JSON has the type, place, length and checksum of each array. Opening a file checks its header and its length;
`verify` reads all of it. Nothing is unpacked, so opening takes milliseconds, and processes share the pages.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megahour.core.errors import MegahourError
from megahour.lm.query.lookup import checksum
from megahour.lm.text.arrays import Bytes, Float32, Int32, Int64, UInt64
from megahour.lm.text.tokenise import WordTable

MAGIC = b"MHNGRAM\n"
VERSION = 1
SUFFIX = ".mlm"
HEADER = 1 << 14
ALIGN = 1 << 12
_FIXED = struct.Struct("<8sII32s")


ARRAYS = {"table": np.uint64, "arena": np.uint8, "starts": np.int64, "words": np.int32, "segments": np.int64}
"""Arrays before `entries` (uint64) with their types: those of `tokenise.WordTable`, then those of `lookup`."""


@dataclass(frozen=True, eq=False)
class MappedModel:
    """A mapped model. sizes: n-grams by order. closed: see `scoring.score`; minimised: see `states.Ngrams`; both are
    true except in files of earlier versions. facts: about its estimation (`discounts`, …).

    vocabulary: words and their numbers. words (4 V,) int32: log10 p, log10 back-off (float32 bits), segment, 0.
    segments (2 P,) int64: first slot, slots. entries (2 E,) uint64: slots of 16 bytes.
    """

    order: int
    sizes: list[int]
    closed: bool
    minimised: bool
    facts: dict[str, Any]
    vocabulary: WordTable
    words: Int32
    segments: Int64
    entries: UInt64
    name: str
    checksums: dict[str, int]

    @property
    def weights(self) -> Float32:
        """`words` as float32."""
        return self.words.view(np.float32)

    @property
    def values(self) -> Float32:
        """`entries` as float32 (4 E,)."""
        return self.entries.view(np.float32)

    def verify(self) -> None:
        """Read the whole file. Raises MegahourError: the checksum of an array is wrong."""
        table = self.vocabulary
        arrays: dict[str, npt.NDArray[Any]] = {"table": table.table, "arena": table.arena, "starts": table.starts}
        arrays |= {"words": self.words, "segments": self.segments, "entries": self.entries}
        for key, array in arrays.items():
            if sum_of(array) != self.checksums[key]:
                raise damaged(self.name, f"the checksum of array {key!r} is wrong")

    def spelled(self) -> list[str]:
        """The words by number, with surrogate escapes for bytes that are not UTF-8."""
        return [word.decode("utf-8", "surrogateescape") for word in self.vocabulary.words()]


def damaged(name: str, what: str) -> MegahourError:
    """An error for a file that cannot be mapped."""
    return MegahourError(what, where=name, remedy="make it again from the text or the ARPA file: megahour lm convert")


def is_mapped(path: str | Path) -> bool:
    """Whether a file begins like a mapped model."""
    with Path(path).open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def open_mapped(path: str | Path) -> MappedModel:
    """Map the file of a model into memory. Reads only the header.

    Raises
    ------
    MegahourError: not a mapped model, another version, a truncated file, or a damaged header.
    """
    path = Path(path)
    size = path.stat().st_size
    if size < HEADER:
        raise damaged(str(path), f"{size} bytes are too few for a mapped model")
    with path.open("rb") as file:
        # Copy on write, because compiled code takes writable arrays only. Nothing writes to them.
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            view.madvise(mmap.MADV_HUGEPAGE)
    return from_bytes(np.frombuffer(view, np.uint8), str(path))


def from_bytes(data: Bytes, name: str) -> MappedModel:
    """The model in the bytes of a file. Raises as `open_mapped`."""
    if sys.byteorder != "little":
        raise MegahourError("mapped models are little-endian, this machine is not", where=name)
    header = _header(data, name)
    arrays: dict[str, Any] = {}
    for key, kind in {**ARRAYS, "entries": np.uint64}.items():
        place = header["arrays"][key]
        stop = place["offset"] + place["items"] * np.dtype(kind).itemsize
        if place["items"] and stop > len(data):
            raise damaged(name, f"cut short: array {key!r} ends at byte {stop:,}, the file at {len(data):,}")
        arrays[key] = data[place["offset"] : stop].view(kind)
    vocabulary = WordTable.__new__(WordTable)  # without __init__, which would load compiled code
    vocabulary.table, vocabulary.arena, vocabulary.starts = arrays["table"], arrays["arena"], arrays["starts"]
    vocabulary.size = header["sizes"][0]
    return MappedModel(
        header["order"],
        header["sizes"],
        header["closed"],
        header.get("minimised", False),
        header["facts"],
        vocabulary,
        arrays["words"],
        arrays["segments"],
        arrays["entries"],
        name,
        {key: place["checksum"] for key, place in header["arrays"].items()},
    )


def _header(data: Bytes, name: str) -> dict[str, Any]:
    magic, version, size, digest = _FIXED.unpack(data[: _FIXED.size].tobytes())
    if magic != MAGIC:
        raise damaged(name, f"not a mapped model: begins with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise damaged(name, f"version {version} of the format; this program reads version {VERSION}")
    text = data[_FIXED.size : _FIXED.size + min(size, HEADER)].tobytes()
    if hashlib.sha256(text).digest() != digest:
        raise damaged(name, "the header is damaged")
    header: dict[str, Any] = json.loads(text)
    return header


def header_bytes(order: int, sizes: list[int], arrays: Mapping[str, Any], facts: Mapping[str, Any]) -> bytes:
    """The first HEADER bytes of a file. Raises ValueError: `facts` are too long."""
    header = {"order": order, "sizes": sizes, "closed": True, "minimised": True, "arrays": dict(arrays)}
    header["facts"] = dict(facts)
    text = json.dumps(header, sort_keys=True).encode()
    if _FIXED.size + len(text) > HEADER:
        raise ValueError(f"facts make a header of {len(text)} bytes; {HEADER - _FIXED.size} is the limit")
    return (_FIXED.pack(MAGIC, VERSION, len(text), hashlib.sha256(text).digest()) + text).ljust(HEADER, b"\0")


def sum_of(array: npt.NDArray[Any]) -> int:
    """Checksum of an array, padded with zeros to whole words of eight bytes."""
    data = np.ascontiguousarray(array).view(np.uint8)
    whole = len(data) // 8 * 8
    rest = np.zeros(8, np.uint8)
    rest[: len(data) - whole] = data[whole:]
    total = int(checksum(data[:whole].view(np.uint64), 0)) + int(checksum(rest.view(np.uint64), whole // 8))
    return total % (1 << 64)
