"""All metrics, with name, type and help. docs/metrics.md lists them; alert rules and dashboard use no others.

Times are in seconds, sizes in bytes. A counter starts at zero with its command, or with its service; a metric described
as `of all sessions` includes earlier runs of the same command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter"]


class Metric(NamedTuple):
    """A metric's type, its labels and its help."""

    kind: Kind
    labels: tuple[str, ...]
    says: str


class MetricSample(NamedTuple):
    """One value of the metric `name`, with a value for each label that METRICS declares."""

    name: str
    value: float
    labels: Mapping[str, str] = {}


Source = Callable[[], Iterator[MetricSample]]
"""Called at every scrape, in its own thread; it must not block."""

_STEP = ("step", "stage")

METRICS: dict[str, Metric] = {
    "megahour_run_steps": Metric("gauge", (), "steps of the run"),
    "megahour_run_steps_done": Metric("gauge", (), "finished steps"),
    "megahour_step_running": Metric("gauge", _STEP, "1 while the step runs, else 0"),
    "megahour_step_progress_timestamp_seconds": Metric(
        "gauge", _STEP, "when the step last made progress, as Unix time"
    ),
    "megahour_step_unit_seconds": Metric("gauge", _STEP, "seconds for a shard, or for a batch of a training"),
    "megahour_shard_seconds": Metric(
        "gauge", (*_STEP, "quantile"), "a worker's seconds for a shard, of the last 1,024"
    ),
    "megahour_step_seconds": Metric("gauge", _STEP, "wall time of the step, of all sessions"),
    "megahour_shards": Metric("gauge", _STEP, "shards of the step"),
    "megahour_shards_done": Metric("gauge", _STEP, "committed shards"),
    "megahour_shards_failed_total": Metric("counter", (), "attempts at a shard that failed and are repeated"),
    "megahour_records_total": Metric("counter", (*_STEP, "what"), "records: in, kept, bad, and dropped by policy"),
    "megahour_audio_seconds_total": Metric("counter", _STEP, "seconds of audio that the step has processed"),
    "megahour_audio_hours_per_hour": Metric("gauge", _STEP, "hours of audio per hour, in this session"),
    "megahour_workers": Metric("gauge", (), "tasks that run in parallel"),
    "megahour_core_seconds": Metric("gauge", _STEP, "wall time times workers, of all sessions"),
    "megahour_cost": Metric("gauge", _STEP, "core-hours times --price-per-core-hour, of all sessions"),
    "megahour_word_error_rate": Metric("gauge", ("step", "system", "condition"), "of the last evaluation"),
    "megahour_disk_free_bytes": Metric(
        "gauge", ("path",), "free space on the disk of a folder that the command writes to"
    ),
    "megahour_disk_size_bytes": Metric("gauge", ("path",), "size of that disk"),
    "megahour_store_request_seconds": Metric("gauge", (), "a small request of the run's store, answered or not"),
    "megahour_store_up": Metric("gauge", (), "1 when that request was answered, 0 after an error"),
    "megahour_service_workers": Metric("gauge", (), "live model processes"),
    "megahour_service_queue_frames": Metric("gauge", (), "frames between admission and reply"),
    "megahour_service_queue_limit_frames": Metric("gauge", (), "frames at which producers wait"),
    "megahour_service_queue_wait_seconds": Metric("gauge", ("quantile",), "wait of a sequence for its batch"),
    "megahour_service_batches_total": Metric("counter", (), "batches computed"),
    "megahour_service_sequences_total": Metric("counter", (), "sequences in those batches"),
    "megahour_service_rows_total": Metric("counter", (), "sequences that those batches had room for"),
    "megahour_service_frames_total": Metric("counter", (), "frames of the sequences"),
    "megahour_service_computed_frames_total": Metric(
        "counter", (), "frames computed, including padding and empty rows"
    ),
    "megahour_service_busy_seconds_total": Metric("counter", (), "time that model processes spent on batches, summed"),
    "megahour_service_failed_total": Metric("counter", (), "sequences that no model process could answer"),
    "megahour_service_worker_deaths_total": Metric("counter", (), "model processes that died and were replaced"),
    "megahour_device_utilisation_ratio": Metric("gauge", ("device", "name"), "share of the time that a GPU computes"),
    "megahour_device_memory_used_bytes": Metric("gauge", ("device", "name"), "memory of a GPU in use"),
    "megahour_device_memory_bytes": Metric("gauge", ("device", "name"), "memory of a GPU"),
    "megahour_training_step": Metric("gauge", ("rank",), "steps that a worker has taken"),
    "megahour_training_step_seconds": Metric("gauge", ("rank", "quantile"), "step time, of the last row of meters"),
    "megahour_training_batch_load_seconds": Metric("gauge", ("rank", "quantile"), "wait for the step's batches"),
    "megahour_training_part_seconds": Metric(
        "gauge", ("rank", "part"), "mean of a step: data, compute, communication, checkpoint, evaluation"
    ),
    "megahour_training_loss": Metric(
        "gauge", ("part",), "train: mean of the last row of meters; held_out: last row of the curves"
    ),
    "megahour_training_error_rate": Metric("gauge", ("kind",), "held-out wer, cer or per of the last evaluation"),
    "megahour_training_speech": Metric(
        "gauge", ("measure",), "a voice's held-out speech when it was measured last: mcd_db, pesq, words_misheard, …"
    ),
    "megahour_training_learning_rate": Metric("gauge", (), "learning rate"),
    "megahour_training_gradient_norm": Metric("gauge", (), "mean norm of the gradient"),
    "megahour_training_frames_per_second": Metric(
        "gauge", (), "frames per second of all workers, at the last row of the curves"
    ),
    "megahour_training_restarts": Metric("gauge", (), "restarts of the workers after one was lost"),
    "megahour_training_checkpoint_timestamp_seconds": Metric("gauge", (), "when the newest checkpoint was written"),
    "megahour_training_checkpoint_interval_seconds": Metric("gauge", (), "parameter checkpoint_s"),
    "megahour_metrics_errors": Metric("gauge", ("source",), "1 while a source of metrics fails; the others go on"),
}
