"""Refuses, before training, a recipe that trains on voices which another of its selections tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from megahour.core.errors import StageError
from megahour.core.kinds import sets_learnt
from megahour.core.store import Artifact
from megahour.recipes.recipe import Recipe, Step

LEARNERS = ("train", "senones", "language-model")
SHOWN = 5


@dataclass(frozen=True)
class Apart:
    """Sets of two selections that must have no voice in common: tests of a score, and sets that a model learns from."""

    score: Step
    tested: Step
    tests: tuple[str, ...]
    learner: Step
    taught: Step
    sets: tuple[str, ...]  # empty: all


def kept_apart(recipe: Recipe) -> list[Apart]:
    """For each `score` step, the other selections that its models and language models learn from."""
    steps = {step.name: step for step in recipe.steps}
    made = {step.output: step for step in recipe.steps}
    return [
        Apart(score, tested, tuple(score.params.model_dump()["sets"]), learner, taught, _learnt(learner))
        for score in recipe.steps
        if score.stage.name == "score"
        for learner in _ancestors(score, steps)
        if learner.stage.name in LEARNERS
        for taught in _selections(learner, made).values()
        for tested in _selections(score, made).values()
        if tested.name != taught.name
    ]


def check_apart(pairs: Sequence[Apart], finished: Sequence[str]) -> None:
    """Compare the pairs of selections that the last of the `finished` steps completes, unless their score exists.

    Raises
    ------
    StageError: a voice or a recording of a test set is in a set that a model learns from.
    """
    for pair in {(p.tested.name, p.tests, p.taught.name, p.sets, p.score.name): p for p in pairs}.values():
        both = (pair.tested.name, pair.taught.name)
        if finished[-1] in both and all(name in finished for name in both) and not Artifact(pair.score.output).complete:
            _check(pair)


def _check(pair: Apart) -> None:
    from megahour.select.leaks import shared_voices

    tested, taught = Artifact(pair.tested.output), Artifact(pair.taught.output)
    known = bool(pair.score.params.model_dump().get("known_voices"))
    shared = shared_voices(tested, pair.tests, taught, pair.sets, recordings_only=known)
    if not shared:
        return
    names = ", ".join(shared[:SHOWN]) + (f" and {len(shared) - SHOWN} more" if len(shared) > SHOWN else "")
    sets = f"sets {list(pair.sets)}" if pair.sets else "the sets"
    raise StageError(
        f"{names}: in sets {list(pair.tests)} of {pair.tested.name}, which {pair.score.name} scores, and in {sets} of "
        f"{pair.taught.name}, which {pair.learner.name} learns from",
        where=pair.taught.output,
        remedy=f"let the first set of {pair.taught.name} name them, and train on its other sets",
    )


def _ancestors(step: Step, steps: Mapping[str, Step]) -> Iterator[Step]:
    """All steps that a step depends on, each once."""
    waiting, seen = list(step.parents), set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            yield steps[name]
            waiting += steps[name].parents


def _selections(step: Step, made: Mapping[str, Step]) -> dict[str, Step]:
    """The `select` steps that a step's rows come from, directly or through features; `made`: steps by output."""
    if step.stage.name == "select":
        return {step.name: step}
    sources = [made.get(step.inputs.get(role, "")) for role in ("selection", "features")]
    return {name: other for source in sources if source for name, other in _selections(source, made).items()}


def _learnt(step: Step) -> tuple[str, ...]:
    """Sets that a step learns from; empty: all."""
    return sets_learnt(step.params.model_dump(), step.inputs)
