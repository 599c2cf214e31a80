"""Build a bundle in a scratch folder beside its destination, and move it there once it is complete."""

from __future__ import annotations

import glob
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from megahour.core.errors import ConfigError
from megahour.core.locks import MARKS, alone, check
from megahour.core.surroundings import explaining
from megahour.core.transfer import Disk
from megahour.core.versions import versions
from megahour.transcribe.bundle_files import MANIFEST

GOLDEN = "golden"
_PACKAGES = ("megahour", "commit", "torch")


@contextmanager
def published(out: str) -> Iterator[Path]:
    """Yield a folder to fill and rename it to `out`; it is deleted on failure.

    Raises ConfigError: `out` exists, or is no local folder. StoreError: another process writes there.
    """
    target = Path(out)
    _refuse(target, out)
    beside = target.absolute().parent
    place: dict[str, Any] = {"folder": beside, "marks": f".{target.name}{MARKS}", "where": out}
    files = Disk()
    with explaining(out, beside, resumes=False), alone(files, **place) as token:
        for left in beside.glob(f".{glob.escape(target.name)}.{'?' * len(token)}.partial"):
            shutil.rmtree(left, ignore_errors=True)  # of killed processes
        folder = target.with_name(f".{target.name}.{token}.partial")
        (folder / GOLDEN).mkdir(parents=True)
        try:
            yield folder
            check(files, token=token, fresh=True, **place)
            _refuse(target, out)
            folder.rename(target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _refuse(target: Path, out: str) -> None:
    if "://" in out:
        remedy = "name a local folder, and copy it there afterwards"
        raise ConfigError("--out cannot be a store", where=out, remedy=remedy)
    if target.exists() or target.is_symlink():
        raise ConfigError("it already exists", where=out, remedy="remove it, or choose another --out")


def files_of(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the size and SHA-256 of each file except the manifest."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            yield path.relative_to(folder).as_posix(), {"bytes": path.stat().st_size, "sha256": sha256}


def made_by() -> dict[str, str]:
    """Versions of the software that writes a bundle."""
    known = {name: versions()[name] for name in _PACKAGES}
    return known | {name: metadata.version(name) for name in ("onnx", "onnxruntime")}
