"""An unexpected error that comes again and again at the same place is one that no restart mends.

Most such errors (an allocation that failed, a connection that torch reports in its own way, a file system that was away
for a moment) are gone after a restart from the checkpoint. One of the program, or of the data at one place, is not.
"""

from __future__ import annotations

import json
from pathlib import Path

REPEATS = 3
"""Starts in a row that may end with the same words, with no new checkpoint between them."""


class Repeats:
    """Counts them in a file of `work` for each worker, as the process that counts ends each time.

    `start` is the number of this start of the workers; `checkpoints` the folder whose newest entry tells that a run
    has got on.
    """

    def __init__(self, work: Path, rank: int, start: int, checkpoints: Path) -> None:
        self._path, self._start, self._checkpoints = work / f"unexpected-{rank:05d}.json", start, checkpoints

    def again(self, error: Exception) -> bool:
        """Whether this is the last of `REPEATS` starts that ended so. A count that cannot be kept is no reason to."""
        now = {"error": f"{type(error).__name__}: {error}", "checkpoint": self._newest()}
        try:
            before = json.loads(self._path.read_text("utf-8")) if self._path.exists() else {}
            starts = before["starts"] if now.items() <= before.items() and before["starts"][-1] < self._start else []
            starts = [*starts, self._start]
            self._path.write_text(json.dumps(now | {"starts": starts}), "utf-8")
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return len(starts) >= REPEATS

    def _newest(self) -> str:
        try:
            return max((path.name for path in self._checkpoints.iterdir()), default="")
        except OSError:
            return ""
