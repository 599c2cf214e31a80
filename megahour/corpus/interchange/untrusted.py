"""Read manifests without trusting them.

Paths must stay below one root folder (after following links), commands are never run, and the lengths of lines and
of unpacked data are limited.
"""

from __future__ import annotations

import gzip
import io
import os
import posixpath
import zlib
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

import numpy as np

from megahour.core.errors import BadRecord
from megahour.core.filesystems import file_system
from megahour.core.transfer import is_local
from megahour.core.unicode import load_json
from megahour.corpus.media.tar import TarWindow

GZIP = b"\x1f\x8b"
MAX_LINE_BYTES = 16 << 20
RIFF_HEAD = 8
BLOCK_IDS = 1 << 16


@dataclass(frozen=True)
class Audio:
    """Audio to open, as a seekable file. `place` identifies it within a task."""

    place: str
    open: Callable[[], BinaryIO]


@dataclass(frozen=True)
class Entry:
    """One utterance of imported data: a stretch of audio and its metadata. Unknown strings are empty.

    `start_s` counts from the start of `audio`, below 0 for one that begins before it; without `duration_s` the
    utterance ends with the audio. `words` are (word, start_s, duration_s, confidence), with times from the start of the
    utterance. `record` is megahour's own custom field, if present.
    """

    id: str
    audio: Audio
    recording: str
    text: str
    start_s: float = 0.0
    duration_s: float | None = None
    channel: int | None = None  # None: the mean of all channels
    speaker: str = ""
    language: str = ""
    licence: str = ""
    attribution: str = ""
    source: str = ""
    words: tuple[tuple[str, float, float, float], ...] = ()
    record: Mapping[str, Any] | None = None


class Root:
    """The folder that all files of a source must lie below."""

    def __init__(self, url: str, *, allow_outside: bool) -> None:
        self.fs, path = file_system(url)
        self.local = is_local(self.fs)
        self.path = str(Path(path).resolve()) if self.local else path.rstrip("/")
        self._allow_outside = allow_outside

    def find(self, path: str, folder: str = "") -> str:
        """The full path of a manifest's `path`; relative ones start from `folder` (default: the root).

        The file need not exist.

        Raises
        ------
        BadRecord: ``outside-source``; ``missing-audio`` for an empty or invalid path.
        """
        if "\0" in path or not path:
            raise BadRecord("missing-audio", f"{path[:80]!r} is not a path")
        if "://" in path:
            raise BadRecord("outside-source", f"{path[:200]}: addresses in manifests are not followed")
        full = posixpath.join(folder or self.path, path)
        full = os.path.realpath(full) if self.local else posixpath.normpath(full)
        if not self._allow_outside and not full.startswith(f"{self.path.rstrip('/')}/"):
            raise BadRecord("outside-source", f"{path[:200]} is outside `root`; allow_outside permits it")
        return full

    def open(self, full: str) -> BinaryIO:
        """Open a path of `find`. Raises BadRecord ``missing-audio``."""
        detail = f"{full[-200:]} does not exist; relative paths start from `root`"
        if self.local and not os.path.isfile(full):  # noqa: PTH113 (no error for a long name)
            # Opening a pipe would block.
            raise BadRecord("missing-audio", detail)
        try:
            return cast(BinaryIO, self.fs.open(full, "rb"))
        except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
            raise BadRecord("missing-audio", f"{detail} ({error.strerror})" if error.strerror else detail) from None

    def audio(self, path: str, folder: str = "") -> Audio:
        """The audio at a manifest's `path`. Raises BadRecord as `find` does."""
        full = self.find(path, folder)
        return Audio(full, lambda: self.open(full))

    def archive_entry(self, path: str, offset: int) -> Audio:
        """The WAV at a byte offset of a Kaldi archive."""
        full = self.find(path)

        def opened() -> BinaryIO:
            file = self.open(full)
            file.seek(offset)
            head = file.read(RIFF_HEAD)
            if head[:4] != b"RIFF":
                raise BadRecord("unreadable-audio", f"there is no WAV at byte {offset}")
            size = int.from_bytes(head[4:], "little") + RIFF_HEAD
            if offset + size > self.fs.size(full):
                raise BadRecord(
                    "truncated-audio", f"{size} bytes declared at byte {offset}, but the archive ends before"
                )
            return cast(BinaryIO, _Owned(file, offset, size))

        return Audio(f"{full}:{offset}", opened)


