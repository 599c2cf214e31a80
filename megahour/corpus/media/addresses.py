"""Open files at any fsspec address for range reads that survive a flaky network.

Local files are opened directly. Remote files are read by range (`core.ranges`), and a failed read is retried. If the
server does not support ranges, the file is copied once to a temporary file.
"""

from __future__ import annotations

import io
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from megahour.core.errors import BadRecord, ConfigError, MegahourError
from megahour.core.ranges import RangeFile, open_ranges, scratch_file
from megahour.core.surroundings import is_of_a_store
from megahour.core.transfer import is_local
from megahour.corpus.media.networks import PrivateAddress

READ_BYTES = 4 << 20
TRIES = 3
PAUSE_S = 0.5  # doubled after each failed try
MAX_COPY_BYTES = 8 << 30
SHOWN = 200  # maximum length in characters of an address, or of a client's error text, in a message

# Credentials in URLs. In http(s) URLs, a user name alone is masked; elsewhere only one with a password, because
# abfs://CONTAINER@ACCOUNT is a location. The match starts after the protocol: a pattern that matched a protocol of any
# length would be retried from each of its letters.
_LET_IN = re.compile(r"((?<=http)://|(?<=https)://)[^/?#\s]*@|((?<=[\w+.-])://)[^/?#\s@:]*:[^/?#\s]*@", re.IGNORECASE)
# Signed addresses of stores (S3, Google, Azure, CloudFront) let anybody in who has them, as an access token does.
_SIGNED = re.compile(
    r"(?<=[?&])((?:sig|signature|x-(?:amz|goog)-(?:signature|security-token)|access_token|api_?key)=)[^&#\s]+",
    re.IGNORECASE,
)

T = TypeVar("T")


def masked(text: str) -> str:
    """Text with credentials masked, for logs: ``https://ann:secret@host/a.wav`` is ``https://***@host/a.wav``.

    In signed addresses it is the signature: ``?sig=***``.
    """
    return _SIGNED.sub(r"\1***", _LET_IN.sub(r"\1\2***@", text))


def in_short(text: str) -> str:
    """Mask an address or a client's error text and cut it to `SHOWN` characters, for a message."""
    return masked(text)[:SHOWN]


@dataclass(frozen=True)
class Blob:
    """Bytes that can be opened: a file in a file system or a member of an archive."""

    path: str
    open: Callable[[], BinaryIO]

    def read(self, limit: int) -> bytes:
        """Read all bytes. Raises BadRecord (``side-file-too-large``) if there are more than `limit`."""
        with self.open() as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise BadRecord("side-file-too-large", f"{self.path}: more than {limit} bytes")
        return data


@contextmanager
def reaching(address: str) -> Iterator[None]:
    """Raise ConfigError if a store or server does not answer or denies access while it is listed or read."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError) and not is_of_a_store(error):
            raise
        raise _unread(address, error) from error


def _unread(address: str, error: Exception) -> ConfigError:
    remedy = "check the address, the credentials and the network"
    return ConfigError(f"cannot be read: {masked(explained(error))}", where=masked(address), remedy=remedy)


def explained(error: BaseException) -> str:
    """Describe an error in words. fsspec's "not found" for a web server has only the address: read its cause."""
    behind = error.__cause__ if isinstance(error, FileNotFoundError) else None
    if isinstance(private := getattr(behind or error, "os_error", None), PrivateAddress):
        return f"{private} {private.address}; allow_private permits networks"
    if status := getattr(behind, "status", 0):
        return f"the server responded {status} {getattr(behind, 'message', '')}".rstrip()
    return str(behind or error) or type(behind or error).__name__


def _of_the_address(error: Exception) -> str:
    """The reason why a store's client rejects this address or has no credentials for its store; "" if the store fails,
    and with it all other addresses there."""
    name = type(error).__name__
    return "malformed-address" if name == "ParamValidationError" else "unreachable-file" * ("Credential" in name)


