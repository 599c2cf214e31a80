"""Open files named in an untrusted table. A file that cannot be read affects only its own row."""

from __future__ import annotations

import io
import re
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import urlsplit

from megahour.core.errors import BadRecord, MegahourError
from megahour.core.filesystems import file_system
from megahour.corpus.media.addresses import Blob, Remote, in_short, masked
from megahour.corpus.media.networks import Networks, PrivateAddress, check_host, parse_networks, web_files

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

WEB = ("http", "https")
DISK = ("file", "local")
PROTOCOLS = (*DISK, *WEB, "s3", "s3a", "gs", "gcs", "abfs", "az", "hdfs")
_SCHEME = re.compile(r"([A-Za-z][\w+.-]*)(?:://|::)|(data):", re.IGNORECASE)
_ABSOLUTE = re.compile(r"[/~]|[A-Za-z]:[\\/]")
_CONTROL = re.compile(r"[\0-\x20\x7f]")


@dataclass(frozen=True)
class Listing:
    """A table at `source`, which determines the addresses that its rows may name. Relative ones start from `root`.

    A local table may name any local file, a remote table none. Both may name web addresses, but none on this machine
    or in a private network unless it is in `allow_private` (networks such as "10.0.0.0/8").
    """

    source: str
    allow_private: tuple[str, ...] = ()
    root: str = ""  # empty: the table's folder

    @cached_property
    def is_local(self) -> bool:
        return _protocol(self.source) in ("", *DISK)

    def is_here(self, address: str) -> bool:
        """Whether an address is a local file, which opens without a network request."""
        return self.is_local and _protocol(address) in ("", *DISK)

    def blob(self, address: str) -> Blob:
        """The file at an address, which may be relative.

        Raises
        ------
        BadRecord: ``foreign-protocol``, ``local-address``, ``malformed-address``. Opening it raises
        ``private-address``, ``missing-file`` (absent or access denied), ``unreachable-file`` (no answer), and reading
        it ``unreadable-file`` (its disk fails).
        """
        absolute = self._absolute(address)
        hint = "" if absolute == address else "; relative addresses start from the table's folder, or from `root`"
        return Blob(masked(address), lambda: self._open(absolute, hint))

    def _absolute(self, address: str) -> str:
        shown = in_short(address)
        if "\0" in address:
            raise BadRecord("malformed-address", f"{shown!r} has a NUL character")
        protocol = _protocol(address)
        here = protocol in (*DISK, "memory") if protocol else bool(self.root) and _protocol(self.root) in ("", *DISK)
        if not self.is_local and (here or _ABSOLUTE.match(address)):
            raise BadRecord("local-address", f"{shown}: a remote table cannot name files of this machine")
        if not protocol:
            base = "" if _ABSOLUTE.match(address) else self.root.rstrip("/") or self.source.rpartition("/")[0]
            return f"{base}/{address}" if base else address
        if protocol not in PROTOCOLS or ("::" in address and protocol not in (*WEB, *DISK)):
            known = ", ".join(f"{name}://" for name in PROTOCOLS)
            raise BadRecord("foreign-protocol", f"{shown}: rows may only name paths and {known}, without chaining")
        _check_form(address, protocol)
        return address

    def _open(self, address: str, hint: str) -> BinaryIO:
        protocol = _protocol(address)
        if protocol in ("", *DISK):
            return _open_disk(address, hint)
        allowed = parse_networks(self.allow_private)
        try:
            if protocol in WEB:
                return cast(BinaryIO, Remote(web_files(allowed), address, tolerant=True))
            self._check_namenode(address, protocol, allowed)
            return cast(BinaryIO, Remote(*_store(address), tolerant=True))
        except PrivateAddress as error:
            detail = f"{in_short(address)}: {error} {error.address}; allow_private permits networks"
            raise BadRecord("private-address", detail) from error

    def _check_namenode(self, address: str, protocol: str, allowed: Networks) -> None:
        """Check the host of an hdfs:// address unless it is the table's own: the client would contact any host."""
        host = urlsplit(address).hostname if protocol == "hdfs" else None
        if host and urlsplit(address).netloc != urlsplit(self.source).netloc:
            check_host(host, allowed)


def _protocol(address: str) -> str:
    """The protocol in lower case; "" for a path."""
    match = _SCHEME.match(address)
    return (match[1] or match[2]).lower() if match else ""


def _check_form(address: str, protocol: str) -> None:
    scheme, _, rest = address.partition("://")
    if "::" in scheme:
        raise BadRecord("foreign-protocol", f"{in_short(address)}: chained protocols are refused")
    if not rest.strip("/"):
        raise BadRecord("malformed-address", f"{in_short(address)} names no file")
    if protocol not in WEB:
        return
    try:
        parts = urlsplit(address)
        whole = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise BadRecord("malformed-address", f"{in_short(address)!r}: {error}") from None
    if not whole or _CONTROL.search(parts.netloc):
        raise BadRecord("malformed-address", f"{in_short(address)!r} names no host")


def _open_disk(address: str, hint: str) -> BinaryIO:
    from fsspec.implementations.local import LocalFileSystem

    try:
        path = Path(LocalFileSystem._strip_protocol(address))
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe would block
            raise BadRecord("missing-file", f"{in_short(address)} is not a file")
        # So may some of the kernel's, which have no size: /proc/kmsg.
        return cast(BinaryIO, io.BufferedReader(_OnDisk(path))) if found.st_size else io.BytesIO()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        raise BadRecord("missing-file", f"{in_short(address)}: {why or error}{hint}") from error


class _OnDisk(io.FileIO):
    """A file whose failure is that of its row, not of the output's disk."""

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        try:
            return super().readinto(buffer)
        except OSError as error:
            raise BadRecord("unreadable-file", f"{in_short(str(self.name))}: {error.strerror}") from error

    def readall(self) -> bytes:
        try:
            return super().readall()
        except OSError as error:
            raise BadRecord("unreadable-file", f"{in_short(str(self.name))}: {error.strerror}") from error


def _store(address: str) -> tuple[Any, str]:
    try:
        return file_system(address)
    except MegahourError as error:
        raise BadRecord("unreachable-file", f"{in_short(address)}: {in_short(error.message)}") from error
    except Exception as error:  # a client library may raise anything for an untrusted string
        raise BadRecord(
            "malformed-address", f"{in_short(address)!r}: {type(error).__name__} {in_short(str(error))}"
        ) from error
