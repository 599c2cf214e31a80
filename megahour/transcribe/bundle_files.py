"""The files of a bundle: a manifest lists all others with sizes and SHA-256; sizes are bounded, checksums compared."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from megahour.core.config import parse
from megahour.core.errors import ConfigError, StoreError
from megahour.core.filesystems import file_system
from megahour.core.surroundings import explaining

MANIFEST = "bundle.json"
MAX_MANIFEST_BYTES, MAX_FILE_BYTES = 16 << 20, 2 << 30
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # and halves of UTF-16 pairs, which no file can have
MAX_TEXT = 1000  # characters of a token, or of a name
MAX_HEARD = 1 << 20  # characters of a golden clip's text
VOICE = "voice"
"""`criterion` in the manifest of a voice; all other criteria are of recognisers."""
AGAIN = "the bundle is damaged or was changed: copy it, or export it again"


class BundlePart(BaseModel):
    model_config = ConfigDict(frozen=True)


class BundleFile(BundlePart):
    """Size and SHA-256 of a file."""

    bytes: int = Field(ge=0, le=MAX_FILE_BYTES)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class ListedFiles(BundlePart):
    """The fields that the manifests of all bundles share."""

    format: Literal[1]
    files: dict[str, BundleFile] = Field(max_length=10_000)

    @field_validator("files")
    @classmethod
    def _plain(cls, files: dict[str, BundleFile]) -> dict[str, BundleFile]:
        for name in files:
            if not NAME.fullmatch(name):
                raise ValueError(f"a file has the name {name[:100]!r}")
        return files


M = TypeVar("M", bound=ListedFiles)


@dataclass(frozen=True)
class BundleFolder(Generic[M]):
    """A bundle at a path or URL, whose manifest has been checked; files are checked as they are read."""

    url: str
    manifest: M
    digest: str
    """SHA-256 of the manifest. The manifest has those of all other files, so it verifies the whole bundle."""

    @staticmethod
    def at(url: str) -> bool:
        """Whether there is a bundle at `url`."""
        with explaining(url):
            fs, path = file_system(url)
            return bool(fs.exists(f"{path}/{MANIFEST}"))

    def read(self, name: str) -> bytes:
        """The contents of a listed file. Raises StoreError if it is missing or its size or checksum differs."""
        info, where = self.manifest.files[name], f"{self.url}/{name}"
        data = read_file(self.url, name, info.bytes)
        if len(data) != info.bytes or hashlib.sha256(data).hexdigest() != info.sha256:
            what = f"{len(data)} bytes instead of {info.bytes}" if len(data) != info.bytes else "its SHA-256 differs"
            raise StoreError(what, where=where, remedy=AGAIN)
        return data

    def problems(self) -> list[str]:
        """Everything that is wrong with the bundle's files; [] if nothing is."""
        found = []
        for name in self.manifest.files:
            try:
                self.read(name)
            except StoreError as error:
                found.append(f"{error.where}: {error.message}")
        return found


def manifest_at(url: str) -> tuple[dict[str, Any], str]:
    """The unchecked manifest and its SHA-256. Raises StoreError if it is too large or not a JSON object."""
    data = read_file(url, MANIFEST, MAX_MANIFEST_BYTES)
    try:
        values = json.loads(data)
        if not isinstance(values, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        where = f"{url}/{MANIFEST}"
        raise StoreError(f"the manifest is not JSON: {error}", where=where, remedy=AGAIN) from None
    return values, hashlib.sha256(data).hexdigest()


def opened(url: str, kind: type[M]) -> tuple[M, str]:
    """The checked manifest and its digest.

    Raises StoreError: the manifest is too large, not JSON or invalid; or a listed file is missing, has another size or
    lies outside the bundle.
    """
    values, digest = manifest_at(url)
    try:
        manifest = parse(kind, values, where=f"{url}/{MANIFEST}", remedy=AGAIN)
    except ConfigError as error:
        raise StoreError(error.message, where=error.where, remedy=error.remedy) from None
    for name, info in manifest.files.items():
        if (size := _size(url, name)) != info.bytes:
            raise StoreError(f"{size} bytes instead of {info.bytes}", where=f"{url}/{name}", remedy=AGAIN)
    return manifest, digest


def _size(url: str, name: str) -> int:
    """Size of a file. Raises StoreError if it is missing, not a regular file, or a link to outside the bundle."""
    where = f"{url}/{name}"
    fs, path = file_system(where)
    try:
        info = fs.info(path)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError("a bundle without this file", where=where, remedy=AGAIN) from None
    if info["type"] != "file":
        raise StoreError("no plain file", where=where, remedy=AGAIN)
    if "file" in _protocols(fs):
        home = Path(file_system(url)[1]).resolve()
        if not Path(path).resolve().is_relative_to(home):
            what = "a link to what is outside the bundle"
            raise StoreError(what, where=where, remedy="copy the bundle with its links followed, as cp -rL does")
    if info["size"] is None:
        raise StoreError("a file whose size is not known", where=where, remedy="copy the bundle to a folder")
    return int(info["size"])


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def read_file(url: str, name: str, most: int) -> bytes:
    """The contents of a file. Raises StoreError if it is missing or larger than `most` bytes."""
    where = f"{url}/{name}"
    size = _size(url, name)
    if size > most:
        raise StoreError(f"{size} bytes, at most {most}", where=where, remedy=AGAIN)
    fs, path = file_system(where)
    with fs.open(path, "rb") as file:
        return bytes(file.read(most + 1))  # the file may grow meanwhile
