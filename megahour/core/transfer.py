"""Moving files into a store atomically: rename on local disk, one PUT on an object store."""

from __future__ import annotations

import hashlib
import os
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

from megahour.core.ranges import open_ranges

BLOCK = 1 << 20
SMALL_BYTES = 1 << 20
REQUESTS = 64  # to a store, at a time: an answer takes it tens of milliseconds

T = TypeVar("T")
R = TypeVar("R")


class Disk:
    """This machine's disk, with as much of an fsspec file system as `locks` need: fsspec, with asyncio and TLS, takes a
    tenth of a second to import."""

    def invalidate_cache(self) -> None:
        """Nothing is cached."""

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def ls(self, path: str, detail: bool = True) -> list[dict[str, Any]]:
        """The names and the times of the files of a folder. Raises FileNotFoundError: no such folder."""
        files = []
        with os.scandir(path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed in this moment
                    files.append({"name": entry.path, "mtime": entry.stat(follow_symlinks=False).st_mtime})
        return files

    def cat_file(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def rm_file(self, path: str) -> None:
        Path(path).unlink()


def is_local(fs: Any) -> bool:
    if isinstance(fs, Disk):
        return True
    from fsspec.implementations.local import LocalFileSystem  # with asyncio and TLS

    return isinstance(fs, LocalFileSystem)


def side_by_side(fs: Any, call: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """`call(item)` of each item, in order: by `REQUESTS` threads where `fs` is not this machine's disk."""
    if is_local(fs):
        yield from map(call, items)
        return
    left = iter(items)
    with ThreadPoolExecutor(REQUESTS) as pool:
        while group := list(islice(left, 16 * REQUESTS)):
            yield from pool.map(call, group)


def small_file(fs: Any, path: str) -> bytes:
    """The bytes of a file that is small most likely: of a store by one request (s3fs asks for the size of a whole one).

    Raises what `fs` raises for a file that is not there.
    """
    if is_local(fs):
        return cast(bytes, fs.cat_file(path))
    try:
        data = cast(bytes, fs.cat_file(path, start=0, end=SMALL_BYTES))
    except (FileNotFoundError, PermissionError):
        raise
    except OSError:  # an empty file has no range
        data = b""
    return data if 0 < len(data) < SMALL_BYTES else cast(bytes, fs.cat_file(path))


def publish(fs: Any, source: Path, target: str) -> None:
    """Move a finished local file to `target`: readers see the old file or the whole new one, never a part."""
    if is_local(fs):
        _sync(source)
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
        _sync(Path(target).parent)
    else:
        fs.put_file(str(source), target)
        source.unlink()


def publish_text(fs: Any, target: str, text: str) -> None:
    """Atomic write of a small text file."""
    publish_bytes(fs, target, text.encode("utf-8", "surrogatepass"))


def publish_bytes(fs: Any, target: str, data: bytes) -> None:
    """Atomic write of a file that fits into memory."""
    with _scratch(fs, target) as scratch:
        scratch.write_bytes(data)
        publish(fs, scratch, target)


def publish_lines(fs: Any, target: str, lines: Iterable[str]) -> None:
    """Atomic write of a text file, line by line; a newline is added to each."""
    with _scratch(fs, target) as scratch:
        with scratch.open("w", encoding="utf-8", errors="surrogatepass", newline="") as file:
            file.writelines(f"{line}\n" for line in lines)
        publish(fs, scratch, target)


@contextmanager
def _scratch(fs: Any, target: str) -> Iterator[Path]:
    """A new name for a file that `publish` moves to `target`. Without that the file, which may fill a disk, goes."""
    folder = Path(target).parent if is_local(fs) else Path(tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".{uuid.uuid4().hex}.tmp"
    try:
        yield path
    finally:
        with suppress(OSError):  # as on a disk that has become read-only: the error of the write counts
            path.unlink()


def file_digest(fs: Any, path: str) -> tuple[int, str]:
    """Bytes and SHA-256 of a stored file, read in blocks."""
    digest, size = hashlib.sha256(), 0
    with fs.open(path, "rb") if is_local(fs) else open_ranges(fs, path, block_bytes=8 * BLOCK) as file:
        while block := file.read(BLOCK):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()


def _sync(path: Path) -> None:
    # Without it a power cut could leave a receipt for a file whose bytes, or whose name in its folder, never reached
    # the disk.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
