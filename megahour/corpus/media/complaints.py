"""Capture what a decoder writes to the process's standard error and attribute it to the file being decoded.

libmpg123, inside libsndfile, reports errors only there: a damaged MP3 would fill the terminal with lines that name no
file. Output of other threads during that time is passed on.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

MAX_KEPT = 20
_OF_LIBMPG123 = re.compile(rb"\s*(?:\[[^\]\n]*mpg123[^\]\n]*\]|Note: |Warning: |Hint: )")
_ONE_AT_A_TIME = threading.Lock()  # the process has only one standard error


class Complaints:
    """Decoder messages about one file: `count` is their number, `texts` holds the first `MAX_KEPT`."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.count = 0

    def __str__(self) -> str:
        if not self.texts:
            return ""
        worst = next((text for text in self.texts if "error" in text), self.texts[0])
        return f"libmpg123: {worst}" + (f" (and {self.count - 1} more)" if self.count > 1 else "")

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Capture what libmpg123 writes inside the context. Does nothing in a process without standard error."""
        with _ONE_AT_A_TIME, tempfile.TemporaryFile(buffering=0) as file:
            with suppress(OSError, ValueError, AttributeError):  # pythonw has no sys.stderr; in daemons it is closed
                sys.stderr.flush()
            try:
                outside = os.dup(2)
            except OSError:
                yield
                return
            os.dup2(file.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(outside, 2)
                os.close(outside)
                file.seek(0)
                self._sort(file.read())

    def _sort(self, written: bytes) -> None:
        for line in written.splitlines(keepends=True):
            if _OF_LIBMPG123.match(line):
                self.count += 1
                if len(self.texts) < MAX_KEPT:
                    self.texts.append(line.decode("utf-8", "replace").strip())
            elif line.strip():
                os.write(2, line)
