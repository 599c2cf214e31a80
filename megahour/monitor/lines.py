"""Optional JSON-lines files, such as meters and logs: a full disk does not stop training."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LOG = logging.getLogger(__name__)


class JsonLines:
    """Appends rows to `path`, each complete or not at all. The first failed write is logged; none raises."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)
        self._failing = False

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a row; skip it if that fails."""
        line = (json.dumps(row, sort_keys=True) + "\n").encode()
        before = os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(line) != len(line):
                self._file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if not self._failing:
                LOG.warning("rows could not be written to %s: %s", self.path, error)
            self._failing = True
        else:
            self._failing = False

    def close(self) -> None:
        """Close the file."""
        self._file.close()
