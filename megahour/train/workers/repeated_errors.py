"""Decides when to stop restarting: after bugs in the program, and after the same error without a new checkpoint.

Most other errors (a failed allocation, a broken connection, a file system that was away for a moment) do not recur
after a restart from the checkpoint.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import fsspec
import torch

from megahour.sync.group.mesh import of_transport

REPEATS = 3
"""Consecutive starts that may end with the same error without a new checkpoint."""

_OF_PROGRAM = (TypeError, ValueError, LookupError, AttributeError, NameError, AssertionError, ArithmeticError)
_OF_MACHINE = re.compile(
    r"alloc|out of memory|CUDA|cuDNN|cuBLAS|HIP error|device-side|mmap|shared memory|unavailable|pthread|thread|signal",
    re.IGNORECASE,
)


def of_program(error: Exception) -> bool:
    """Whether `error` is a bug of the program or its data (a type, a key, a shape), which recurs at each start.

    torch raises RuntimeError for shapes as well as for memory, devices and connections; the latter are recognised by
    their words.
    """
    if isinstance(error, RuntimeError):
        machine = isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError) or _OF_MACHINE.search(str(error))
        return not (machine or of_transport(error))
    return isinstance(error, _OF_PROGRAM)


def comes_again(error: Exception, path: Path, start: int, checkpoints: str | Path) -> bool:
    """Whether this error has ended `REPEATS` consecutive starts of a worker; False if that cannot be counted.

    Parameters
    ----------
    path: file in which the worker counts, since each start is a new process.
    start: number of this start of the workers.
    checkpoints: path or URL of the folder whose newest checkpoint shows the run's progress.
    """
    now = {"error": f"{type(error).__name__}: {error}", "checkpoint": _newest(checkpoints)}
    try:
        before = json.loads(path.read_text("utf-8")) if path.exists() else {}
        starts = before["starts"] if now.items() <= before.items() and before["starts"][-1] < start else []
        starts = [*starts, start]
        path.write_text(json.dumps(now | {"starts": starts}), "utf-8")
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return len(starts) >= REPEATS


def _newest(folder: str | Path) -> str:
    fs, root = fsspec.core.url_to_fs(str(folder))
    try:
        fs.invalidate_cache()
        names = (path.rstrip("/").rsplit("/", 1)[-1] for path in fs.ls(root, detail=False))
        return max((name for name in names if name.isdecimal()), default="")
    except OSError:
        return ""
