"""Files that the processes of one machine share: made once, mapped into memory by all, bounded on disk.

A file is made under the name's lock and then renamed, so that of all who ask for it one makes it and the others wait;
the kernel frees the lock of a process that dies. The files used longest ago are removed when the folder passes its
limit: whoever has one mapped keeps it, and its disk space, until it lets go.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from megahour.core.errors import StoreError

PART, LOCK = ".part", ".lock"


class Cache:
    """A folder of files by name: of `limit_bytes` together, or one, besides those that are being made."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self.closed = threading.Event()  # what takes long to make looks at it

    def held(self, name: str) -> pa.MemoryMappedFile | None:
        """The file `name`, mapped; None where it is not there (any more)."""
        path = self.folder / name
        try:
            os.utime(path)  # the order of use
            return pa.memory_map(str(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self, name: str, make: Callable[[Path], None]) -> pa.MemoryMappedFile:
        """The file `name`, mapped; `make` writes it to a path when it is not there. Equal names hold equal bytes.

        Raises
        ------
        StoreError: the folder cannot be written, or its disk is full.
        """
        if (found := self.held(name)) is not None:
            return found
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / (name + LOCK)).touch()
        except OSError as error:
            raise self._unusable(error, "give `cache` a folder that can be written") from error
        with self._locked(name):
            if (found := self.held(name)) is None:
                found = self._made(name, make)
        self._shrink()
        return found

    def _made(self, name: str, make: Callable[[Path], None]) -> pa.MemoryMappedFile:
        part, path = self.folder / (name + PART), self.folder / name
        try:
            make(part)
            with part.open("rb") as file:
                os.fsync(file.fileno())  # after a power cut the name would stand for a file of zeros
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise  # of what is read
            raise self._unusable(error, "lower `cache_gb`, or give `cache` a folder on a larger disk") from error
        part.replace(path)
        return pa.memory_map(str(path))

    def _unusable(self, error: OSError, remedy: str) -> StoreError:
        return StoreError(f"the cache cannot be written: {error}", where=str(self.folder), remedy=remedy)

    @contextmanager
    def _locked(self, name: str, *, wait: bool = True) -> Iterator[None]:
        """Raises BlockingIOError where another has the lock and `wait` is False."""
        descriptor = os.open(self.folder / (name + LOCK), os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            while not os.fstat(descriptor).st_nlink:  # removed by who had it before: a lock on nothing
                os.close(descriptor)
                descriptor = os.open(self.folder / (name + LOCK), os.O_CREAT | os.O_RDWR)
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield
        finally:
            os.close(descriptor)

    def _shrink(self) -> None:
        files = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                try:
                    if not entry.name.endswith(LOCK):
                        status = entry.stat()
                        files.append((status.st_mtime_ns, status.st_blocks * 512, entry.name))
                except FileNotFoundError:
                    continue  # another process shrinks the folder as well
        total = sum(size for _, size, _ in files)
        for _, size, name in sorted(files)[:-1]:  # whoever waits for the newest finds it, however small the limit
            if total <= self.limit_bytes:
                return
            if self._remove(name):
                total -= size

    def _remove(self, name: str) -> bool:
        """Removes a file, or what an ended process has left of one; not one that is being made."""
        whole = name.removesuffix(PART)
        try:
            with self._locked(whole, wait=False):
                (self.folder / name).unlink(missing_ok=True)
                (self.folder / (whole + LOCK)).unlink(missing_ok=True)
        except BlockingIOError:
            return False
        return True
