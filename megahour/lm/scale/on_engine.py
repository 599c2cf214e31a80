"""A language model on an engine from beginning to end: the stages `lm-…`, in as many rounds as the corpus takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from megahour.core.config import Params
from megahour.core.store import Artifact, Manifest
from megahour.engine.base import Engine
from megahour.engine.runner import run_stage
from megahour.lm.scale import distributed_stage as stages


@dataclass(frozen=True)
class Cost:
    """What a stage took, in the terms of Patil & Zheng (2017): CPU seconds that the operating system counts in all
    processes of this machine, CPU seconds reserved (workers × wall), and wall seconds."""

    stage: str
    cpu_s: float
    reserved_s: float
    wall_s: float


def estimate_on(
    engine: Engine,
    folder: str,
    words: stages.WordsParams,
    vocabulary: stages.VocabularyParams,
    tally: stages.TallyParams,
    *,
    text: Artifact | None = None,
    work: Path | None = None,
) -> tuple[Artifact, list[Cost]]:
    """The artifact with `.arpa` in `folder`/arpa, and what each stage took. What is finished is not made again."""
    job = _Steps(engine, folder, work)
    given = {"text": text} if text is not None else {}
    job.run("words", stages.Words(), words, given)
    job.run("vocabulary", stages.MakeVocabulary(), vocabulary, job.made("words"))
    made = job.run(
        "round1",
        stages.MakeShards(),
        stages.ShardsParams.model_validate({}),
        {**given, **job.made("words", "vocabulary")},
    )
    rounds = ["vocabulary", "round1"]
    while made.summary["left"]:
        rounds.append(f"round{len(rounds)}")
        made = job.run(rounds[-1], stages.Reshard(), stages.ReshardParams.model_validate({}), job.made(*rounds[:-1]))
    job.run("tally", stages.Tally(), tally, job.made(*rounds))
    job.run("lines", stages.EstimateLines(), stages.EstimateParams.model_validate({}), job.made("tally", *rounds))
    job.run("arpa", stages.JoinArpa(), stages.ArpaParams.model_validate({}), job.made("lines", "tally", *rounds))
    return Artifact(f"{folder}/arpa"), job.costs


class _Steps:
    def __init__(self, engine: Engine, folder: str, work: Path | None) -> None:
        self._engine, self._folder, self._work = engine, folder, work
        self.costs: list[Cost] = []

    def made(self, *names: str) -> dict[str, Artifact]:
        return {name: Artifact(f"{self._folder}/{name}") for name in names}

    def run(self, name: str, stage: Any, params: Params, inputs: Mapping[str, Artifact]) -> Manifest:
        before, began = cpu_seconds(), time.monotonic()
        output = Artifact(f"{self._folder}/{name}")
        manifest = run_stage(stage, params, inputs, output, self._engine, work=self._work)
        wall_s = time.monotonic() - began
        self.costs.append(Cost(name, cpu_seconds() - before, self._engine.workers * wall_s, wall_s))
        return manifest


def cpu_seconds() -> float:
    """CPU time of this process and of all below it, those that have ended included where their parents waited."""
    total = 0.0
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # it ended since it was listed
        total += times.user + times.system + times.children_user + times.children_system
    return total
