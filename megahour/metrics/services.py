"""Totals over this process's model services; see `megahour.serve.metrics`."""

from __future__ import annotations

from collections.abc import Iterator

from megahour.metrics.names import MetricSample
from megahour.serve.metrics import RUNNING

ADDED = {
    "workers": "megahour_service_workers",
    "queue_frames": "megahour_service_queue_frames",
    "queue_limit_frames": "megahour_service_queue_limit_frames",
    "batches": "megahour_service_batches_total",
    "sequences": "megahour_service_sequences_total",
    "rows": "megahour_service_rows_total",
    "frames": "megahour_service_frames_total",
    "computed_frames": "megahour_service_computed_frames_total",
    "busy_s": "megahour_service_busy_seconds_total",
    "failed": "megahour_service_failed_total",
    "worker_deaths": "megahour_service_worker_deaths_total",
}
WAITS = {"queue_wait_p50_s": "0.5", "queue_wait_p95_s": "0.95", "queue_wait_p99_s": "0.99"}


def services() -> Iterator[MetricSample]:
    """Sums over the running services, and their longest wait; nothing if none is running."""
    snapshots = [meter.snapshot() for meter in tuple(RUNNING)]
    if not snapshots:
        return
    for key, name in ADDED.items():
        yield MetricSample(name, sum(each[key] for each in snapshots))
    for key, quantile in WAITS.items():
        yield MetricSample(
            "megahour_service_queue_wait_seconds", max(each[key] for each in snapshots), {"quantile": quantile}
        )
