"""File systems by address: a local path or any fsspec URL. Errors name the package or setting that is missing."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, cast

from megahour.core.errors import ConfigError
from megahour.core.extras import EXTRAS, install
from megahour.core.records import fingerprint

PACKAGES = {
    **{"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"},
    **{"hdfs": "pyarrow", "webhdfs": "requests", "sftp": "paramiko", "smb": "smbprotocol"},
    **{"http": "aiohttp", "https": "aiohttp"},
}
HDFS = (
    "hdfs:// needs Java and Hadoop's client on this machine: set JAVA_HOME, HADOOP_HOME and "
    "CLASSPATH=$(hadoop classpath --glob), and ARROW_LIBHDFS_DIR if libhdfs.so is elsewhere"
)


def file_system(address: str, **options: Any) -> tuple[Any, str]:
    """The file system of an address, and the path in it. `options` go to the fsspec file system.

    Raises
    ------
    ConfigError: its package is not installed, its protocol is unknown, or its server cannot be reached.
    """
    import fsspec

    protocol = address.partition("://")[0].rpartition("::")[2]
    if re.match(r"(s3a?|gc?s):(?!//[^/])", address):
        remedy = "give e.g. s3://BUCKET/PATH; is a variable of the shell empty?"
        raise ConfigError("no bucket is named", where=address, remedy=remedy)
    try:
        if "::" in address and not _chained(address):
            fs = fsspec.filesystem("file", **options)
            path = fs._strip_protocol(address)
        else:
            fs, path = fsspec.core.url_to_fs(address, **options)
    except ImportError as error:
        package = PACKAGES.get(protocol, "the package named above")
        remedy = install(EXTRAS[package]) if package in EXTRAS else f"pip install {package}"
        raise ConfigError(f"{protocol}:// cannot be read: {error}", where=address, remedy=remedy) from error
    except ValueError as error:
        known = "a path, or s3://, gs://, hdfs://, https:// … (any fsspec protocol)"
        raise ConfigError(str(error), where=address, remedy=f"give {known}") from error
    except OSError as error:
        remedy = HDFS if protocol == "hdfs" else "check the address and the network"
        raise ConfigError(f"{protocol}:// cannot be opened: {error}", where=address, remedy=remedy) from error
    return fs, str(path)


def _chained(address: str) -> bool:
    """Whether `::` joins protocols, as in `simplecache::s3://…`; else it is part of a local name, as in `a::b/c`."""
    import fsspec

    return "://" in address or address.partition("::")[0] in fsspec.available_protocols()


def paths_in(fs: Any, folder: str, pattern: str) -> list[str]:
    """Sorted paths below a folder that match a pattern such as ``receipts/*.json``; none without the folder.

    Unlike in `fs.glob`, the folder's own name is no pattern: "run [2019]" is a folder.
    """
    name, _, rest = pattern.partition("/")
    if not re.search(r"[*?\[]", name):
        inner = f"{folder}/{name}"
        return paths_in(fs, inner, rest) if rest else [inner] * bool(fs.exists(inner))
    try:
        found = {path.rstrip("/") for path in fs.ls(folder, detail=False)} - {folder}
    except (FileNotFoundError, NotADirectoryError):
        return []
    names = sorted(path.rpartition("/")[2] for path in found)
    matches = [f"{folder}/{each}" for each in names if fnmatchcase(each, name)]
    return [path for match in matches for path in paths_in(fs, match, rest)] if rest else matches


def work_in(folder: str) -> Path | None:
    """The folder of scratch files in a local folder, whose `~` is expanded as that of artifacts; None for a URL."""
    return None if "://" in folder else Path(file_system(folder)[1]) / ".work"


def work_beside(artifact: str) -> Path | None:
    """`work_in` the folder that an artifact is in."""
    return None if "://" in artifact else Path(file_system(artifact)[1]).parent / ".work"


def local_file(address: str) -> str | None:
    """The path of a local file that is there, by its path or its `file://` URL, as the URL has it; None: any other
    address. fsspec, which takes a tenth of a second to import, is not asked."""
    path = address.removeprefix("file://")
    if re.search(r"[*?\[]|:/|//|^~|(^|/)\.\.?/", path) or ("::" in path and _chained(path)) or not Path(path).is_file():
        return None
    return path if path.startswith("/") else f"{Path.cwd()}/{path}"


def open_file(address: str) -> AbstractContextManager[BinaryIO]:
    """A file of any file system, to be read."""
    if path := local_file(address):
        return Path(path).open("rb")
    import fsspec

    return cast(AbstractContextManager[BinaryIO], fsspec.open(address, "rb"))


def size_of(address: str) -> int:
    """Bytes of a file of any file system; 0 if unknown."""
    if path := local_file(address):
        return Path(path).stat().st_size
    fs, inner = file_system(address)
    return int(fs.size(inner) or 0)


def version_of(path: str) -> str:
    """A fingerprint that changes when the file is rewritten; the file is not read. ConfigError: no such file."""
    fs, inner = file_system(path)
    try:
        info = fs.info(inner)
    except FileNotFoundError:
        raise ConfigError("no such file", where=path, remedy="check the path") from None
    return fingerprint([path, info["size"], str(info.get("mtime") or info.get("ETag") or info.get("LastModified"))])
