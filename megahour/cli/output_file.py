"""Writes the file that a command was asked for."""

from __future__ import annotations

from pathlib import Path


def write_output(path: str | Path, text: str) -> None:
    """Write a text file on this machine atomically. Raises StoreError: no such folder, no permission or no space."""
    from fsspec.implementations.local import LocalFileSystem

    from megahour.core.surroundings import explaining
    from megahour.core.transfer import publish_text

    with explaining(path, Path(path).absolute().parent):
        publish_text(LocalFileSystem(), str(path), text)
