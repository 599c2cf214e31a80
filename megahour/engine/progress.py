"""Progress on the terminal: one live line per stage with rate, ETA and hours done, and a closing table."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from megahour.core.store import Manifest, Receipt
from megahour.engine.runner import Monitor

LINE_EVERY_S = 15.0  # without a terminal, one plain line this often


class TerminalMonitor(Monitor):
    """Shows a bar on a terminal, plain lines in a log file."""

    def __init__(self, console: Console | None = None, step: str = "") -> None:
        self.console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self.step = step
        self._bar: Progress | None = None
        self._audio_s = 0.0
        self._started = self._spoke = time.monotonic()
        self._done = self._total = 0
        self._resumed = 0  # shards that earlier sessions committed
        self._first: float | None = None  # where a long task took up its work

    def started(self, stage: str, tasks: int, done: int) -> None:
        self._audio_s, self._done, self._total, self._resumed, self._first = 0.0, done, tasks, done, None
        self._started = self._spoke = time.monotonic()
        label = self.step or stage
        resumed = f" ({done} of {tasks} shards already committed)" if done else ""
        if self.console.is_terminal:
            columns = (TextColumn("{task.description:<14}"), BarColumn(), TextColumn("{task.fields[note]}"))
            self._bar = Progress(
                *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self.console, transient=True
            )
            self._bar.start()
            self._bar.add_task(label, total=max(tasks, 1), completed=done, note=f"{done}/{tasks} shards")
        else:
            self.console.print(f"{label}: {tasks} shards{resumed}")

    def task_done(self, receipt: Receipt) -> None:
        self._done += 1
        self._audio_s += audio_seconds(receipt)
        elapsed = max(time.monotonic() - self._started, 1e-6)
        note = f"{self._done}/{self._total} shards"
        if self._audio_s:
            note += f", {self._audio_s / 3600:.2f} h, {self._audio_s / elapsed:.0f}× real time"
        self._show(self._done, self._total, note, since=self._resumed)

    def progress(self, done: float, total: float, unit: str, **fields: Any) -> None:
        if self._first is None:
            self._first, self._started = done, time.monotonic()
        rate = (done - self._first) / max(time.monotonic() - self._started, 1e-6)
        extra = "".join(f", {name} {_short(value)}" for name, value in fields.items())
        self._show(done, total, f"{_short(done)}/{_short(total)} {unit}, {_short(rate)}/s{extra}", since=self._first)

    def _show(self, done: float, total: float, note: str, *, since: float) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=max(total, 1), note=note)
        elif time.monotonic() - self._spoke > LINE_EVERY_S:
            self._spoke = time.monotonic()
            spent = self._spoke - self._started
            eta = f"{spent / (done - since) * (total - done):.0f} s" if done > since else "unknown"
            self.console.print(f"  {note}, {spent:.0f} s, ETA {eta}")

    def finished(self, manifest: Manifest, seconds: float) -> None:
        self.console.print(closing_line(self.step or manifest.stage, manifest, seconds, self._audio_s))

    def stopped(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def audio_seconds(receipt: Receipt) -> float:
    """Seconds of audio that a shard's stage went through (stages add them up under `audio_s`)."""
    return float(receipt.stats.get("audio_s", 0.0))


def closing_line(step: str, manifest: Manifest, seconds: float, audio_s: float) -> str:
    """`step  in 120  kept 113  dropped 7 (too-short 5, low-confidence 2)  3.1 s  4,120 h of audio per hour`.

    Files of a source that are no records (`not_read` of the summary) are named too: a loss must not be silent. So is
    what else a stage has to say (`remark`).
    """
    counts = manifest.counts
    reasons = sorted(counts.dropped.items(), key=lambda item: (-item[1], item[0]))
    dropped = sum(counts.dropped.values())
    text = f"[bold]{step:<14}[/] in {counts.came_in:,}  kept {counts.kept:,}  dropped {dropped:,}"
    if reasons:
        text += " (" + ", ".join(f"{reason} {n:,}" for reason, n in reasons) + ")"
    if remark := manifest.summary.get("remark"):
        text += f"  {escape(remark)}"
    if not_read := manifest.summary.get("not_read"):
        kinds = ", ".join(f"{kind} {n:,}" for kind, n in not_read.items())
        text += f"  not read {sum(not_read.values()):,} files ({escape(kinds)})"
    text += f"  {seconds:.1f} s"
    if audio_s and seconds > 0:
        text += f"  {audio_s / seconds:,.0f} h of audio per hour"
    return text


def summary_table(rows: list[tuple[str, Manifest, float | None, float]]) -> Table:
    """The closing table of a run; rows are (step, manifest, seconds of this session, times real time).

    The last is of all sessions: what an earlier one has done is not this one's speed.
    """
    table = Table(title="This run", title_justify="left")
    for heading in ("step", "in", "kept", "dropped", "seconds", "h of audio per h"):
        table.add_column(heading, justify="left" if heading in ("step", "dropped") else "right")
    for step, manifest, seconds, speed in rows:
        counts = manifest.counts
        dropped = ", ".join(f"{reason} {n:,}" for reason, n in sorted(counts.dropped.items(), key=lambda r: -r[1]))
        rate = f"{speed:,.0f}" if speed and seconds else ""
        took = "already made" if seconds is None else f"{seconds:.1f}"
        table.add_row(step, f"{counts.came_in:,}", f"{counts.kept:,}", dropped, took, rate)
    return table


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
