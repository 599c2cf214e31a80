"""A bounded cache of files that all processes of one machine share and map into memory.

A process writes a file under its name's lock and then renames it, so one process writes it while the others wait; the
kernel frees the lock of a process that dies. When the folder passes its limit, the least recently used files are
removed. A process that has such a file mapped keeps it, and its disk space, until it unmaps it.
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
    """A folder of named files, at most `limit_bytes` in total (or one file), not counting those being written."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self.closed = threading.Event()  # long writes check it

    def held(self, name: str) -> pa.MemoryMappedFile | None:
        """The file `name`, mapped; None if it is absent or has been removed."""
        path = self.folder / name
        try:
            os.utime(path)  # the order of use
            return pa.memory_map(str(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open(self, name: str, make: Callable[[Path], None]) -> pa.MemoryMappedFile:
        """The file `name`, mapped; if it is absent, `make` writes it to a path first. A name stands for fixed bytes.

        Raises
        ------
        StoreError: the folder is not writable, or its disk is full.
        """
        if (file := self.held(name)) is not None:
            return file
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / (name + LOCK)).touch()
        except OSError as error:
            raise self._unusable(error, "point `cache` to a writable folder") from error
        with self._locked(name):
            if (file := self.held(name)) is None:
                file = self._made(name, make)
        self._shrink()
        return file

    def _made(self, name: str, make: Callable[[Path], None]) -> pa.MemoryMappedFile:
        part, path = self.folder / (name + PART), self.folder / name
        try:
            make(part)
            with part.open("rb") as file:
                os.fsync(file.fileno())  # else a power cut could leave a file of zeros under the name
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise  # of the source, not of the cache
            raise self._unusable(error, "lower `cache_gb`, or point `cache` to a folder on a larger disk") from error
        part.replace(path)
        return pa.memory_map(str(path))

    def _unusable(self, error: OSError, remedy: str) -> StoreError:
        return StoreError(f"the cache cannot be written: {error}", where=str(self.folder), remedy=remedy)

    @contextmanager
    def _locked(self, name: str, *, wait: bool = True) -> Iterator[None]:
        """Raises BlockingIOError if another process has the lock and `wait` is False."""
        descriptor = os.open(self.folder / (name + LOCK), os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            while not os.fstat(descriptor).st_nlink:  # the last holder removed the file: lock the new one
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
                    continue  # another process is shrinking the folder too
        total = sum(size for _, size, _ in files)
        for _, size, name in sorted(files)[:-1]:  # the newest stays for those waiting for it, however small the limit
            if total <= self.limit_bytes:
                return
            if self._remove(name):
                total -= size

    def _remove(self, name: str) -> bool:
        """Remove a file, or the leftover part of a dead process; False for a file that is being written."""
        whole = name.removesuffix(PART)
        try:
            with self._locked(whole, wait=False):
                (self.folder / name).unlink(missing_ok=True)
                (self.folder / (whole + LOCK)).unlink(missing_ok=True)
        except BlockingIOError:
            return False
        return True
