"""Runs the steps of a recipe: one after the other in this process, or several at once in processes of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from megahour.core.config import Params
from megahour.core.errors import ConfigError, DamagedError
from megahour.core.filesystems import work_in
from megahour.core.receipts import Manifest
from megahour.core.stage import Stage
from megahour.core.store import Artifact
from megahour.core.surroundings import explaining
from megahour.engine.base import Engine
from megahour.recipes.recipe import EngineParams, Recipe, Step
from megahour.runner.model_service import Models
from megahour.runner.monitor import Monitor
from megahour.runner.runner import run_stage, stage_fingerprint
from megahour.runner.step_process import StepProcesses

Monitors = Callable[[str], Monitor]
"""The monitor of a step, by its name; called once for each step."""


@dataclass(frozen=True)
class Done:
    """One finished step; `seconds` is None if it was already made."""

    step: Step
    manifest: Manifest
    seconds: float | None


def make_engine(params: EngineParams) -> Engine:
    """The engine that a recipe or the command line selects."""
    if params.kind == "spark":
        from megahour.engine.spark import SparkEngine

        master = f"local[{params.workers}]" if params.workers and params.master == "local[*]" else params.master
        return SparkEngine(master, retries=params.retries, task_timeout_s=params.task_timeout_s, conf=params.conf)
    if params.kind == "ray":
        from megahour.engine.ray import LOCAL, RayEngine

        address = LOCAL if params.master == "local[*]" else params.master
        timeout_s = params.task_timeout_s
        return RayEngine(address, workers=params.workers, retries=params.retries, task_timeout_s=timeout_s)
    from megahour.engine.local import LocalEngine

    return LocalEngine(workers=params.workers or None, retries=params.retries, task_timeout_s=params.task_timeout_s)


def models_of(params: EngineParams) -> Models:
    """Where the models of stages run, from the parameters of the engine. Raises ConfigError: HOST:PORT as services."""
    services = params.services
    if services and "://" not in services:
        from megahour.serve.standing import are_addresses

        are_addresses(services)
        services = str(Path(services).expanduser().absolute())  # tasks may have other working directories
    return Models(params.devices, params.host, params.tls, params.mutual, services)


def needs_model(step: Step) -> bool:
    """Whether the step's stage calls a model, with some of its inputs at least."""
    return type(step.stage).accelerator is not Stage.accelerator


def one_by_one(recipe: Recipe, steps: Sequence[Step], monitor_for: Monitors) -> Generator[Done, None, None]:
    """Run steps in this process, in order, with one engine."""
    with make_engine(recipe.engine) as engine:
        for step in steps:
            yield run_step(recipe, step, engine, monitor_for(step.name))


def run_step(recipe: Recipe, step: Step, engine: Engine, monitor: Monitor) -> Done:
    """Run a step, or find it finished."""
    output, started = Artifact(step.output), time.monotonic()
    manifest = run_stage(
        step.stage,
        step.params,
        _inputs(step),
        output,
        engine,
        work=work_in(recipe.run),
        threads=recipe.threads,
        monitor=monitor,
        models=models_of(recipe.engine),
    )
    unchanged = manifest is output.manifest  # the manifest of a new artifact is another object
    return Done(step, manifest, None if unchanged else time.monotonic() - started)


def several_at_once(recipe: Recipe, steps: Sequence[Step], monitor_for: Monitors) -> Generator[Done, None, None]:
    """Run up to `recipe.steps_at_once` steps whose inputs are made, each in a process with an engine of its own.

    A step that reads the run by a path in its parameters waits for all steps before it, and one that needs the models
    of `engine.services` for others that do.

    Steps begin in the order of `steps` and are yielded as they end. The artifacts are those of `one_by_one`. If a step
    fails, or the iterator is closed, the others are stopped as by SIGTERM: their shards and checkpoints stay.

    Raises
    ------
    ConfigError: the recipe's engine is not the local one.
    EngineError: the process of a step was killed.
    """
    if recipe.engine.kind != "local":
        what = f"steps_at_once is {recipe.steps_at_once}, and engine.kind is {recipe.engine.kind}"
        remedy = "set steps_at_once=1, since each step has all machines, or engine.kind=local"
        raise ConfigError(what, where=recipe.name, remedy=remedy)
    work = partial(_steps_here, recipe)
    by_name, waiting, finished = {step.name: step for step in steps}, list(steps), set[str]()
    needed = {step.name: set(step.parents) for step in steps}
    for place, step in enumerate(steps):
        if reads_run(recipe.run, step.params):
            needed[step.name].update(before.name for before in steps[:place])
    identities: dict[str, str] = {}  # fingerprints of steps whose inputs are made
    running: dict[str, set[str]] = {}  # what each running step has for itself
    with StepProcesses(work) as processes:
        while waiting or running:
            for step in [each for each in waiting if finished >= needed[each.name]]:
                if step.name not in identities:
                    identities[step.name] = stage_fingerprint(step.stage, step.params, _inputs(step))
                    if (made := _made(step, identities[step.name])) is not None:
                        waiting.remove(step)
                        finished.add(step.name)
                        monitor_for(step.name)
                        yield Done(step, made, None)
                        break  # steps before this one may be ready now
                own = _own(recipe, step, identities[step.name])
                if len(running) < recipe.steps_at_once and own.isdisjoint(set().union(*running.values())):
                    waiting.remove(step)
                    running[step.name] = own
                    processes.begin(step.name, monitor_for(step.name))
            else:
                for name, (manifest, seconds) in processes.wait():
                    del running[name]
                    finished.add(name)
                    yield Done(by_name[name], manifest, seconds)


@contextmanager
def _steps_here(recipe: Recipe) -> Iterator[Callable[[str, Monitor], tuple[Manifest, float | None]]]:
    """In a `StepProcess`: the function that runs a step by its name, with an engine that stays warm between steps."""
    steps = {step.name: step for step in recipe.steps}

    def run(name: str, monitor: Monitor) -> tuple[Manifest, float | None]:
        done = run_step(recipe, steps[name], engine, monitor)
        return done.manifest, done.seconds

    with explaining(recipe.run), make_engine(recipe.engine) as engine:
        yield run


def _own(recipe: Recipe, step: Step, identity: str) -> set[str]:
    """What no two steps have at a time: the folder of their work, and services elsewhere, which serve one model."""
    return {identity, recipe.engine.services} if recipe.engine.services and needs_model(step) else {identity}


def reads_run(run: str, p: Params) -> bool:
    """Whether a parameter names a place in the run, in whichever way the path is written."""
    home, *paths = (f"{_real(each)}/" for each in (run, *_texts(p.model_dump())))
    return any(path.startswith(home) for path in paths)


def _real(path: str) -> str:
    """The path itself, whatever its links, ~ and ./ ; of a URL and other texts an equally normal form."""
    try:
        path = path.removeprefix("file://")
        return os.path.realpath(os.path.expanduser(path))  # noqa: PTH111 (Path's raises for an unknown user's "~text")
    except ValueError:  # no path has such characters
        return path


def _texts(value: Any) -> Iterator[str]:
    """All texts among parameters, also those in lists and mappings."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value


def _made(step: Step, identity: str) -> Manifest | None:
    """The manifest of the step's artifact, if it has been made by this job."""
    output = Artifact(step.output)
    with suppress(DamagedError):  # `run_stage` rebuilds it
        if output.complete and output.manifest.fingerprint == identity:
            return output.manifest
    return None


def _inputs(step: Step) -> dict[str, Artifact]:
    return {role: Artifact(url) for role, url in step.inputs.items()}
