"""Measured times and sizes of the steps of a finished `lm cluster`, as input for the laws of `clock.measured`."""

from __future__ import annotations

from dataclasses import replace

from megahour.clock.measured import Measured, measured
from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.lm.scale.on_engine import COST

MILLION = 1e6
SOURCE = "words"
"""The step that reads the text."""
GROWING = {"tally": "n-grams", "lines": "n-grams", "arpa": "n-grams", "vocabulary": "types"}
"""The unit of each step's size; the sizes of all other steps are in running words."""


def measured_run(folder: str) -> list[Measured]:
    """Measurements of the steps of a finished `lm cluster`; sizes are in millions.

    Raises ConfigError: the run is not finished, or was not made in stages.
    """
    arpa = Artifact(f"{folder.rstrip('/')}/arpa")
    if not arpa.complete:
        raise ConfigError("no finished run of lm cluster", where=folder, remedy="megahour lm cluster TEXT --out DIR")
    if "lines" not in arpa.manifest.inputs:
        remedy = "megahour lm cluster --stages, as on a cluster"
        raise ConfigError("a run of one machine, not made in stages", where=folder, remedy=remedy)
    sizes, names = arpa.manifest.summary["ngrams"], steps_of(folder)
    words = Artifact(f"{folder.rstrip('/')}/round1").manifest.counts.came_in
    size = {"n-grams": sum(sizes), "types": sizes[0], "words": words}
    made, before = [], list[str]()
    for name in names:
        output = Artifact(f"{folder.rstrip('/')}/{name}")
        inputs = {each: Artifact(f"{folder.rstrip('/')}/{each}") for each in before if each in output.manifest.inputs}
        own = size[GROWING.get(name, "words")] / MILLION
        step = replace(measured(name, output, "cores", 1, inputs, tuple(inputs)), hours=own)
        beside_s = max(0.0, output.figures(COST).get("cpu_s", 0.0) - step.quantities["cpu_s"])
        made.append(replace(step, quantities={**step.quantities, "beside_cpu_s": beside_s}))
        before.append(name)
    return made


def steps_of(folder: str) -> list[str]:
    """Names of the steps of a run, in order."""
    rounds: list[str] = []
    while Artifact(f"{folder.rstrip('/')}/round{len(rounds) + 1}").complete:
        rounds.append(f"round{len(rounds) + 1}")
    return ["words", "vocabulary", *rounds, "tally", "lines", "arpa"]
