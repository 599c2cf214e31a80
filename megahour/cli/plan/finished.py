"""Measurements of a recipe's finished steps, for the laws of `megahour.clock.measured`."""

from __future__ import annotations

import math
from typing import NamedTuple

from megahour.clock.measured import Measured, books, measured
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
            hours = above[step.name].shard_hours, above[step.name].drawn_from(step)
            made.append(measured(step.name, output, _machine(step), recipe.threads, inputs, step.parents, *hours))
    return made


class Selection(NamedTuple):
    """The nearest selection above a step, `steps` away: hours of a shard at most, the sets that it draws by hours and
    those that it draws as a number of speakers, hours of all of these sets, and of one of their speakers on average."""

    steps: float = math.inf
    shard_hours: float = 0.0
    drawn: frozenset[str] = frozenset()
    of_speakers: frozenset[str] = frozenset()
    drawn_hours: float = 0.0
    speaker_hours: float = 0.0

    def drawn_from(self, step: Step) -> float:
        """Hours with which the step's sets grow: of all drawn sets, or of a speaker. 0: it reads other sets, too."""
        if isinstance(step.params, SelectParams):
            return 0.0
        unlabelled = "unlabelled_sets" if {"targets", "pseudo_labels"} & step.inputs.keys() else "sets"
        sets = {*getattr(step.params, "sets", ()), *getattr(step.params, unlabelled, ())}
        if sets & self.drawn:
            return self.drawn_hours if sets <= self.drawn else 0.0
        return self.speaker_hours if sets and sets <= self.of_speakers else 0.0


def selections(recipe: Recipe) -> dict[str, Selection]:
    """The selection from which each step's audio comes."""
    made: dict[str, Selection] = {}
    for step in recipe.steps:
        above = min((made[parent] for parent in step.parents), key=lambda each: each.steps, default=Selection())
        hours = getattr(step.params, "shard_hours", above.shard_hours)
        made[step.name] = above._replace(steps=above.steps + 1, shard_hours=hours)
        if isinstance(step.params, SelectParams) and (output := Artifact(step.output)).complete:
            made[step.name] = _selection(step.params, output)
    return made


def _selection(p: SelectParams, made: Artifact) -> Selection:
    of_speakers = frozenset(rule.name for rule in p.sets if rule.speakers)
    drawn = frozenset(rule.name for rule in p.sets if not (rule.named or rule.hours or rule.speakers))
    totals = [of_set for name, of_set in books(made).of_sets.items() if name in drawn | of_speakers]
    hours, speakers = sum(seconds for seconds, _ in totals) / 3600, sum(number for _, number in totals)
    return Selection(0, p.shard_hours, drawn, of_speakers, hours, hours / speakers if speakers else 0.0)


def _machine(step: Step) -> Machine:
    if step.stage.name == "train":
        return "train"
    return "cores" if type(step.stage).accelerator is Stage.accelerator else "service"
