"""Estimation on an engine: runs the stages `lm-words` … `lm-arpa` with as many rounds as the corpus needs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from megahour.core.config import Params
from megahour.core.receipts import Manifest
from megahour.core.store import Artifact
from megahour.core.transfer import publish_text
from megahour.engine.base import Engine
from megahour.lm.params import BoundedParams, TallyParams, VocabularyParams, WordsParams
from megahour.lm.scale import bounded_stage
from megahour.lm.scale import distributed_stage as stages
from megahour.runner.progress import TerminalMonitor
from megahour.runner.runner import run_stage, stage_fingerprint

if TYPE_CHECKING:
    from rich.table import Table

COST = "timings/cost.json"


@dataclass(frozen=True)
class Cost:
    """The cost of a stage, as in Patil & Zheng (2017).

    cpu_s: CPU seconds of all its processes on this machine; reserved_s: workers × wall seconds; wall_s: wall seconds.
    """

    stage: str
    cpu_s: float
    reserved_s: float
    wall_s: float


def estimate_on(
    engine: Engine,
    folder: str,
    words: WordsParams,
    vocabulary: VocabularyParams,
    tally: TallyParams,
    *,
    text: Artifact | None = None,
    work: Path | None = None,
    staged: bool = True,
) -> tuple[Artifact, list[Cost]]:
    """Estimate a model in `folder`; return the artifact with `.arpa`, `folder`/arpa, and the costs of its stages.

    Finished stages do not run again. Their cost is that of the run that made them, from timings/cost.json.

    staged: run the stages `lm-words` … `lm-arpa`. Otherwise one process with a thread for each worker of the engine
    does all their work (`lm-bounded`), for less CPU time, unless `folder` has stages already.
    """
    job = Steps(engine, folder, work)
    given = {"text": text} if text is not None else {}
    if not staged and not Artifact(f"{folder}/words").complete:
        values = {**dict(words), **dict(vocabulary), **dict(tally)}
        chosen = {name: values[name] for name in BoundedParams.model_fields}
        job.run("arpa", bounded_stage.EstimateBounded(), given, threads=engine.workers, **chosen)
        return Artifact(f"{folder}/arpa"), job.costs
    job.run("words", stages.CountWords(), given, words)
    job.run("vocabulary", stages.MakeVocabulary(), job.made("words"), vocabulary)
    made = job.run("round1", stages.MakeShards(), {**given, **job.made("words", "vocabulary")})
    rounds = ["vocabulary", "round1"]
    while made.summary["left"]:
        rounds.append(f"round{len(rounds)}")
        made = job.run(rounds[-1], stages.Reshard(), job.made(*rounds[:-1]))
    job.run("tally", stages.TallyShards(), job.made(*rounds), tally)
    job.run("lines", stages.EstimateLines(), job.made("tally", *rounds))
    job.run("arpa", stages.JoinArpa(), job.made("lines", "tally", *rounds))
    return Artifact(f"{folder}/arpa"), job.costs


class Steps:
    """Runs stages one after the other on an engine, each in its own folder. costs: by stage."""

    def __init__(self, engine: Engine, folder: str, work: Path | None) -> None:
        self._engine, self._folder, self._work = engine, folder, work
        self.costs: list[Cost] = []

    def made(self, *names: str) -> dict[str, Artifact]:
        """The artifacts of earlier stages, by name."""
        return {name: Artifact(f"{self._folder}/{name}") for name in names}

    def run(
        self,
        name: str,
        stage: Any,
        inputs: Mapping[str, Artifact],
        params: Params | None = None,
        *,
        threads: int = 1,
        **options: Any,
    ) -> Manifest:
        """Run a stage with its output in folder `name`, with these parameters, or with `options`, else defaults.

        threads: of each of its tasks.
        """
        params = params or stage.params.model_validate(options)
        output = Artifact(f"{self._folder}/{name}")
        made_before = output.complete and output.manifest.fingerprint == stage_fingerprint(stage, params, inputs)
        before, began = cpu_seconds(), time.monotonic()
        monitor = TerminalMonitor(name)
        manifest = run_stage(
            stage, params, inputs, output, self._engine, work=self._work, threads=threads, monitor=monitor
        )
        wall_s = time.monotonic() - began
        cost = Cost(name, cpu_seconds() - before, self._engine.workers * wall_s, wall_s)
        path = output.path(COST)
        if not made_before:
            publish_text(output.fs, path, json.dumps(asdict(cost)) + "\n")
        elif output.fs.exists(path):
            cost = Cost(**json.loads(output.fs.cat_file(path)))
        self.costs.append(cost)
        return manifest


def cost_table(costs: Sequence[Cost]) -> Table:
    """A row for each stage, and their sum. The last column is the used share of the reserved CPU time."""
    from rich.table import Table

    table = Table()
    for heading in ("stage", "CPU s", "reserved CPU s", "wall s", "used"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    total = Cost("all", *(sum(getattr(cost, name) for cost in costs) for name in ("cpu_s", "reserved_s", "wall_s")))
    for cost in (*costs, total):
        used = cost.cpu_s / cost.reserved_s if cost.reserved_s else 0.0
        table.add_row(cost.stage, f"{cost.cpu_s:.1f}", f"{cost.reserved_s:.1f}", f"{cost.wall_s:.1f}", f"{used:.0%}")
    return table


def cpu_seconds() -> float:
    """CPU time of this process and its descendants, including ended ones that their parents have waited for."""
    total = 0.0
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # it has ended
        total += times.user + times.system + times.children_user + times.children_system
    return total
