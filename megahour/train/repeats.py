"""An unexpected error that comes again and again at the same place is one that no restart mends.

Most such errors (an allocation that failed, a connection that torch reports in its own way, a file system that was away
for a moment) are gone after a restart from the checkpoint. One of the program, or of the data at one place, is not.
"""

from __future__ import annotations

import json
from pathlib import Path

REPEATS = 3
"""Starts in a row that may end with the same words, with no new checkpoint between them."""


def comes_again(error: Exception, path: Path, start: int, checkpoints: Path) -> bool:
    """Whether this is the last of `REPEATS` starts of a worker that ended so. One that cannot be counted is not.

    Parameters
    ----------
    path: where the worker counts; it ends, and is started again, each time.
    start: number of this start of the workers.
    checkpoints: the folder whose newest entry tells that the run has got on.
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


def _newest(folder: Path) -> str:
    try:
        return max((path.name for path in folder.iterdir()), default="")
    except OSError:
        return ""