class _Owned(TarWindow):
    """A window that closes its file with itself."""

    def close(self) -> None:
        self._file.close()
        super().close()


def text_lines(file: BinaryIO, *, max_bytes: int) -> Iterator[str | BadRecord]:
    """The non-empty lines of a plain or gzipped UTF-8 file, without line ends.

    A bad line comes as a BadRecord: ``line-too-long``, ``bad-encoding``. After ``too-large`` (more than `max_bytes`
    unpacked) and ``corrupt-gzip`` no more lines follow.
    """
    head = file.read(2)
    file.seek(0)
    # fsspec's files have no readline with a limit.
    source = gzip.GzipFile(fileobj=file) if head == GZIP else io.BufferedReader(cast(io.RawIOBase, file))
    total = 0
    try:
        while line := source.readline(MAX_LINE_BYTES + 1):
            total += len(line)
            whole = len(line) <= MAX_LINE_BYTES
            rest = b"" if whole or line.endswith(b"\n") else b"more"
            while rest and not rest.endswith(b"\n"):
                rest = source.readline(MAX_LINE_BYTES)
                total += len(rest)
                if total > max_bytes:
                    break
            if total > max_bytes:
                yield BadRecord("too-large", f"the file has more than {max_bytes} bytes unpacked")
                return
            if whole:
                yield from _decoded(line)
            else:
                yield BadRecord("line-too-long", f"the line has more than {MAX_LINE_BYTES} bytes")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        yield BadRecord("corrupt-gzip", str(error))


def _decoded(line: bytes) -> Iterator[str | BadRecord]:
    try:
        text = line.decode("utf-8-sig").strip("\r\n")
        if text.strip():
            yield text
    except UnicodeDecodeError as error:
        yield BadRecord("bad-encoding", str(error))


def json_object(text: str | BadRecord) -> dict[str, Any]:
    """Parse a line as a JSON object. Raises BadRecord ``bad-json`` (also for NaN), or `text` if it is one."""
    if isinstance(text, BadRecord):
        raise text
    try:
        value = load_json(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadRecord("bad-json", str(error)[:200]) from None
    if not isinstance(value, dict):
        raise BadRecord("bad-json", f"the value is a {type(value).__name__}, not an object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def string(value: Mapping[str, Any], *names: str) -> str:
    """The first field of `names` that has text, or a number; "" if none has. Raises BadRecord ``bad-field``."""
    for name in names:
        text = value.get(name)
        if text is None or text == "":
            continue
        if isinstance(text, str | int | float) and not isinstance(text, bool):
            return str(text)
        raise BadRecord("bad-field", f"{name} is a {type(text).__name__}, not a string")
    return ""


def duration(value: Any, name: str) -> float:
    """A non-negative number of seconds. Raises BadRecord ``bad-time``."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 <= value < 1e9:  # false for NaN
        raise BadRecord("bad-time", f"{name} = {repr(value)[:40]} is not a non-negative number of seconds")
    return float(value)


def custom(value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """megahour's own field of an entry, checked; None if absent. Raises BadRecord ``bad-custom-field``."""
    from megahour.corpus.interchange.record import CUSTOM, checked

    return checked(value[CUSTOM]) if value.get(CUSTOM) is not None else None


def first_places(keys: Collection[int], others: array[int]) -> dict[int, int]:
    """Where each of the keys that are among `others`, hashes of ids, stands first; eight bytes for each of them."""
    wanted, places = np.array(sorted(keys), np.int64), dict[int, int]()
    for start in range(0, len(others), BLOCK_IDS):
        block = np.array(others[start : start + BLOCK_IDS], np.int64)
        for at in np.flatnonzero(np.isin(block, wanted)).tolist():
            places.setdefault(int(block[at]), start + at)
    return places