def open_at(fs: Any, path: str, *, folder: Path | None = None) -> BinaryIO:
    """Open a seekable binary file. Network errors are raised after `TRIES` attempts.

    folder: a local folder for a copy of the fetched bytes, useful for archives, which are listed first and read later.
    """
    if is_local(fs):
        return cast(BinaryIO, fs.open(path, "rb"))
    return cast(BinaryIO, Remote(fs, path, keep=scratch_file(folder) if folder else None))


def _final(error: Exception) -> str:
    """The reason why a retry cannot succeed; "" if a retry may help."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    if any(isinstance(each, PrivateAddress) for each in causes):
        return "private-address"
    if any(isinstance(each, ValueError) for each in causes):  # from yarl and aiohttp: not a URL
        return "malformed-address"
    return "missing-file" if _is_missing(error) else ""


def _is_missing(error: Exception) -> bool:
    """Whether the file is missing. fsspec reports every refusal of a web server as "not found", so check the cause."""
    if not isinstance(error, FileNotFoundError | PermissionError):
        return False
    cause = error.__cause__
    if cause is None or not isinstance(cause, _network_errors()):
        return True
    status = getattr(cause, "status", 0)  # only server responses have a status
    return 400 <= status < 500 and status != 429


@cache
def _network_errors() -> tuple[type[Exception], ...]:
    import aiohttp

    return OSError, aiohttp.ClientError


class Remote(RangeFile):
    """A remote file that retries failed reads; with `tolerant`, errors of this file are raised as BadRecord."""

    _file: Any = None  # `close` also runs after a failed __init__; Python 3.13 prints exceptions raised there

    def __init__(self, fs: Any, path: str, *, tolerant: bool = False, keep: BinaryIO | None = None) -> None:
        """keep: a file that stores everything fetched, see `core.ranges.ReadAhead`."""
        self._fs, self._path, self._tolerant, self._keep = fs, path, tolerant, keep
        self._file = self._try(self._open)

    def _open(self) -> Any:
        file = open_ranges(self._fs, self._path, keep=self._keep)
        # If the server does not support ranges, fsspec returns a stream without a size.
        return self._copy() if getattr(file, "size", 0) is None else file

    def _copy(self) -> Any:
        target = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        with self._fs.open(self._path, "rb", block_size=0) as source:
            while block := source.read(READ_BYTES):
                target.write(block)
                if target.tell() > MAX_COPY_BYTES:
                    detail = (
                        f"{in_short(self._path)}: more than {MAX_COPY_BYTES} bytes from a server without byte ranges"
                    )
                    raise BadRecord("too-large", detail)
        return target

    def _try(self, call: Callable[[], T]) -> T:
        for attempt in range(TRIES):
            try:
                return call()
            except _network_errors() as error:
                reason = _final(error)
                if reason or attempt == TRIES - 1:
                    if not self._tolerant:
                        raise
                    raise self._bad(reason or "unreachable-file", error) from error
            except MegahourError:
                raise
            except Exception as error:
                reason = _of_the_address(error) if is_of_a_store(error) else "malformed-address"
                if self._tolerant and reason:
                    raise self._bad(reason, error) from error
                if is_of_a_store(error):
                    raise _unread(self._path, error) from error
                raise
            time.sleep(PAUSE_S * 2**attempt)
        raise AssertionError("the last try returns or raises")

    def _bad(self, reason: str, error: Exception) -> BadRecord:
        return BadRecord(reason, f"{in_short(self._path)}: {in_short(explained(error))}")

    def _read(self, size: int) -> bytes:
        try:
            self._file.seek(self._position)
            return bytes(self._file.read(size))
        except ValueError:  # fsspec: the server announced range support but sends the whole file
            self._file = self._copy()
            self._file.seek(self._position)
            return bytes(self._file.read(size))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            self._position = max(0, self._file.seek(offset, io.SEEK_END))
        else:
            self._position = max(0, offset + (self._position if whence == io.SEEK_CUR else 0))
        return self._position

    def read(self, size: int = -1) -> bytes:
        data = self._try(lambda: self._read(size))
        self._position += len(data)
        return data

    def close(self) -> None:
        if self._file is not None and not self.closed:
            self._file.close()
        super().close()
