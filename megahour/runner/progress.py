"""Shows a stage's progress: a live bar on a terminal, plain lines elsewhere, and a closing line."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megahour.core.receipts import Counts, Manifest, Receipt
from megahour.runner.console import count, duration
from megahour.runner.log import bars, say
from megahour.runner.monitor import Monitor
from megahour.runner.pace import Pace, run_left
from megahour.runner.scratch import has_checkpoints

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

    from megahour.engine.base import Engine
    from megahour.runner.job import Job

LINE_EVERY_S = 15.0  # between plain lines, which a log file also gets beside a bar


@dataclass(frozen=True)
class StepPlace:
    """A step's position in a run: `number` of `steps`, counted from 1.

    last_s: seconds that the step took last time; None: never timed. later_s: those that each other step which has not
    ended took, or of one that runs those left. at_once: how many steps run at the same time; with several there is no
    bar.
    """

    number: int
    steps: int
    last_s: float | None = None
    later_s: Callable[[], Sequence[float | None]] = tuple
    at_once: int = 1


class TerminalMonitor(Monitor):
    """Prints a step's progress; `place` is set in a run of several steps."""

    def __init__(self, step: str = "", place: StepPlace | None = None) -> None:
        self.step, self.place = step, place
        self.done = self.total = 0  # shards
        self._stage = ""
        self._bar: Progress | None = None
        self._audio_s, self._counts = 0.0, Counts()
        self._before_s = 0.0  # the part of it that came before the pace began
        self._pace = Pace(place.last_s if place else None)
        self._spoke = time.monotonic()
        self._counting = ""  # the unit in which a long task reports progress; "": shards
        self._note = self._more = ""
        self._work = ""

    def begins(self, stage: str, job: Job, engine: Engine) -> None:
        self._work = job.work

    @property
    def title(self) -> str:
        """`12/28 align`, or the step or stage alone."""
        name = self.step or self._stage
        position = self.place
        return f"{position.number:>{len(str(position.steps))}}/{position.steps} {name}" if position else name

    def started(self, stage: str, tasks: int, done: int) -> None:
        self._stage, self._audio_s, self.done, self.total, self._counting = stage, 0.0, done, tasks, ""
        self._before_s = 0.0
        self._note, self._more, self._counts = f"{done:,}/{count(tasks, 'shard')}", "", Counts()
        self._pace.begin(done, tasks)
        self._spoke = time.monotonic()
        of = f"{stage}, " if self.step not in ("", stage) else ""
        resumed = f", {done:,} of them already made" if done else ""
        last = f", {duration(self.place.last_s)} last time" if self.place and self.place.last_s else ""
        if bars() and (self.place is None or self.place.at_once == 1):
            self._draw()
        say(
            "step-started", f"{self.title}: {of}{count(tasks, 'shard')}{resumed}{last}",
            self._facts() | {"done": done, "total": tasks, "unit": "shards"}, shown=self._bar is not None,
        )  # fmt: skip

    def _draw(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
        from rich.table import Column
        from rich.text import Text

        monitor = self

        class Words(ProgressColumn):
            """Text computed at each refresh, so that the remaining time counts down between shards."""

            def render(self, task: Any) -> Text:
                return Text(monitor._words())

        console = Console(stderr=True, highlight=False, soft_wrap=True)
        if not console.is_terminal:
            return
        title = f"{self.title:<14}"
        columns = (
            TextColumn(title, markup=False, table_column=Column(width=len(title))),
            BarColumn(12, table_column=Column(width=12)),
            Words(Column(no_wrap=True, overflow="ellipsis")),
        )
        self._bar = Progress(*columns, console=console, transient=True)
        self._bar.start()
        self._bar.add_task("", total=max(self.total, 1), completed=self.done)

    def task_done(self, receipt: Receipt) -> None:
        self.done += 1
        self._audio_s += audio_seconds(receipt)
        self._counts.add(receipt.counts)
        if self._counting:  # in rounds, or in the units of a long task: what is left counts in shards
            self._counting, self._before_s = "", self._audio_s
            self._pace.begin(self.done, self.total)
        self._pace.update(self.done, self.total)
        self._note, self._more = f"{self.done:,}/{count(self.total, 'shard')}", ""
        values: dict[str, float] = {"records": self._counts.came_in, "kept": self._counts.kept, "bad": self._counts.bad}
        if heard_s := self._audio_s - self._before_s:
            speed = heard_s / max(self._pace.spent_s, 1e-6)
            self._more = f", {self._audio_s / 3600:.2f} h, {speed:,.0f}× real time"
            values |= {"audio_h": round(self._audio_s / 3600, 6), "hours_per_hour": round(speed, 3)}
        self._show({"unit": "shards", "rate": round(self._pace.rate, 6), "values": values})

    def progress(self, done: float, total: float, unit: str, **fields: Any) -> None:
        """total: 0 if it is unknown; then the time left is not estimated."""
        if not self._counting or done < self._pace.done:  # the first report, or the next task's
            self._counting = unit
            self._pace.begin(done, total)
        self._pace.update(done, total)
        of = f"/{_short(total)}" if total else ""
        self._note = f"{_short(done)}{of} {unit}, {_short(self._pace.rate)}/s"
        self._more = "".join(f", {name} {_short(value)}" for name, value in fields.items())
        self._show({"unit": unit, "rate": round(self._pace.rate, 6), "values": fields})

    def _show(self, facts: dict[str, Any]) -> None:
        pace = self._pace
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=pace.done, total=max(pace.total, 1))
        if time.monotonic() - self._spoke <= LINE_EVERY_S or pace.done >= pace.total > 0:
            return  # the closing line follows
        self._spoke = time.monotonic()
        left = self.left_s()
        facts |= {"done": pace.done, "total": pace.total, "seconds": round(pace.spent_s, 1), "eta_s": _whole(left)}
        if self.place:
            facts["run_eta_s"] = _whole(run_left(left, self.place.later_s(), self.place.at_once)[0])
        say("progress", f"{self.title}: {self._words()}", self._facts() | facts, shown=self._bar is not None)

    def _words(self) -> str:
        """`70/300 shards, 12 s, ETA 40 s, run ETA 7 min 10 s, 2.10 h, 630× real time`."""
        return f"{self._note}, {duration(self._pace.spent_s)}, {self._left()}{self._more}"

    def left_s(self) -> float | None:
        """Estimated seconds left of the step; None if there is no basis for an estimate."""
        return self._pace.left_s()

    def _left(self) -> str:
        left = self.left_s()
        text = f"ETA {_eta(left)}"
        if self.place:
            whole, exact = run_left(left, self.place.later_s(), self.place.at_once)
            text += f", run ETA {'' if exact or whole is None else 'over '}{_eta(whole)}"
        return text

    def finished(self, manifest: Manifest, seconds: float) -> None:
        self._stage = manifest.stage
        counts = manifest.counts
        say(
            "step-finished", closing_line(self.title, manifest, seconds, self._audio_s),
            self._facts() | {"in": counts.came_in, "kept": counts.kept, "dropped": dict(counts.dropped)}
            | {"shards": manifest.shards, "seconds": round(seconds, 3)},
        )  # fmt: skip

    def hint(self, text: str) -> None:
        say("hint", f"{self.title}: {text}", self._facts())

    def was_made(self, stage: str) -> None:
        """Report that the step was up to date."""
        self._stage = stage
        say("step-up-to-date", f"{self.title}: up to date", self._facts())

    def kept(self) -> str:
        """How much of an interrupted step is finished."""
        checkpoints = " and checkpoints" if self._work and has_checkpoints(Path(self._work)) else ""
        return f"{self.done:,} of {count(self.total, 'shard')}{checkpoints}"

    def stopped(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"step": self.step or self._stage, "stage": self._stage}
        if self.place:
            facts |= {"number": self.place.number, "steps": self.place.steps}
        return facts


