"""Metrics of a run or a single stage in progress: its monitor also updates a `RunBoard`, which scrapes read."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from megahour.core.receipts import Counts, Manifest, Receipt
from megahour.core.store import Artifact
from megahour.metrics.background import Fetched
from megahour.metrics.machine import disks
from megahour.metrics.names import MetricSample
from megahour.metrics.training import QUANTILES, Training
from megahour.runner.progress import StepPlace, TerminalMonitor, audio_seconds

if TYPE_CHECKING:
    from megahour.engine.base import Engine
    from megahour.runner.job import Job

LOG = logging.getLogger(__name__)
SHARDS = 1024  # the last ones, for the quantiles of their durations
SYSTEMS = ("baseline", "student", "teacher")


@dataclass
class StepState:
    """State of a step. Seconds are wall time; `began_s` is a monotonic time, None while the step is not running."""

    stage: str
    shards: int = 0
    done: int = 0
    counts: Counts = field(default_factory=Counts)
    audio_s: float = 0.0
    earlier_s: float = 0.0
    session_s: float = 0.0
    began_s: float | None = None
    at: float = -1.0
    progressed_unix_s: float = 0.0
    unit_s: float = 0.0
    shard_s: deque[float] = field(default_factory=lambda: deque(maxlen=SHARDS))
    restarts: float = 0.0  # of a training's workers

    def seconds(self) -> float:
        """Seconds in this session."""
        return self.session_s if self.began_s is None else time.monotonic() - self.began_s

    def got_on(self, at: float) -> None:
        """Record that the step has reached unit `at`; repeating the same value does not count as progress."""
        if at != self.at:
            self.at, self.progressed_unix_s = at, time.time()

    def ended(self) -> None:
        self.session_s, self.began_s = self.seconds(), None


class RunBoard:
    """State of a run that scrapes report. The run's thread writes it; the endpoint's threads read it.

    price_per_core_hour: in any currency; 0 omits costs.
    """

    def __init__(self, price_per_core_hour: float = 0.0, *, steps: int = 1) -> None:
        self.price_per_core_hour, self.steps = price_per_core_hour, steps
        self._lock = threading.Lock()
        self._states: dict[str, StepState] = {}
        self._errors: dict[str, list[dict[str, Any]]] = {}
        self._finished: set[str] = set()
        self._engines: list[Engine] = []  # one for all steps; with steps at once, one for each step that has begun
        self._folders: list[str] = []
        self._trainings: dict[str, Training] = {}  # by step; a scrape shows the one that began last
        self._store = Fetched(self._ask_store)
        self._output = ""

    def known(self, step: str, stage: str, output: Artifact) -> None:
        """Register a step before it runs, with the time of earlier sessions and its measured error rates."""
        try:
            made = output.made
        except Exception as error:  # the run itself will report what is wrong
            LOG.debug("%s: %s", output.url, error)
            return
        with self._lock:
            state = self._states[step] = StepState(stage, earlier_s=_wall_s(output))
            if made is not None:
                state.shards = state.done = made.shards
                self._evaluated(step, made)

    def begins(self, step: str, job: Job, stage: str, engine: Engine) -> None:
        """Record that a step starts; its tasks are not planned yet."""
        earlier_s = _wall_s(Artifact(job.output))
        with self._lock:
            state = StepState(stage, earlier_s=earlier_s)
            state.began_s, state.progressed_unix_s = time.monotonic(), time.time()
            self._states[step] = state
            self._folders, self._output = job.disks(), job.output
            if engine not in self._engines:
                self._engines.append(engine)
            if "checkpoint_s" in job.params:
                checkpoints = f"{job.durable or job.work}/checkpoints"
                self._trainings[step] = Training(job.work, checkpoints, job.params["checkpoint_s"])

    def started(self, step: str, shards: int, done: int, unit_s: float) -> None:
        with self._lock:
            state = self._states[step]
            state.shards, state.done, state.unit_s = shards, done, unit_s
            state.got_on(done)

    def shard(self, step: str, receipt: Receipt, unit_s: float) -> None:
        with self._lock:
            state = self._states[step]
            state.done += 1
            state.counts.add(receipt.counts)
            state.audio_s += audio_seconds(receipt)
            state.unit_s = unit_s
            state.got_on(state.done)

    def took(self, step: str, seconds: float) -> None:
        """Record the seconds that a worker took for a shard."""
        with self._lock:
            self._states[step].shard_s.append(seconds)

    def units(self, step: str, at: float, unit_s: float, restarts: float) -> None:
        """Record progress of a long task in its own units, such as batches, and the restarts of training workers."""
        with self._lock:
            state = self._states[step]
            state.unit_s, state.restarts = unit_s, restarts
            state.got_on(at)

    def stopped(self, step: str) -> None:
        with self._lock:
            self._states[step].ended()
            if step in self._trainings:
                self._trainings.pop(step).close()

    def finished(self, step: str, manifest: Manifest | None = None) -> None:
        """Record that the step is done: in this session if `manifest` is given, else in an earlier one."""
        with self._lock:
            self._finished.add(step)
            if manifest is not None:
                self._evaluated(step, manifest)

    def _evaluated(self, step: str, manifest: Manifest) -> None:
        if manifest.stage == "score":
            self._errors[step] = manifest.summary.get("table", [])

    def close(self) -> None:
        self._store.close()

    def __call__(self) -> Iterator[MetricSample]:
        with self._lock:
            yield MetricSample("megahour_run_steps", self.steps)
            yield MetricSample("megahour_run_steps_done", len(self._finished))
            workers = getattr(self._engines[-1], "workers", 1) if self._engines else 1
            at_once = sum(state.began_s is not None for state in self._states.values())
            lost = sum(getattr(engine, "lost", 0) for engine in self._engines)
            for step, state in self._states.items():
                yield from self._of_step({"step": step, "stage": state.stage}, state, workers)
            for step, table in self._errors.items():
                yield from _error_rates(step, table)
            step, training = next(reversed(self._trainings.items()), ("", None))
            if not self._engines:
                return
            restarts = self._states[step].restarts if step else 0.0
        yield MetricSample("megahour_workers", workers * max(at_once, 1))
        yield MetricSample("megahour_shards_failed_total", lost)
        yield from disks(self._folders)
        yield from self._of_store()
        if training is not None:
            yield MetricSample("megahour_training_restarts", restarts)
            yield from training()

    def _of_step(self, labels: dict[str, str], state: StepState, workers: int) -> Iterator[MetricSample]:
        session_s = state.seconds()
        yield MetricSample("megahour_step_running", float(state.began_s is not None), labels)
        yield MetricSample("megahour_step_seconds", state.earlier_s + session_s, labels)
        yield MetricSample("megahour_shards", state.shards, labels)
        yield MetricSample("megahour_shards_done", state.done, labels)
        core_s = (state.earlier_s + session_s) * workers
        yield MetricSample("megahour_core_seconds", core_s, labels)
        if self.price_per_core_hour:
            yield MetricSample("megahour_cost", core_s / 3600 * self.price_per_core_hour, labels)
        if not state.progressed_unix_s:
            return  # the step did not run in this session
        yield MetricSample("megahour_step_progress_timestamp_seconds", state.progressed_unix_s, labels)
        yield MetricSample("megahour_step_unit_seconds", state.unit_s, labels)
        rising = sorted(state.shard_s)
        for quantile in QUANTILES.values() if rising else ():
            nearest = rising[math.ceil(float(quantile) * len(rising)) - 1]
            yield MetricSample("megahour_shard_seconds", nearest, {**labels, "quantile": quantile})
        counts = state.counts
        dropped = sum(counts.dropped.values()) - counts.bad
        for what, n in (("in", counts.came_in), ("kept", counts.kept), ("bad", counts.bad), ("dropped", dropped)):
            yield MetricSample("megahour_records_total", n, {**labels, "what": what})
        yield MetricSample("megahour_audio_seconds_total", state.audio_s, labels)
        yield MetricSample("megahour_audio_hours_per_hour", state.audio_s / max(session_s, 1e-6), labels)

    def _of_store(self) -> Iterator[MetricSample]:
        self._store.look()
        yield MetricSample("megahour_store_request_seconds", self._store.seconds())
        if self._store.value is not None or self._store.failed:
            yield MetricSample("megahour_store_up", float(not self._store.failed))

    def _ask_store(self) -> bool:
        """Send a small request to the running step's output store; "no such file" also counts as an answer."""
        output = Artifact(self._output)
        output.fs.invalidate_cache()
        with suppress(FileNotFoundError):
            output.fs.info(output.path("claim.txt"))
        return True


