"""Runs a recipe, and plans it: which steps would run, and why."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from megahour.core.config import Params
from megahour.core.errors import ConfigError, MegahourError, StoreError, nearest
from megahour.core.filesystems import file_system
from megahour.core.kinds import check_kinds, made_with
from megahour.core.locks import alone
from megahour.core.receipts import Manifest
from megahour.core.stage import Stage
from megahour.core.stopping import exit_code, said, signal_name
from megahour.core.store import RESOLVED, Artifact
from megahour.core.surroundings import explaining
from megahour.core.transfer import is_local, publish_text, side_by_side
from megahour.core.versions import versions
from megahour.recipes.leaks import check_apart, kept_apart
from megahour.recipes.recipe import Recipe, Step
from megahour.recipes.steps import Done, Monitors, one_by_one, reads_run, several_at_once
from megahour.runner import log
from megahour.runner.runner import stage_fingerprint
from megahour.runner.scratch import claimed_by


@dataclass(frozen=True)
class StepPlan:
    """The state of one step, and whether it would run."""

    step: Step
    state: str  # done | partial | missing | stale | damaged | blocked
    why: str
    shards: int  # committed so far
    seconds: float | None  # that the step took last time


def plan(recipe: Recipe) -> list[StepPlan]:
    """State of each step, and the reason why it would run."""
    with explaining(recipe.run):
        return _planned(recipe)


def _planned(recipe: Recipe) -> list[StepPlan]:
    history = _history(recipe)
    plans: list[StepPlan] = []
    will_run: set[str] = set()
    outputs = [Artifact(step.output) for step in recipe.steps]
    store = next((output.fs for output in outputs if not is_local(output.fs)), None)
    known: dict[str, tuple[str, str]] = {}
    if store is not None:  # each step needs several sequential requests: query all steps concurrently
        pairs = list(zip(recipe.steps, outputs, strict=True))
        states = side_by_side(store, lambda pair: _state(recipe, *pair, []), pairs)
        known = {step.name: state for (step, _), state in zip(pairs, states, strict=True)}
    for step, output in zip(recipe.steps, outputs, strict=True):
        parents = [parent for parent in step.parents if parent in will_run]
        state, why = _state(recipe, step, output, parents) if parents or step.name not in known else known[step.name]
        if state != "done":
            will_run.add(step.name)
        shards = output.made.shards if output.made else len(output.committed())
        plans.append(StepPlan(step, state, why, shards, history.get(step.name)))
    return plans


def _state(recipe: Recipe, step: Step, output: Artifact, parents: Sequence[str]) -> tuple[str, str]:
    try:
        made = output.manifest if output.complete else None
    except StoreError as error:
        return "damaged", f"{error.message}; {error.remedy}"
    try:
        if parents:
            found = ("stale" if made else "missing"), f"after {', '.join(parents)}"
        else:
            found = _compared(step, output, made)
        if found[0] != "done":
            check_outside(recipe, [step], files=True)
        return found
    except MegahourError as error:  # an artifact or a file from outside the recipe, which no step makes
        return "blocked", str(error).replace("\n", "; ")


def _compared(step: Step, output: Artifact, made: Manifest | None) -> tuple[str, str]:
    committed = 0 if made else len(output.committed())
    if not made and not committed:
        return "missing", "not made yet"
    inputs = {role: Artifact(url) for role, url in step.inputs.items()}
    now = stage_fingerprint(step.stage, step.params, inputs)
    if made is None:
        if claimed_by(output) != now:
            return "stale", f"{committed} shards are committed, with other parameters or inputs"
        return "partial", f"{committed} shards are committed"
    if made.fingerprint == now:
        return "done", ""
    return "stale", difference(step.stage, step.params, made, inputs)


_LISTED = "its source files changed in name, size or time"  # a copy of the same contents has other times
CHANGED = {"digests": _LISTED, "versions": _LISTED, "code": "its function's file changed"}
"""What changed, by the digests that stages add to their parameters; others are of contents."""


def difference(stage: Stage[Any], p: Params, manifest: Manifest, inputs: Mapping[str, Artifact]) -> str:
    """What changed since an artifact was made: parameters, inputs, source files, or the stage's version."""
    now = p.identity()
    other = [key for key in sorted(set(now) | set(manifest.params)) if now.get(key) != manifest.params.get(key)]
    digests = set(now) - set(type(p).model_fields)  # digests that `identity` adds to the parameters
    values = ((key, manifest.params.get(key), now.get(key)) for key in other if key not in digests)
    changed = [f"{key} {_given(before)!r} → {_given(after)!r}" for key, before, after in values]
    words = {} if now.get("bundles") else CHANGED  # bundles are compared by contents
    changed += sorted({words.get(key, "its source files changed") for key in digests & set(other)})
    changed += [
        f"input {role} changed"
        for role in sorted(set(inputs) | set(manifest.inputs))
        if role not in inputs or inputs[role].manifest.digest != manifest.inputs.get(role)
    ]
    if manifest.stage != stage.name or manifest.version != stage.version:
        changed.append(f"stage {manifest.stage} version {manifest.version} → {stage.name} {stage.version}")
    return ", ".join(changed)