def audio_seconds(receipt: Receipt) -> float:
    """Seconds of audio that the stage processed for a shard (`audio_s` of its statistics)."""
    return float(receipt.stats.get("audio_s", 0.0))


def closing_line(step: str, manifest: Manifest, seconds: float, audio_s: float) -> str:
    """`step  in 120  kept 113  dropped 7 (too-short 5, low-confidence 2)  3.1 s  4,120 h of audio per hour`.

    Source files that are not records (`not_read` of the summary) are listed too, since no loss may be silent; so is
    the stage's `remark`.
    """
    counts = manifest.counts
    reasons = sorted(counts.dropped.items(), key=lambda item: (-item[1], item[0]))
    dropped = sum(counts.dropped.values())
    text = f"{step:<20} in {counts.came_in:,}  kept {counts.kept:,}  dropped {dropped:,}"
    if reasons:
        text += " (" + ", ".join(f"{reason} {n:,}" for reason, n in reasons) + ")"
    if remark := manifest.summary.get("remark"):
        text += f"  {remark}"
    if not_read := manifest.summary.get("not_read"):
        kinds = ", ".join(f"{kind} {n:,}" for kind, n in not_read.items())
        text += f"  not read {sum(not_read.values()):,} files ({kinds})"
    text += f"  {duration(seconds)}"
    if audio_s and seconds > 0:
        text += f"  {audio_s / seconds:,.0f} h of audio per hour"
    return text


def summary_table(rows: list[tuple[str, Manifest, float | None, float]]) -> Table:
    """The closing table of a run; rows are (step, manifest, seconds of this session, times real time).

    The speed covers all sessions, so that work of earlier ones does not inflate it.
    """
    from rich.table import Table

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


def _eta(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds:.0f} s" if seconds < 10 else duration(seconds)


def _whole(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
