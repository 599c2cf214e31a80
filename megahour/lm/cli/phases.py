"""Progress by phase on the terminal, and the time of each phase."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from megahour.runner.console import duration
from megahour.runner.log import bars, say
from megahour.runner.pace import Pace

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

LINE_EVERY_S = 15.0  # without a terminal, a plain line this often


class Phases:
    """A progress function, `progress(phase, done, total)`. seconds: by phase, wall and CPU time of this process."""

    def __init__(self) -> None:
        self.seconds: dict[str, tuple[float, float]] = {}
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._phase = ""
        self._pace = Pace()
        self._begun = self._spoke = time.monotonic()
        self._cpu = time.process_time()

    def __enter__(self) -> Phases:
        if bars() and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            console = Console(stderr=True, highlight=False)
            columns = (TextColumn("{task.description:<10}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
            self._bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True)
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, phase: str, done: int, total: int) -> None:
        if phase != self._phase:
            self.begin(phase)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total or None)
        if time.monotonic() - self._spoke <= LINE_EVERY_S:
            return
        self._spoke = time.monotonic()
        self._pace.update(done, total)
        spent, left = self._spoke - self._begun, self._pace.left_s() if total else None
        of = f"{done / total:.0%}" if total else f"{done:,}"
        eta = f", ETA {duration(left)}" if left is not None else ""
        facts = {"step": phase, "done": done, "total": total or None, "seconds": round(spent, 1), "eta_s": left}
        say("progress", f"{phase}: {of}, {duration(spent)}{eta}", facts, shown=self._bar is not None)

    def begin(self, phase: str) -> None:
        """End the current phase and begin another."""
        self.end()
        self._phase, self._begun, self._cpu = phase, time.monotonic(), time.process_time()
        self._pace.begin(0, 0)
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(phase, total=None)

    def end(self) -> None:
        """End the current phase."""
        if self._phase:
            wall, cpu = self.seconds.get(self._phase, (0.0, 0.0))
            now = time.monotonic() - self._begun, time.process_time() - self._cpu
            self.seconds[self._phase] = wall + now[0], cpu + now[1]
            self._phase = ""

    def say_summary(self) -> None:
        """Log the time of each phase: wall seconds in `phases`, CPU seconds of this process in `cpu_s`."""
        wall, cpu = ({phase: round(each[i], 3) for phase, each in self.seconds.items()} for i in (0, 1))
        say("phases", self.summary(), {"phases": wall, "cpu_s": cpu})

    def summary(self) -> str:
        """``read 1.2 s, count 3.4 s …: 5.6 s, 8.1 s of CPU``."""
        each = ", ".join(f"{phase} {wall:.1f} s" for phase, (wall, _) in self.seconds.items())
        wall, cpu = (sum(values[i] for values in self.seconds.values()) for i in (0, 1))
        return f"{each}: {wall:.1f} s, {cpu:.1f} s of CPU"
