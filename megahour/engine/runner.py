"""Runs one stage on an engine: what is finished stays, what is missing is made, then the manifest.

The same function serves the recipe runner, the single-stage commands and the tests.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megahour.core.config import Params
from megahour.core.errors import ConfigError, MegahourError
from megahour.core.kinds import check_kinds
from megahour.core.records import fingerprint
from megahour.core.stage import Stage, Task
from megahour.core.store import Artifact, Counts, Manifest, Receipt, content_digest, finish
from megahour.core.transfer import is_local, publish_text
from megahour.engine.bad_share import BadShare
from megahour.engine.base import Failure
from megahour.engine.job import Job, blame, merge_partition, run_task, split_task

if TYPE_CHECKING:
    from megahour.engine.accelerator.spec import ModelSpec, ServiceAddress
    from megahour.engine.base import Engine

KEPT = ("meters", "tensorboard")  # folders that a finished stage leaves in its scratch directory: how it went, by step


class Monitor:
    """Hears what a stage does; the terminal's progress display overrides what it shows."""

    def started(self, stage: str, tasks: int, done: int) -> None: ...

    def task_done(self, receipt: Receipt) -> None: ...

    def progress(self, done: float, total: float, unit: str, **fields: Any) -> None: ...

    def stopped(self) -> None:
        """No more progress comes, whether the stage is done, failed or was interrupted."""

    def finished(self, manifest: Manifest, seconds: float) -> None: ...


@dataclass(frozen=True)
class Models:
    """Where the model processes of a stage are, see `accelerator.server.serve`.

    devices: a process for each, such as ("cuda:0", "cuda:1"); by default a CPU process for each task at a time.
    host: the address of this machine at which the service listens; executors on other machines must reach it.
    """

    devices: tuple[str, ...] = ()
    host: str = "127.0.0.1"


def stage_fingerprint(stage: Stage[Any], p: Params, inputs: Mapping[str, Artifact]) -> str:
    """Changes when the stage's version, its parameters or the contents of its inputs change."""
    digests = {role: artifact.manifest.digest for role, artifact in inputs.items()}
    return fingerprint([stage.name, stage.version, p.identity(), digests])


def check_inputs(stage: Stage[Any], inputs: Mapping[str, Artifact]) -> None:
    """Raises ConfigError: a required role is missing, an unknown one given, or an artifact of another kind."""
    known = {spec.role for spec in stage.inputs}
    missing = {spec.role for spec in stage.inputs if not spec.optional} - set(inputs)
    if unknown := set(inputs) - known:
        raise ConfigError(f"stage {stage.name} has no input {sorted(unknown)}; it takes {sorted(known)}")
    if missing:
        raise ConfigError(f"stage {stage.name} needs the inputs {sorted(missing)}")
    check_kinds(stage.name, inputs)


def run_stage(
    stage: Stage[Any],
    p: Params,
    inputs: Mapping[str, Artifact],
    output: Artifact,
    engine: Engine,
    *,
    work: Path | None = None,
    threads: int = 1,
    monitor: Monitor | None = None,
    models: Models | None = None,
) -> Manifest:
    """Make `output`, or return its manifest when it is already made of the same things.

    Raises
    ------
    TooManyBad: the share of quarantined records is above `p.max_bad`; finished shards are kept.
    ConfigError, StoreError: wrong or unfinished inputs.
    """
    monitor = monitor or Monitor()
    check_inputs(stage, inputs)
    print_of_job = stage_fingerprint(stage, p, inputs)
    if output.complete and output.manifest.fingerprint == print_of_job:
        return output.manifest
    _claim(output, print_of_job)
    started = time.monotonic()
    job = Job(
        stage=f"{type(stage).__module__}:{type(stage).__qualname__}",
        params=p.model_dump(mode="json"),
        inputs={role: _address(artifact) for role, artifact in inputs.items()},
        output=_address(output),
        fingerprint=print_of_job,
        work=str((work or Path(tempfile.gettempdir()) / "megahour-work").absolute() / print_of_job),
        threads=threads,
    )
    Path(job.work).mkdir(parents=True, exist_ok=True)
    try:
        receipts = _make_shards(stage, p, inputs, output, job, engine, monitor, models or Models())
    finally:
        monitor.stopped()
        _add_wall(output, time.monotonic() - started, engine)
    with blame(job, "summary"):
        manifest = _close(stage, p, inputs, output, print_of_job, receipts)
    _clear(Path(job.work))
    monitor.finished(manifest, time.monotonic() - started)
    return manifest


def _address(artifact: Artifact) -> str:
    """A URL that means the same in every process: workers of a cluster have working directories of their own."""
    return artifact.root if is_local(artifact.fs) else artifact.url


def _clear(work: Path) -> None:
    """Remove a finished stage's scratch files: checkpoints, spilled batches."""
    for path in work.iterdir():
        if path.is_dir() and path.name not in KEPT:
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_file():
            path.unlink(missing_ok=True)
    if not any(work.iterdir()):
        work.rmdir()


