"""Writes the file that a command was asked for: atomically, or into the pipe or device that stands there."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from megahour.core.filesystems import file_system
from megahour.core.surroundings import explaining
from megahour.core.transfer import is_local, publish_bytes

STDOUTS = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
OPENED = {**dict.fromkeys(STDOUTS, 1), "/dev/stderr": 2, "/dev/fd/2": 2, "/proc/self/fd/2": 2}
"""Outputs that are open already. To open them again would truncate a file that a shell has written to."""
_DESCRIPTOR = re.compile(r"/dev/fd/\d+|/proc/[^/]+/fd/\d+")


def is_sink(path: str | Path) -> bool:
    """Whether an output is written to as it stands: a pipe, a device, or a descriptor such as /dev/stdout.

    A file in its place would leave the reader of a pipe waiting, and destroy a device such as /dev/null.
    """
    if str(path) in OPENED or _DESCRIPTOR.fullmatch(str(path)):
        return True
    path = Path(path)
    return path.exists() and not path.is_file() and not path.is_dir()


@contextmanager
def open_sink(path: str | Path) -> Iterator[BinaryIO]:
    """Open an output for which `is_sink` holds. Open it before the work: the reader of a pipe then sees its end on
    failure."""
    held = OPENED.get(str(path))
    with Path(path).open("wb") if held is None else open(held, "wb", closefd=False) as file:
        yield file


def make_folder(path: str | Path) -> None:
    """Make a local folder for outputs before the work that they take. Raises StoreError: none can be written there."""
    with explaining(path, Path(path).absolute().parent, resumes=False):
        Path(path).mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            number = errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(number, os.strerror(number), str(path))


def prepare_output(path: str | Path) -> None:
    """Check an output of `write_output` before the work that it takes; a store or a pipe is not checked.

    Raises StoreError: its folder cannot be written to, or it is a folder itself.
    """
    if is_sink(path) or not is_local(file_system(str(path))[0]):
        return
    make_folder(Path(path).absolute().parent)
    with explaining(path):
        if Path(path).is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


def write_output(path: str | Path, content: str | bytes) -> None:
    """Write a file of any file system atomically, or into a pipe or device.

    Raises StoreError: no such folder, no permission or no space; BrokenPipeError: the pipe's reader has left.
    """
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if is_sink(path):
        try:
            with open_sink(path) as file:
                file.write(data)
        except BrokenPipeError:  # a reader that has left, such as `head`, is no error
            raise
        except OSError:
            with explaining(path, resumes=False):
                raise
        return
    with explaining(path, Path(path).absolute().parent, resumes=False):
        publish_bytes(*file_system(str(path)), data)
