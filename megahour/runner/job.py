"""One stage's job as workers see it: picklable values, and the functions with which engines run it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from megahour.core.config import Params
from megahour.core.errors import MegahourError
from megahour.core.stage import Batches, Context, Stage, Task
from megahour.core.store import SCRATCH, Artifact
from megahour.core.surroundings import explaining
from megahour.core.writer import ShardWriter
from megahour.engine.base import ITEM_CHARACTERS
from megahour.runner.scratch import claim, mark_scratch

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R")


@dataclass(frozen=True)
class Origin:
    """Everything needed to make any shard of an artifact."""

    stage: Stage[Any]
    params: Params
    inputs: Mapping[str, Artifact]
    fingerprint: str


@dataclass(frozen=True)
class Job:
    """A stage with its parameters, inputs and output: everything that a worker needs, as picklable values."""

    stage: str  # "module:Class"
    params: dict[str, Any]
    inputs: dict[str, str]
    output: str
    fingerprint: str
    work: str
    threads: int = 1
    service: Any = None
    owner: str = ""  # token of the run that holds the output, see `core.locks`
    model: str = ""  # file of the rounds' latest model, relative to the output
    late: bool = False  # the output holds another job's finished artifact, which stays until the only shard is made

    def disks(self) -> list[str]:
        """Local folders that the job writes to, to find out which disk is full."""
        return [*([] if "://" in self.output else [self.output]), self.work, tempfile.gettempdir()]

    def load(self) -> tuple[Stage[Any], Params, dict[str, Artifact]]:
        stage: Stage[Any] = resolve_name(self.stage)()
        params = stage.params.model_validate(self.params)
        return stage, params, {role: Artifact(url) for role, url in self.inputs.items()}

    @property
    def durable(self) -> str:
        """Scratch files beside the output, from which another machine can resume if this one is lost."""
        return f"{self.output}/{SCRATCH}" if "://" in self.output else ""

    def context(self) -> Context:
        model = (output := Artifact(self.output)).fs.cat_file(output.path(self.model)) if self.model else b""
        return Context(Path(self.work), self.threads, self.service, self.durable, model)


def timed(call: Callable[..., R], *values: Any) -> tuple[float, R]:
    """Worker side of any call: (seconds, result)."""
    started = time.monotonic()
    result = call(*values)
    return time.monotonic() - started, result


def run_task(job: Job, item: tuple[int, dict[str, Any]], progress: Any = None) -> str:
    """Worker side of `map`: make and commit one shard, unless it is committed; returns its receipt as JSON."""
    shard, spec = item
    output = Artifact(job.output)
    if (receipt := output.receipt(shard)) is not None and receipt.fingerprint == job.fingerprint:
        return receipt.to_json()
    stage, p, inputs = job.load()
    ctx = job.context()
    if progress is not None:
        ctx.progress = progress
    with (
        blame(job, _place(f"shard {shard}", spec, ("shard", shard))),
        ShardWriter(output, shard, job.fingerprint, owner=job.owner) as out,
    ):
        stage.run(p, inputs, Task(spec), out, ctx)
        if job.late:
            if job.durable:
                mark_scratch(output, job.fingerprint)
            claim(output, job.fingerprint, job.work, job.owner, keep=(SCRATCH, "tmp"))
        return out.commit().to_json()


def _place(what: str, spec: dict[str, Any], *known: Any) -> str:
    """A task with its numbers and names, for people; omits lists, such as a source's files, as too long, and numbers
    that are `known`."""
    scalars = {key: value for key, value in spec.items() if not isinstance(value, list | dict)}
    named = [f"{key} {value}" for key, value in scalars.items() if (key, value) not in known]
    return what + (f" ({', '.join(named)[:ITEM_CHARACTERS]})" if named else "")


def measure_tasks(job: Job, specs: Sequence[dict[str, Any]]) -> bytes:
    """Worker side of a round: the summed statistics of a run of tasks."""
    stage, p, inputs = job.load()
    ctx, total = job.context(), b""
    for count, spec in enumerate(specs):
        with blame(job, _place("task", spec)):
            part = stage.measure(p, inputs, Task(spec), ctx)
            total = stage.add(total, part) if count else part
    return total


def split_task(job: Job, spec: dict[str, Any]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Worker side of `exchange`, map half."""
    stage, p, inputs = job.load()
    with blame(job, _place("split task", spec)):
        yield from stage.split(p, inputs, Task(spec))


def merge_partition(job: Job, done: frozenset[int], partition: int, batches: Batches) -> str | None:
    """Worker side of `exchange`, reduce half: one output shard; None if it was committed before."""
    if partition in done:
        return None
    output = Artifact(job.output)
    stage, p, inputs = job.load()
    what = f"partition {partition}"
    with blame(job, what), ShardWriter(output, partition, job.fingerprint, owner=job.owner) as out:
        stage.merge(p, inputs, partition, batches, out, job.context())
        return out.commit().to_json()


@contextmanager
def blame(job: Job, what: str) -> Iterator[None]:
    """Prefix an error's location with the artifact and the shard."""
    try:
        with explaining("", *job.disks()):
            yield
    except MegahourError as error:
        error.where = f"{job.output} {what}" + (f": {error.where}" if error.where else "")
        raise
