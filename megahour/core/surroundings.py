"""Turns errors of disks, stores, memory and missing packages into messages with a remedy instead of tracebacks."""

from __future__ import annotations

import errno
import re
import shutil
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megahour.core.errors import MegahourError, StageError, StoreError
from megahour.core.extras import missing

CLIENTS = ("aiohttp", "botocore", "aiobotocore", "gcsfs", "google", "azure")  # packages whose errors are not OSErrors
FULL = (errno.ENOSPC, errno.EDQUOT)
_PLACE = "choose a path that you may write to"
_RIGHTS = "check the credentials, and that they allow to read, list, write and delete there"
_STORE = "check the address, the credentials and the network"
_FULL = "free some space, or choose another disk"
_OTHER = "check the disk and the network"
_FILES = "allow more open files (ulimit -n), or use fewer workers"
_MEMORY = "use fewer workers or smaller shards, or allow more (ulimit -v, the container's or the job's limit)"
_SCRATCH = re.compile(r"(^|/)\.[^/]+\.(tmp|partial)(/.*)?$")  # a file that gets its name at the end
REMEDIES = {
    **dict.fromkeys(FULL, _FULL),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST), _PLACE),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL), "give another path"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), _FILES),
    errno.ENOENT: "check the path; its bucket or mount must exist",
    errno.EFBIG: "raise the file size limit (ulimit -f), or choose another file system",
}
KINDS: dict[type[OSError], int] = {
    FileNotFoundError: errno.ENOENT,
    PermissionError: errno.EACCES,
    FileExistsError: errno.EEXIST,
    NotADirectoryError: errno.ENOTDIR,
    IsADirectoryError: errno.EISDIR,
    ConnectionError: errno.ECONNRESET,
    TimeoutError: errno.ETIMEDOUT,
}


def explained(error: BaseException, *, resumes: bool | None = True) -> MegahourError | None:
    """The error with a location and a remedy; None for a bug of the program, which needs its traceback.

    resumes: whether the same command goes on from what is finished, or starts again; None: unknown.
    """
    if isinstance(error, MegahourError):
        return error
    if (package := missing(error)) is not None:
        return package
    if isinstance(error, MemoryError):  # numpy's and Arrow's, too
        return StageError(f"not enough memory{f': {error}' if str(error) else ''}", remedy=_MEMORY)
    if is_of_a_store(error):
        return StoreError(f"the store cannot be used: {error}", remedy=_STORE)
    if not isinstance(error, OSError) or not (number := _number(error)):
        return None
    remedy = REMEDIES.get(number, _OTHER)
    if error.__cause__ is not None and is_of_a_store(error.__cause__):  # s3fs makes OSErrors of answers
        remedy = {_PLACE: _RIGHTS, _OTHER: _STORE}.get(remedy, remedy)
    if resumes is not None and remedy in (_FULL, _OTHER, _STORE):
        remedy += f"; the same command {'resumes where it stopped' if resumes else 'starts again'}"
    where = _SCRATCH.sub("", str(error.filename2 or error.filename or ""))
    return StoreError(str(error.strerror or error), where=where, remedy=remedy)


def _number(error: OSError) -> int:
    """Its errno, or its class's, since stores raise OSErrors without one. 0: a library's error, as for bad files."""
    kinds = (number for kind, number in KINDS.items() if isinstance(error, kind))
    return error.errno or next(kinds, 0)


def is_of_a_store(error: BaseException) -> bool:
    """Whether a store's client raised it: botocore's errors, for missing credentials say, are not OSErrors, and for an
    endpoint without `http://` it raises a plain ValueError."""
    module = type(error).__module__
    if isinstance(error, ValueError) and error.__traceback__:
        frame = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
        module = module if module != "builtins" else str(frame.f_globals.get("__name__"))
    return module.partition(".")[0] in CLIENTS


@contextmanager
def explaining(where: str | Path, *disks: str | Path, resumes: bool = True) -> Iterator[None]:
    """Turn errors of disks, stores and packages into StoreErrors. One without a path gets `where`, or for a full disk
    the fullest of `disks`. resumes: as in `explained`.

    Raises StoreError; other errors pass through.
    """
    try:
        yield
    except MegahourError:
        raise
    except Exception as error:
        known = explained(error, resumes=resumes)
        if known is None:
            raise
        full = isinstance(error, OSError) and error.errno in FULL
        known.where = known.where or str(min(disks, key=_free_bytes) if full and disks else where)
        raise known from error


def _free_bytes(path: str | Path) -> int:
    folder = Path(path).absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0