def _claim(output: Artifact, print_of_job: str) -> None:
    """Clear what another version of the job left; keep the shards of the same job."""
    if claimed_by(output) == print_of_job:
        return
    output.delete()
    publish_text(output.fs, output.path("claim.txt"), print_of_job)


def claimed_by(output: Artifact) -> str:
    """Fingerprint of the job that an artifact's shards belong to; empty when there is none."""
    path = output.path("claim.txt")
    return str(output.fs.cat_file(path).decode("utf-8", "replace")) if output.fs.exists(path) else ""


def _make_shards(
    stage: Stage[Any],
    p: Params,
    inputs: Mapping[str, Artifact],
    output: Artifact,
    job: Job,
    engine: Engine,
    monitor: Monitor,
    models: Models,
) -> list[Receipt]:
    with blame(job, "plan"):
        tasks = stage.plan(p, inputs)
        total = stage.partitions(p, inputs) if stage.exchange else len(tasks)
    committed = {shard for shard in output.committed() if shard < total}
    receipts: dict[int, Receipt] = {}
    for shard in sorted(committed):
        receipt = output.receipt(shard)
        if receipt is not None and receipt.fingerprint == job.fingerprint:
            receipts[shard] = receipt
    monitor.started(stage.name, total, len(receipts))
    watch = BadShare(p.max_bad, output)
    for receipt in receipts.values():
        watch.add(receipt.counts)
    spec = stage.accelerator(p, inputs) if len(receipts) < total else None
    with nullcontext() if spec is None else _service(spec, engine, models) as service:
        job = replace(job, service=service)
        for receipt in _results(stage, job, engine, tasks, total, receipts, monitor):
            receipts[receipt.shard] = receipt
            monitor.task_done(receipt)
            watch.add(receipt.counts)
    watch.close()
    return [receipts[shard] for shard in range(total)]


def _results(
    stage: Stage[Any],
    job: Job,
    engine: Engine,
    tasks: list[Task],
    total: int,
    done: Mapping[int, Receipt],
    monitor: Monitor,
) -> Iterator[Receipt]:
    pending = [shard for shard in range(total) if shard not in done]
    if not pending:
        return
    if stage.exchange:
        specs = [dict(task.spec) for task in tasks]
        spill = str(Path(job.work) / "spill")
        merge = partial(merge_partition, job, frozenset(done))
        for _, text in engine.exchange(partial(split_task, job), specs, merge, total, spill=spill):
            if text is not None:
                yield Receipt.from_json(text)
    elif stage.local:
        for shard in pending:
            yield Receipt.from_json(_run_here(job, (shard, dict(tasks[shard].spec)), monitor))
    else:
        items = [(shard, dict(tasks[shard].spec)) for shard in pending]
        for _, text in engine.map(partial(run_task, job), items):
            yield Receipt.from_json(text)


def _run_here(job: Job, item: tuple[int, dict[str, Any]], monitor: Monitor) -> str:
    """`run_task` in the driver; what it raises names its place, as an engine's tasks do."""
    try:
        return run_task(job, item, progress=monitor.progress)
    except MegahourError:
        raise
    except Exception as error:
        Failure.of(error, f"{job.output} task {item[0]}", item).throw()


@contextmanager
def _service(spec: ModelSpec, engine: Engine, models: Models) -> Iterator[ServiceAddress]:
    from megahour.engine.accelerator.server import serve

    # A process for each core that the engine's tasks may use: the model is most of the work, and waits for nobody.
    devices = models.devices or ("cpu",) * max(1, min(engine.workers, os.cpu_count() or 1))
    with serve(spec, devices=devices, host=models.host) as service:
        yield service.endpoint


def _close(
    stage: Stage[Any],
    p: Params,
    inputs: Mapping[str, Artifact],
    output: Artifact,
    print_of_job: str,
    receipts: list[Receipt],
) -> Manifest:
    summary = stage.finish(p, inputs, receipts)
    counts = Counts()
    for receipt in receipts:
        counts.add(receipt.counts)
    manifest = Manifest(
        stage=stage.name,
        version=stage.version,
        fingerprint=print_of_job,
        digest=content_digest(receipts, summary),
        params=p.identity(),
        inputs={role: artifact.manifest.digest for role, artifact in inputs.items()},
        shards=len(receipts),
        counts=counts,
        summary=summary,
    )
    finish(output, receipts, manifest)
    return manifest


def _add_wall(output: Artifact, seconds: float, engine: Engine) -> None:
    before = output.wall() if output.fs.exists(output.root) else {}
    total = {"seconds": round(before.get("seconds", 0.0) + seconds, 3), "workers": getattr(engine, "workers", 1)}
    publish_text(output.fs, output.path("timings/total.json"), json.dumps(total))
