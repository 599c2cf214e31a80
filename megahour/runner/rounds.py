"""Runs the rounds of stages that learn from all of their tasks before they write.

A round maps `measure` over the tasks and adds the statistics in order of arrival, which is safe because sums are exact.
Each worker sums a run of tasks, so the driver adds at most `MOST` sums whatever the number of shards; it holds one of
them, as large as the model. A round's model is published in the output's scratch folder; every `KEEP_S` seconds, so is
the sum so far with the numbers of its tasks, from which a killed run resumes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from megahour.core.store import SCRATCH, Artifact
from megahour.core.transfer import publish_bytes
from megahour.runner.beside import runs
from megahour.runner.job import Job, Origin, blame, measure_tasks

if TYPE_CHECKING:
    from megahour.engine.base import Engine

KEEP_S = 60.0
MOST = 1024  # partial sums in a round
FOLDER = f"{SCRATCH}/rounds"


class _RoundFiles:
    """The files of an output's rounds: the latest model, and the partial sum of the round after it."""

    def __init__(self, output: Artifact) -> None:
        self.output = output

    def last(self) -> int:
        """Number of the latest model; −1: none."""
        self.output.fs.invalidate_cache()
        names = [path.rpartition("/")[2] for path in self.output.matching(f"{FOLDER}/*.model")]
        return max((int(name.removesuffix(".model")) for name in names), default=-1)

    def read(self, name: str) -> bytes:
        path = self.output.path(name)
        return bytes(self.output.fs.cat_file(path)) if self.output.fs.exists(path) else b""

    def write(self, name: str, *data: bytes) -> None:
        publish_bytes(self.output.fs, self.output.path(name), b"\n".join(data))

    def remove(self, number: int) -> None:
        for name in (_model(number), _sum(number)):
            if self.output.fs.exists(path := self.output.path(name)):
                self.output.fs.rm_file(path)


def _model(number: int) -> str:
    return f"{FOLDER}/{number:04d}.model"


def _sum(number: int) -> str:
    return f"{FOLDER}/{number:04d}.sum"


def learn_in_rounds(
    origin: Origin, job: Job, engine: Engine, specs: Sequence[dict[str, Any]], progress: Callable[..., None]
) -> Job:
    """Run the rounds that are missing; returns `job` with the final model."""
    stage, p, inputs = origin.stage, origin.params, origin.inputs
    kept = _RoundFiles(Artifact(job.output))
    number = kept.last()
    if number < 0:
        number = 0
        kept.write(_model(0), stage.opening(p, inputs))
    while left := stage.rounds_left(p, kept.read(_model(number))):
        job = replace(job, model=_model(number))
        _sum_up(stage.add, job, kept, number, engine, specs, partial(_report, progress, number, left))
        # In a single-threaded worker, so that matrix products do not depend on the driver's cores.
        ((_, model),) = engine.map(partial(_learn, job), [_sum(number)])
        kept.write(_model(number + 1), model)
        kept.remove(number)
        number += 1
    return replace(job, model=_model(number))


def _report(progress: Callable[..., None], number: int, left: int, share: float) -> None:
    progress(round(number + share, 3), number + left, "rounds")


def _sum_up(
    add: Callable[[bytes, bytes], bytes],
    job: Job,
    kept: _RoundFiles,
    number: int,
    engine: Engine,
    specs: Sequence[dict[str, Any]],
    report: Callable[[float], None],
) -> None:
    """Write the summed statistics of all tasks, after a line with the task numbers."""
    head, _, total = kept.read(_sum(number)).partition(b"\n")
    done: list[int] = json.loads(head) if head else []
    missing = sorted(set(range(len(specs))) - set(done))
    written = time.monotonic()
    own = [missing[first:stop] for first, stop in runs(len(missing), MOST)]
    for index, part in engine.map(partial(measure_tasks, job), [[specs[task] for task in run] for run in own]):
        total = add(total, part) if done else part
        done += own[index]
        report(len(done) / len(specs))
        if time.monotonic() - written > KEEP_S or len(done) == len(specs):
            kept.write(_sum(number), json.dumps(sorted(done)).encode(), total)
            written = time.monotonic()


def _learn(job: Job, name: str) -> bytes:
    """Worker side: the next model, from the sum in the file `name`."""
    stage, p, inputs = job.load()
    _, _, statistics = _RoundFiles(Artifact(job.output)).read(name).partition(b"\n")
    with blame(job, "the statistics of all tasks"):
        return stage.learn(p, inputs, statistics, job.context())
