"""The line that closes a stage: what came in, what was kept, and every loss by its reason."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from megahour.core.store import Counts, Manifest
from megahour.engine.progress import TerminalMonitor


def closed(counts: Counts, summary: dict[str, Any]) -> str:
    shown = io.StringIO()
    monitor = TerminalMonitor(Console(file=shown, width=200), step="recordings")
    monitor.finished(Manifest("ingest", 1, "", "", {}, {}, 1, counts, summary), 2.0)
    return " ".join(shown.getvalue().split())


def test_losses_are_named_by_number() -> None:
    counts = Counts(came_in=1200, kept=1193, dropped={"too-short": 2, "no-transcript": 5})
    line = "recordings in 1,200 kept 1,193 dropped 7 (no-transcript 5, too-short 2) 2.0 s"
    assert closed(counts, {}) == line


def test_files_that_are_no_records_are_named() -> None:
    line = closed(Counts(came_in=1, kept=1), {"not_read": {".pdf": 2, ".[old]": 1}})
    assert line == "recordings in 1 kept 1 dropped 0 not read 3 files (.pdf 2, .[old] 1) 2.0 s"
