"""Measurements of a recipe's finished steps, for the laws of `megahour.clock.measured`."""

from __future__ import annotations

import math
from typing import NamedTuple

from megahour.clock.measured import Measured, measured
from megahour.clock.pipeline import Machine
from megahour.core.stage import Stage
from megahour.core.store import Artifact
from megahour.recipes.recipe import Recipe, Step
from megahour.select.params import SelectParams


def measurements(recipe: Recipe) -> list[Measured]:
    """Measurements of the finished steps."""
    made, above = [], selections(recipe)
    for step in recipe.steps:
        if (output := Artifact(step.output)).complete:
            inputs = {role: Artifact(url) for role, url in step.inputs.items()}
            hours = above[step.name].shard_hours, above[step.name].of_drawn(step)
            made.append(measured(step.name, output, _machine(step), recipe.threads, inputs, step.parents, *hours))
    return made


class Selection(NamedTuple):
    """The nearest selection above a step, `steps` away: hours of a shard at most, sets that it draws, their hours."""

    steps: float = math.inf
    shard_hours: float = 0.0
    drawn: frozenset[str] = frozenset()
    drawn_hours: float = 0.0

    def of_drawn(self, step: Step) -> float:
        """The drawn hours, if the step reads these sets alone; else 0."""
        if not self.drawn or isinstance(step.params, SelectParams):
            return 0.0
        unlabelled = "unlabelled_sets" if {"targets", "pseudo_labels"} & step.inputs.keys() else "sets"
        sets = {*getattr(step.params, "sets", ()), *getattr(step.params, unlabelled, ())}
        return self.drawn_hours if sets and sets <= self.drawn else 0.0


def selections(recipe: Recipe) -> dict[str, Selection]:
    """The selection from which each step's audio comes."""
    made: dict[str, Selection] = {}
    for step in recipe.steps:
        above = min((made[parent] for parent in step.parents), key=lambda each: each.steps, default=Selection())
        hours = getattr(step.params, "shard_hours", above.shard_hours)
        made[step.name] = above._replace(steps=above.steps + 1, shard_hours=hours)
        if isinstance(step.params, SelectParams) and (output := Artifact(step.output)).complete:
            drawn = frozenset(rule.name for rule in step.params.sets if rule.named is None and rule.hours is None)
            of_drawn = (each.stats for each in output.each_receipt() if each.tags.get("set") in drawn)
            drawn_hours = sum(float(stats.get("audio_s", 0.0)) for stats in of_drawn) / 3600
            made[step.name] = Selection(0, step.params.shard_hours, drawn, drawn_hours)
    return made


def _machine(step: Step) -> Machine:
    if step.stage.name == "train":
        return "train"
    return "cores" if type(step.stage).accelerator is Stage.accelerator else "service"