def _given(value: Any) -> Any:
    """A parameter's value without the optional entries of its rules that are left out, sorted."""
    if isinstance(value, dict):
        return {key: _given(each) for key, each in sorted(value.items()) if each is not None}
    return [_given(each) for each in value] if isinstance(value, list) else value


def execute(recipe: Recipe, monitor_for: Monitors, *, until: str = "") -> Generator[Done, None, None]:
    """Run unfinished steps, `recipe.steps_at_once` of them at a time. Closing the iterator stops them; committed shards
    stay.
    """
    steps = chosen(recipe, until)
    check_needs(recipe)
    check_outside(recipe, steps)
    pairs, finished = kept_apart(recipe), list[str]()
    run_steps = one_by_one if recipe.steps_at_once == 1 else several_at_once
    with explaining(recipe.run), alone_in(recipe.run):
        save_run(recipe)
        with closing(run_steps(recipe, steps, monitor_for)) as ended:
            for done in ended:
                finished.append(done.step.name)
                check_apart(pairs, finished)
                if done.seconds is not None:
                    _record_history(recipe, done.step, done.seconds)
                yield done


def check_needs(recipe: Recipe) -> None:
    """Raise ConfigError for a file or folder that a variable of the recipe names, and that is not there."""
    for variable, path, text in recipe.needs:
        fs, inner = file_system(path)
        if not fs.exists(inner):
            seen = "" if "://" in path else f", seen from {Path.cwd()}"
            what = f"there is no {path}{seen}. The recipe needs {text}"
            raise ConfigError(what, where=recipe.name, remedy=f"get it, and add vars.{variable}=PATH to the command")


def check_outside(recipe: Recipe, steps: Sequence[Step], *, files: bool = False) -> None:
    """Raise StoreError or ConfigError, before any step runs, for a missing or unsuitable input from outside.

    files: look for the files of their parameters, too, but not for those that earlier steps make in the run.
    """
    made_here = {f"{recipe.run}/{step.name}" for step in recipe.steps}
    for step in steps:
        with explaining(step.name):
            if files and not reads_run(recipe.run, step.params):
                step.params.reach()
            outside = {role: Artifact(url) for role, url in step.inputs.items() if url not in made_here}
            for artifact in outside.values():
                _ = artifact.manifest
            check_kinds(step.stage, outside)
            step.stage.check_made(step.params, step.inputs, made_with(outside))


def alone_in(run: str) -> AbstractContextManager[str]:
    """Lock a run for this session: two would make the same artifacts, but overwrite each other's history."""
    home = Artifact(run)
    return alone(home.fs, home.root, where=home.url, what="another `megahour run` is using this run")


@contextmanager
def resumable(where: str, kept: Callable[[], str], again: str = "the same command") -> Iterator[None]:
    """On Ctrl-C or SIGTERM, print what is kept and the command that resumes, then exit."""
    try:
        yield
    except KeyboardInterrupt as stop:
        if log.bars() and sys.stderr.isatty():
            click.echo(err=True)  # a new line after the terminal's ^C
        text = f"{said(stop)}. Kept in {where}: {kept()}.\nTo resume: {again}"
        facts = {"path": where, "kept": kept(), "command": again, "signal": signal_name(stop)}
        log.say("stopped", text, facts, level=logging.WARNING)
        sys.exit(exit_code(stop))


def chosen(recipe: Recipe, until: str = "") -> Sequence[Step]:
    """The step `until` and all that it needs; all steps if it is empty. Raises ConfigError: no such step."""
    if not until:
        return recipe.steps
    names = [step.name for step in recipe.steps]
    if until not in names:
        remedy = "`megahour plan` of the recipe lists its steps"
        raise ConfigError(f'no step "{until}"{nearest(until, names)}', where=recipe.name, remedy=remedy)
    wanted = {until}
    for step in reversed(recipe.steps):
        if step.name in wanted:
            wanted.update(step.parents)
    return [step for step in recipe.steps if step.name in wanted]


def save_run(recipe: Recipe) -> None:
    """Write the resolved recipe and all versions into the run's folder."""
    home = Artifact(recipe.run)
    publish_text(home.fs, home.path(RESOLVED), yaml.safe_dump(dict(recipe.resolved), sort_keys=False))
    publish_text(home.fs, home.path("versions.json"), json.dumps(versions(), indent=1) + "\n")


def _record_history(recipe: Recipe, step: Step, seconds: float) -> None:
    """Record how long a step took in all sessions, for the next plan's estimate. seconds: in this one."""
    home, seconds = Artifact(recipe.run), Artifact(step.output).wall().get("seconds", seconds)
    history = _history(recipe) | {step.name: round(seconds, 2)}
    publish_text(home.fs, home.path("history.json"), json.dumps(history, indent=1) + "\n")


def _history(recipe: Recipe) -> dict[str, Any]:
    history = Artifact(recipe.run).figures("history.json")
    return {step: seconds for step, seconds in history.items() if isinstance(seconds, int | float)}
