"""Counters of the service, cheap enough to update for every batch."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

WAITS_KEPT = 8192  # window for percentiles, in sequences


@dataclass(eq=False)
class ServiceMeter:
    """Thread-safe counters. `gauges` returns current values by name, which snapshots include."""

    gauges: Callable[[], dict[str, float]] = dict
    batches: int = 0
    sequences: int = 0
    rows: int = 0
    frames: int = 0
    computed_frames: int = 0
    shared: int = 0
    failed: int = 0
    worker_deaths: int = 0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    queue_frames_peak: int = 0
    _waits_s: deque[float] = field(default_factory=lambda: deque(maxlen=WAITS_KEPT))
    _started_s: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def queued(self, frames: int) -> None:
        with self._lock:
            self.queue_frames_peak = max(self.queue_frames_peak, frames)

    def waited(self, waits_s: Iterable[float]) -> None:
        with self._lock:
            self._waits_s.extend(waits_s)

    def batch(
        self,
        *,
        sequences: int,
        rows: int,
        frames: int,
        computed_frames: int,
        seconds: float,
        cpu_s: float = 0.0,
        shared: int = 0,
    ) -> None:
        """Count a batch; `rows` are those of a full batch of this shape, `cpu_s` CPU time of the model's process."""
        with self._lock:
            self.batches += 1
            self.sequences += sequences
            self.rows += rows
            self.shared += shared
            self.frames += frames
            self.computed_frames += computed_frames
            self.busy_s += seconds
            self.cpu_s += cpu_s

    def failure(self, n: int) -> None:
        with self._lock:
            self.failed += n

    def death(self) -> None:
        with self._lock:
            self.worker_deaths += 1

    def snapshot(self) -> dict[str, float]:
        """All counters. padding_share: share of computed frames that were padding; rows: capacity of the batches in
        sequences; shared: sequences sent through shared memory; waits in seconds; throughput in frames per second.
        """
        gauges = self.gauges()
        with self._lock:
            seconds = time.monotonic() - self._started_s
            p50, p95, p99 = np.percentile(self._waits_s, [50, 95, 99]) if self._waits_s else (0.0, 0.0, 0.0)
            return gauges | {
                "batches": self.batches,
                "sequences": self.sequences,
                "rows": self.rows,
                "shared": self.shared,
                "frames": self.frames,
                "computed_frames": self.computed_frames,
                "padding_share": round(1 - self.frames / max(self.computed_frames, 1), 4) if self.batches else 0.0,
                "queue_wait_p50_s": round(float(p50), 4),
                "queue_wait_p95_s": round(float(p95), 4),
                "queue_wait_p99_s": round(float(p99), 4),
                "busy_s": round(self.busy_s, 3),
                "cpu_s": round(self.cpu_s, 3),
                "queue_frames_peak": self.queue_frames_peak,
                "frames_per_s": round(self.frames / max(seconds, 1e-9), 1),
                "frames_per_busy_s": round(self.frames / max(self.busy_s, 1e-9), 1),
                "failed": self.failed,
                "worker_deaths": self.worker_deaths,
                "seconds": round(seconds, 3),
            }


RUNNING: set[ServiceMeter] = set()
"""Meters of the services that run in this process."""
