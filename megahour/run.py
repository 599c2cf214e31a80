"""Running a recipe: what would run and why, the run itself, and where it stands."""

from __future__ import annotations

import fcntl
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

import megahour
from megahour.core.errors import ConfigError, MegahourError, nearest
from megahour.core.store import Artifact, Manifest
from megahour.core.transfer import publish_text
from megahour.engine.base import Engine
from megahour.engine.runner import Models, Monitor, claimed_by, run_stage, stage_fingerprint
from megahour.recipe import EngineParams, Recipe, Step

PACKAGES = ("numpy", "numba", "pyarrow", "torch", "soundfile", "soxr", "kaldifst", "kaldi-decoder", "espeakng-loader")


@dataclass(frozen=True)
class Plan:
    """What would happen to one step."""

    step: Step
    state: str  # done | partial | missing | stale
    why: str
    shards: int  # committed so far
    seconds: float | None  # estimated from the last time this step ran


def make_engine(params: EngineParams) -> Engine:
    """The engine that a recipe or the command line asks for."""
    if params.kind == "spark":
        from megahour.engine.spark import SparkEngine

        master = f"local[{params.workers}]" if params.workers and params.master == "local[*]" else params.master
        return SparkEngine(master, retries=params.retries, task_timeout_s=params.task_timeout_s)
    from megahour.engine.local import LocalEngine

    return LocalEngine(workers=params.workers or None, retries=params.retries, task_timeout_s=params.task_timeout_s)


def plan(recipe: Recipe) -> list[Plan]:
    """State of each step, and the reason why it would run."""
    history = _history(recipe)
    plans: list[Plan] = []
    will_run: set[str] = set()
    for step in recipe.steps:
        output = Artifact(step.output)
        parents = [parent for parent in step.parents if parent in will_run]
        state, why = _state(step, output, parents)
        if state != "done":
            will_run.add(step.name)
        shards = output.manifest.shards if output.complete else len(output.committed())
        plans.append(Plan(step, state, why, shards, history.get(step.name)))
    return plans


def _state(step: Step, output: Artifact, parents: Sequence[str]) -> tuple[str, str]:
    if parents:
        return ("stale" if output.complete else "missing"), f"after {', '.join(parents)}"
    committed = 0 if output.complete else len(output.committed())
    if not output.complete and not committed:
        return "missing", "not made yet"
    inputs = {role: Artifact(url) for role, url in step.inputs.items()}
    now = stage_fingerprint(step.stage, step.params, inputs)
    if not output.complete:
        if claimed_by(output) != now:
            return "stale", f"{committed} shards are committed, of other parameters or inputs"
        return "partial", f"{committed} shards are committed"
    if output.manifest.fingerprint == now:
        return "done", ""
    return "stale", _difference(step, output.manifest, inputs)


def _difference(step: Step, manifest: Manifest, inputs: dict[str, Artifact]) -> str:
    now = step.params.identity()
    changed = [
        "the files that it reads changed"
        if key == "digests"
        else f"{key} {manifest.params.get(key)!r} → {now.get(key)!r}"
        for key in sorted(set(now) | set(manifest.params))
        if now.get(key) != manifest.params.get(key)
    ]
    changed += [
        f"input {role} changed"
        for role in sorted(set(inputs) | set(manifest.inputs))
        if role not in inputs or inputs[role].manifest.digest != manifest.inputs.get(role)
    ]
    if manifest.stage != step.stage.name or manifest.version != step.stage.version:
        changed.append(f"stage {manifest.stage} version {manifest.version} → {step.stage.name} {step.stage.version}")
    return ", ".join(changed)


@dataclass(frozen=True)
class Done:
    """One finished step; `seconds` is None when it was already made."""

    step: Step
    manifest: Manifest
    seconds: float | None


def execute(recipe: Recipe, monitor_for: Callable[[str], Monitor], *, until: str = "") -> Iterator[Done]:
    """Run what is not done, in order. Closing the iterator stops the engine; committed shards stay."""
    steps = _ancestors(recipe, until) if until else recipe.steps
    work = Path(recipe.run) / ".work" if "://" not in recipe.run else None
    with _alone(recipe.run), make_engine(recipe.engine) as engine:
        save_run(recipe)
        for step in steps:
            inputs = {role: Artifact(url) for role, url in step.inputs.items()}
            output = Artifact(step.output)
            started, was_done = time.monotonic(), _state(step, output, ())[0] == "done"
            manifest = run_stage(
                step.stage,
                step.params,
                inputs,
                output,
                engine,
                work=work,
                threads=recipe.threads,
                monitor=monitor_for(step.name),
                models=Models(recipe.engine.devices, recipe.engine.host),
            )
            seconds = None if was_done else time.monotonic() - started
            if seconds is not None:
                _record_history(recipe, step.name, output.wall().get("seconds", seconds))
            yield Done(step, manifest, seconds)


@contextmanager
def _alone(run: str) -> Iterator[None]:
    """Hold a local run's lock, which the kernel frees however this process ends.

    Two sessions would make the same bytes, but the first to finish a step would remove the scratch files of the other.
    """
    if "://" in run:
        yield
        return
    Path(run).mkdir(parents=True, exist_ok=True)
    with (Path(run) / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MegahourError(
                "another `megahour run` is at work here", where=run, remedy="wait for it, or give another run=FOLDER"
            ) from None
        yield


@contextmanager
def resumable(where: str) -> Iterator[None]:
    """Ctrl-C leaves committed shards and says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\nStopped. Committed shards are kept in {where}: the same command resumes.", file=sys.stderr)
        sys.exit(130)


def _ancestors(recipe: Recipe, until: str) -> list[Step]:
    names = [step.name for step in recipe.steps]
    if until not in names:
        raise ConfigError(f'no step "{until}"{nearest(until, names)}', where=recipe.name)
    wanted = {until}
    for step in reversed(recipe.steps):
        if step.name in wanted:
            wanted.update(step.parents)
    return [step for step in recipe.steps if step.name in wanted]


def save_run(recipe: Recipe) -> None:
    """Write the resolved recipe and the versions of everything beside the artifacts."""
    home = Artifact(recipe.run)
    publish_text(home.fs, home.path("recipe.resolved.yaml"), yaml.safe_dump(dict(recipe.resolved), sort_keys=False))
    publish_text(home.fs, home.path("versions.json"), json.dumps(versions(), indent=1) + "\n")


def versions() -> dict[str, str]:
    """Versions of megahour, Python and the libraries that shape results, and the source's commit where there is one."""
    found = {"megahour": megahour.__version__, "python": platform.python_version(), "machine": platform.machine()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "missing"
    found["commit"] = _commit()
    return found


def _commit() -> str:
    folder = Path(megahour.__file__).parent
    if not (folder.parent / ".git").exists():
        return "unknown"  # installed; an environment within somebody else's checkout would give theirs
    try:
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def _record_history(recipe: Recipe, step: str, seconds: float) -> None:
    """Remember how long a step took, for the next plan's estimate."""
    home = Artifact(recipe.run)
    history = _history(recipe) | {step: round(seconds, 2)}
    publish_text(home.fs, home.path("history.json"), json.dumps(history, indent=1) + "\n")


def _history(recipe: Recipe) -> dict[str, Any]:
    home = Artifact(recipe.run)
    path = home.path("history.json")
    return dict(json.loads(home.fs.cat_file(path))) if home.fs.exists(path) else {}
