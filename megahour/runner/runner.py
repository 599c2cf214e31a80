"""Runs one stage on an engine: keeps finished shards, makes missing ones, then writes the manifest.

The same function serves the recipe runner, the single-stage commands and the tests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from megahour.core.config import Params
from megahour.core.errors import DamagedError, MegahourError
from megahour.core.kinds import check_kinds, check_roles, made_with
from megahour.core.locks import alone, check
from megahour.core.receipts import Counts, Manifest, PackedReceipts, Receipt, packed
from megahour.core.records import fingerprint
from megahour.core.stage import Stage, Task
from megahour.core.store import SCRATCH, Artifact, content_digest, finish
from megahour.core.surroundings import explaining
from megahour.core.transfer import is_local, publish_text
from megahour.core.versions import versions
from megahour.engine.base import Failure
from megahour.runner.job import Job, Origin, blame, merge_partition, run_task, split_task, timed
from megahour.runner.loss_limits import BadShare, check_kept
from megahour.runner.model_service import Models, service_for
from megahour.runner.monitor import Monitor
from megahour.runner.rounds import learn_in_rounds
from megahour.runner.scratch import alone_at_work, claim, claimed_by, clear, clear_durable, scratch_of

if TYPE_CHECKING:
    from megahour.engine.base import Engine


class Planned(NamedTuple):
    """A stage's tasks, and the number of shards they make."""

    tasks: list[Task]
    shards: int


def stage_fingerprint(stage: Stage[Any], p: Params, inputs: Mapping[str, Artifact]) -> str:
    """A fingerprint of the stage's version, its parameters and the contents of its inputs."""
    digests = {role: artifact.manifest.digest for role, artifact in inputs.items()}
    return fingerprint([stage.name, stage.version, p.identity(), digests])


def check_inputs(stage: Stage[Any], p: Params, inputs: Mapping[str, Artifact]) -> None:
    """Raises ConfigError: a required role is missing, a role is unknown, an artifact is of the wrong kind, or roles and
    parameters do not fit together.
    """
    check_roles(stage, inputs)
    stage.check(p, inputs)
    check_kinds(stage, inputs)
    stage.check_made(p, inputs, made_with(inputs))


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
    replacing: Callable[[Manifest], None] = lambda manifest: None,
) -> Manifest:
    """Make `output`, or return its manifest if it is up to date.

    replacing: called with the manifest of a finished artifact of another job, before it is made again.

    Raises
    ------
    TooManyBad: the share of quarantined records is above `p.max_bad`; finished shards are kept.
    NothingKept: a stage with `remedies` kept no record.
    ConfigError, StoreError: wrong or unfinished inputs, or another run is using `output` or `work`.
    """
    monitor = monitor or Monitor()
    check_inputs(stage, p, inputs)
    origin = Origin(stage, p, inputs, stage_fingerprint(stage, p, inputs))
    job = job_of(origin, output, work, threads)
    try:
        if output.complete:
            if output.manifest.fingerprint == origin.fingerprint:
                return output.manifest
            replacing(output.manifest)
            job = replace(job, late=True)
    except DamagedError:
        pass  # rebuilt from the receipts, if they belong to this job
    started = time.monotonic()
    disk_errors = explaining(output.url, *job.disks())
    with disk_errors, alone(output.fs, output.root, where=output.url) as owner, alone_at_work(job.work):
        job = replace(job, owner=owner)
        monitor.begins(stage.name, job, engine)
        output.check_entries()
        with _watched(output, job, engine, monitor):
            receipts = _make_shards(origin, output, job, engine, monitor, models or Models())
        hint = check_kept(stage.name, stage.remedies(p, receipts), receipts, output)
        with blame(job, "summary"):
            manifest = close(origin, output, job, receipts)
        clear(Path(job.work))
        clear_durable(output)
    monitor.finished(manifest, time.monotonic() - started)
    if hint:
        monitor.hint(hint)
    return manifest


