"""Sort more lines than memory holds: sorted runs in scratch files, merged 64 at a time.

Lines are compared as bytes, as `LC_ALL=C sort` does.
"""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

RUN_BYTES = 64 << 20
FAN_IN = 64


class LineSorter:
    """Collects lines without newlines, and returns them sorted. Memory stays near `run_bytes`.

    folder: where the runs are written. A run is deleted once it is merged, and all are on exit.
    """

    def __init__(self, folder: Path, run_bytes: int = RUN_BYTES, fan_in: int = FAN_IN) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._scratch = tempfile.TemporaryDirectory(dir=folder, prefix="sort-")
        self._run_bytes, self._fan_in = run_bytes, fan_in
        self._lines: list[bytes] = []
        self._bytes = 0
        self._runs: list[Path] = []
        self._made = 0

    def __enter__(self) -> LineSorter:
        return self

    def __exit__(self, *error: object) -> None:
        self._scratch.cleanup()

    def add(self, line: bytes) -> None:
        """Add a line. Raises ValueError if it contains a newline."""
        if b"\n" in line:
            raise ValueError("a line to sort has a newline inside")
        self._lines.append(line)
        self._bytes += len(line) + 64  # overhead of the object
        if self._bytes >= self._run_bytes:
            self._runs.append(self._write(iter(sorted(self._lines))))
            self._lines, self._bytes = [], 0

    def lines(self) -> Iterator[bytes]:
        """All lines in order. Call it once."""
        while len(self._runs) > self._fan_in:
            head, self._runs = self._runs[: self._fan_in], self._runs[self._fan_in :]
            self._runs.append(self._write(_merged(head, [])))
            for path in head:
                path.unlink()
        yield from _merged(self._runs, sorted(self._lines))

    def _write(self, lines: Iterator[bytes]) -> Path:
        path = Path(self._scratch.name) / f"{self._made}.run"
        self._made += 1
        with path.open("wb") as file:
            file.writelines(line + b"\n" for line in lines)
        return path


def _merged(runs: list[Path], lines: list[bytes]) -> Iterator[bytes]:
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("rb")) for path in runs]
        yield from heapq.merge(lines, *((line[:-1] for line in file) for file in files))
