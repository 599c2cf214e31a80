"""slow://, a store in this process's memory that delays each request, like a store across a network."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

DELAY_S = 0.02


class SlowStore(MemoryFileSystem):
    """Counts its requests, which may be concurrent."""

    protocol = "slow"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    requests: ClassVar[Counter[str]] = Counter()
    lists_read: ClassVar[int] = 0  # of all receipts
    bytes_read: ClassVar[int] = 0  # of whole files where they are opened

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("slow://", "memory://")))

    def _wait(self, request: str, path: str = "") -> None:
        self.requests[request] += 1
        type(self).lists_read += path.endswith("receipts.jsonl")
        if DELAY_S:  # no pause at all, not even for others
            time.sleep(DELAY_S)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._wait("ls")
        return super().ls(path, detail, **options)

    def exists(self, path: str, **options: Any) -> bool:
        self._wait("exists")
        return bool(super().exists(path, **options))

    def info(self, path: str, **options: Any) -> Any:
        """Information about one file, without listing the others."""
        file = self.store.get(self._strip_protocol(path))
        return super().info(path, **options) if file is None else {"name": path, "size": file.size, "type": "file"}

    def _open(self, path: str, mode: str = "rb", **options: Any) -> MemoryFile:
        self._wait("open", path if mode == "rb" else "")
        file = super()._open(path, mode, **options)
        type(self).bytes_read += len(file.getbuffer()) if mode == "rb" else 0
        return file

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        self._wait("cat", path)
        try:
            data = bytes(self.store[self._strip_protocol(path)].getvalue()[start:end])
        except KeyError:
            raise FileNotFoundError(path) from None
        type(self).bytes_read += len(data)
        return data


fsspec.register_implementation("slow", SlowStore, clobber=True)