def job_of(origin: Origin, output: Artifact, work: Path | None, threads: int) -> Job:
    """The job as workers see it. `work` holds its scratch directory; by default the system's temporary folder does."""
    kind = type(origin.stage)
    return Job(
        stage=f"{kind.__module__}:{kind.__qualname__}",
        params=origin.params.model_dump(mode="json"),
        inputs=addresses(origin.inputs),
        output=_address(output),
        fingerprint=origin.fingerprint,
        work=str((work or scratch_of(output)).absolute() / origin.fingerprint),
        threads=threads,
    )


@contextmanager
def _watched(output: Artifact, job: Job, engine: Engine, monitor: Monitor) -> Iterator[None]:
    """End the progress display and record the time, however the work ends.

    A late job's sessions before its claim are recorded in its scratch directory, since another job has the output.
    """
    started, before_claim = time.monotonic(), Path(job.work) / "seconds.txt"
    try:
        yield
    except BaseException:
        monitor.stopped()
        with suppress(Exception):  # the disk may be full, or another run may have taken over
            check(output.fs, output.root, job.owner, fresh=True)
            seconds = time.monotonic() - started
            if claimed_by(output) == job.fingerprint:
                _add_wall(output, seconds, engine)
            elif job.late:
                before_claim.write_text(str(_seconds_in(before_claim) + seconds))
        raise
    monitor.stopped()
    _add_wall(output, _seconds_in(before_claim) + time.monotonic() - started, engine)
    before_claim.unlink(missing_ok=True)


def _seconds_in(file: Path) -> float:
    try:
        return float(file.read_text())
    except (OSError, ValueError):  # there is none, or a full disk left it empty
        return 0.0


def addresses(inputs: Mapping[str, Artifact]) -> dict[str, str]:
    return {role: _address(artifact) for role, artifact in inputs.items()}


def _address(artifact: Artifact) -> str:
    """An address valid in every process: a cluster's workers have other working directories."""
    return artifact.root if is_local(artifact.fs) else artifact.url


def _make_shards(
    origin: Origin, output: Artifact, job: Job, engine: Engine, monitor: Monitor, models: Models
) -> PackedReceipts:
    making, plan = _prepared(origin, output, job, engine)
    # Of a stage that runs here, such as a training, the finished artifact stays until the new one is made.
    late = job.late and plan.shards == 1 and origin.stage.local
    if not late:
        laid_out = [SCRATCH] if len(making.inputs) > len(origin.inputs) else []
        claim(output, job.fingerprint, job.work, job.owner, keep=laid_out)
    job = replace(job, inputs=addresses(making.inputs), late=late)
    committed = output.receipts_of(sorted(shard for shard in output.committed() if shard < plan.shards))
    receipts: dict[int, bytes] = {}
    watch = BadShare(origin.params.max_bad, output)
    for receipt in committed:
        if receipt is not None and receipt.fingerprint == job.fingerprint:
            receipts[receipt.shard] = packed(receipt)
            watch.total.add(receipt.counts)
    monitor.started(origin.stage.name, plan.shards, len(receipts))
    watch.add(Counts())
    for receipt in make_missing(making, job, engine, plan, frozenset(receipts), monitor, models):
        receipts[receipt.shard] = packed(receipt)
        monitor.task_done(receipt)
        watch.add(receipt.counts)
    watch.close()
    in_order = PackedReceipts()
    for shard in range(plan.shards):
        in_order.append(receipts.pop(shard))
    return in_order


def _prepared(origin: Origin, output: Artifact, job: Job, engine: Engine) -> tuple[Origin, Planned]:
    """The origin with its layouts, and its plan. They refuse impossible jobs before the claim, which would remove a
    finished artifact, perhaps a corpus of days.
    """
    try:
        making = with_layouts(origin, job, engine)
        return making, planned(making, job)
    except MegahourError:
        if job.late and origin.stage.layouts(origin.params, origin.inputs):
            clear_durable(output)
        raise