class MeteredMonitor(TerminalMonitor):
    """Shows a step on the terminal and updates a `RunBoard`."""

    def __init__(self, board: RunBoard, step: str = "", place: StepPlace | None = None) -> None:
        super().__init__(step, place)
        self._board, self._key = board, step

    def begins(self, stage: str, job: Job, engine: Engine) -> None:
        super().begins(stage, job, engine)
        self._key = self.step or stage
        self._board.begins(self._key, job, stage, engine)

    def started(self, stage: str, tasks: int, done: int) -> None:
        super().started(stage, tasks, done)
        last_s = self.place.last_s if self.place else None
        self._board.started(
            self._key, tasks, done, (last_s or 0.0) / max(tasks, 1)
        )  # estimate until this session has its own

    def took(self, seconds: float) -> None:
        self._board.took(self._key, seconds)

    def task_done(self, receipt: Receipt) -> None:
        super().task_done(receipt)
        self._board.shard(self._key, receipt, self._unit_s())

    def progress(self, done: float, total: float, unit: str, **fields: Any) -> None:
        super().progress(done, total, unit, **fields)
        self._board.units(self._key, done, self._unit_s(), fields.get("restarts", 0))

    def stopped(self) -> None:
        super().stopped()
        self._board.stopped(self._key)

    def finished(self, manifest: Manifest, seconds: float) -> None:
        super().finished(manifest, seconds)
        self._board.finished(self._key, manifest)

    def was_made(self, stage: str) -> None:
        super().was_made(stage)
        self._board.finished(self.step)

    def _unit_s(self) -> float:
        return 1 / self._pace.rate if self._pace.rate > 0 else 0.0


def _wall_s(output: Artifact) -> float:
    """Seconds of earlier sessions; 0.0 if unreadable, since metrics must not fail a run."""
    try:
        return float(output.wall().get("seconds", 0.0))
    except Exception as error:
        LOG.debug("%s: %s", output.url, error)
        return 0.0


def _error_rates(step: str, table: list[dict[str, Any]]) -> Iterator[MetricSample]:
    for row in table:
        for system in SYSTEMS:
            if (wer := row.get(f"wer_{system}")) is not None:
                labels = {"step": step, "system": system, "condition": str(row["condition"])}
                yield MetricSample("megahour_word_error_rate", wer, labels)
