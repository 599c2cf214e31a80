"""Measured times and sizes of the steps of a finished `lm cluster`, as input for the laws of `clock.measured`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from megahour.clock.measured import Measured, measured
from megahour.clock.pipeline import QUANTITIES, StepLaws
from megahour.core.errors import ConfigError
from megahour.core.store import COUNTED, Artifact
from megahour.lm.scale.on_engine import COST

MILLION = 1e6
SOURCE = "words"
"""The step that reads the text."""
GROWING = {"tally": "n-grams", "lines": "n-grams", "arpa": "n-grams", "vocabulary": "types"}
"""The unit of each step's size; the sizes of all other steps are in running words."""
ONE_PROCESS = "lm-bounded"
"""The stage of a run in one process, which has no other."""


def measured_run(folder: str) -> list[Measured]:
    """Measurements of the steps of a finished `lm cluster`; sizes are in millions.

    A run in one process has the steps `words`, which reads and counts, and `arpa`, which writes; `vocabulary` only
    gives the number of words.

    Raises ConfigError: the run is not finished, or was interrupted while it ran in one process.
    """
    arpa = Artifact(f"{folder.rstrip('/')}/arpa")
    if not arpa.complete:
        raise ConfigError("no finished run of lm cluster", where=folder, remedy="megahour lm cluster TEXT --out DIR")
    if arpa.manifest.stage == ONE_PROCESS:
        return _one_process(arpa)
    sizes, names = arpa.manifest.summary["ngrams"], steps_of(folder)
    words = Artifact(f"{folder.rstrip('/')}/round1").manifest.counts.came_in
    size = {"n-grams": sum(sizes), "types": sizes[0], "words": words}
    made, before = [], list[str]()
    for name in names:
        output = Artifact(f"{folder.rstrip('/')}/{name}")
        inputs = {each: Artifact(f"{folder.rstrip('/')}/{each}") for each in before if each in output.manifest.inputs}
        own = size[GROWING.get(name, "words")] / MILLION
        step = replace(measured(name, output, "cores", 1, inputs, tuple(inputs)), hours=own)
        made.append(_with_starts(step, output))
        before.append(name)
    return made


def workers_of_one_process(laws: Sequence[StepLaws]) -> int:
    """The threads of the runs in one process that these are the laws of; 0: of runs in stages."""
    return max((step.workers for step in laws if step.stage == ONE_PROCESS), default=0)


def _one_process(arpa: Artifact) -> list[Measured]:
    """Its steps. Scratch files count as written by `words`, and memory grows with the text."""
    counted, stats, sizes = arpa.figures(COUNTED), arpa.receipts()[0].stats, arpa.manifest.summary["ngrams"]
    if not counted:
        remedy = "run it again, from beginning to end"
        raise ConfigError("no timings of its parts: an interrupted run, or an older one", where=arpa.url, remedy=remedy)
    whole = _with_starts(measured("arpa", arpa, "cores", 1, {}, ("words", "vocabulary")), arpa)
    idle, q = dict.fromkeys(QUANTITIES, 0.0), whole.quantities
    task_s, cpu_s = (counted[key] - counted[f"compile_{key}"] for key in ("seconds", "cpu_seconds"))
    own = {"shards": 1.0, "task_s": task_s, "cpu_s": cpu_s, "peak_bytes": q["peak_bytes"]}
    rest = {"task_s": q["task_s"] - task_s, "cpu_s": q["cpu_s"] - cpu_s, "peak_bytes": 0.0}
    written = {"written_bytes": float(stats["scratch_bytes"])}
    return [
        replace(
            whole, name="words", hours=stats["tokens"] / MILLION, inputs=(), holds_all=True,
            quantities={**idle, **own, **written},
        ),
        replace(whole, name="vocabulary", stage="", hours=sizes[0] / MILLION, inputs=("words",), quantities=idle),
        replace(whole, hours=sum(sizes) / MILLION, quantities={**q, **rest}),
    ]  # fmt: skip


def _with_starts(step: Measured, output: Artifact) -> Measured:
    """The step with the CPU time that its run took beside its tasks."""
    tasks_s = sum(float(timing.get("cpu_seconds", 0.0)) for timing in output.timings().values())
    beside_s = max(0.0, output.figures(COST).get("cpu_s", 0.0) - tasks_s)
    return replace(step, quantities={**step.quantities, "beside_cpu_s": beside_s})


def steps_of(folder: str) -> list[str]:
    """Names of the steps of a run, in order."""
    rounds: list[str] = []
    while Artifact(f"{folder.rstrip('/')}/round{len(rounds) + 1}").complete:
        rounds.append(f"round{len(rounds) + 1}")
    return ["words", "vocabulary", *rounds, "tally", "lines", "arpa"]
