"""Moving files into a store atomically: rename on local disk, one PUT on an object store."""

from __future__ import annotations

import hashlib
import os
import tempfile
import uuid
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

BLOCK = 1 << 20


def is_local(fs: Any) -> bool:
    return isinstance(fs, LocalFileSystem)


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
    folder = Path(target).parent if is_local(fs) else Path(tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f".{uuid.uuid4().hex}.tmp"
    scratch.write_bytes(data)
    publish(fs, scratch, target)


def file_digest(fs: Any, path: str) -> tuple[int, str]:
    """Bytes and SHA-256 of a stored file, read in blocks."""
    digest, size = hashlib.sha256(), 0
    with fs.open(path, "rb") as file:
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