def with_layouts(origin: Origin, job: Job, engine: Engine) -> Origin:
    """The origin with the stage's `layouts` added to its inputs; missing ones are made."""
    inputs = dict(origin.inputs)
    for role, laid_out in origin.stage.layouts(origin.params, origin.inputs).items():
        artifact = Artifact(f"{job.output}/{SCRATCH}/{role}")
        own = {name: inputs[here] for name, here in laid_out.roles.items()}
        run_stage(laid_out.stage, laid_out.params, own, artifact, engine, work=Path(job.work) / role)
        inputs[role] = artifact
    return replace(origin, inputs=inputs)


def planned(origin: Origin, job: Job) -> Planned:
    """The stage's plan; errors name the job."""
    stage, p, inputs = origin.stage, origin.params, origin.inputs
    with blame(job, "plan"):
        tasks = stage.plan(p, inputs)
        return Planned(tasks, stage.partitions(p, inputs) if stage.exchange else len(tasks))


def make_missing(
    origin: Origin, job: Job, engine: Engine, plan: Planned, done: frozenset[int], monitor: Monitor, models: Models
) -> Iterator[Receipt]:
    """Make and commit the shards that are not done, with a model service if the stage needs one."""
    pending = [shard for shard in range(plan.shards) if shard not in done]
    if not pending:
        return
    stage, specs = origin.stage, [dict(task.spec) for task in plan.tasks]
    spec = stage.accelerator(origin.params, origin.inputs)
    with nullcontext() if spec is None else service_for(spec, engine, models, Artifact(job.output)) as service:
        job = replace(job, service=service)
        if stage.rounds:
            job = learn_in_rounds(origin, job, engine, specs, monitor.progress)
        if stage.exchange:
            spill = str(Path(job.work) / "spill")
            merge = partial(timed, partial(merge_partition, job, done))
            for _, (seconds, text) in engine.exchange(partial(split_task, job), specs, merge, plan.shards, spill=spill):
                if text is not None:
                    monitor.took(seconds)
                    yield Receipt.from_json(text)
        elif stage.local:
            for shard in pending:
                yield Receipt.from_json(_run_here(job, (shard, specs[shard]), monitor))
        else:
            work = partial(timed, partial(run_task, job))
            for _, (seconds, text) in engine.map(work, [(shard, specs[shard]) for shard in pending]):
                monitor.took(seconds)
                yield Receipt.from_json(text)


def _run_here(job: Job, item: tuple[int, dict[str, Any]], monitor: Monitor) -> str:
    """`run_task` in the driver; its errors name the task, as those of an engine do."""
    try:
        return run_task(job, item, progress=monitor.progress)
    except MegahourError:
        raise
    except Exception as error:
        Failure.of(error, f"{job.output} task {item[0]}", item).throw()


def close(origin: Origin, output: Artifact, job: Job, receipts: Sequence[Receipt]) -> Manifest:
    """Reduce the receipts and write the manifest: from then on the artifact exists."""
    stage, p, inputs = origin.stage, origin.params, origin.inputs
    summary = stage.finish(p, inputs, receipts)
    counts = Counts()
    for receipt in receipts:
        counts.add(receipt.counts)
    manifest = Manifest(
        stage=stage.name,
        version=stage.version,
        fingerprint=job.fingerprint,
        digest=content_digest(receipts, summary),
        params=p.identity(),
        inputs={role: artifact.manifest.digest for role, artifact in inputs.items()},
        shards=len(receipts),
        counts=counts,
        summary=summary,
    )
    check(output.fs, output.root, job.owner, where=output.url, fresh=True)
    finish(output, receipts, manifest)
    return manifest


def _add_wall(output: Artifact, seconds: float, engine: Engine) -> None:
    before = output.wall() if output.fs.exists(output.root) else {}
    total = {"seconds": round(before.get("seconds", 0.0) + seconds, 3), "workers": getattr(engine, "workers", 1)}
    total["made_with"] = versions()  # versions of the last session that worked on it
    publish_text(output.fs, output.path("timings/total.json"), json.dumps(total))
