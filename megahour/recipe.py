"""Recipes: a YAML file of named steps, each a stage with parameters and inputs."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from megahour.core.config import Params, parse
from megahour.core.errors import ConfigError, nearest
from megahour.core.stage import Stage
from megahour.stage_table import STAGES


class EngineParams(BaseModel):
    """Where tasks run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["local", "spark"] = Field("local", description="local: a pool of processes; spark: Apache Spark")
    workers: int = Field(0, ge=0, description="worker processes of the local engine; 0 = one per core")
    master: str = Field("local[*]", description="Spark master URL")
    retries: int = Field(2, ge=0, description="attempts after the first for a task whose worker died")
    task_timeout_s: float | None = Field(None, gt=0, description="limit for one task; none by default")
    devices: tuple[str, ...] = Field(
        (), description="a model process for each, such as [cuda:0, cuda:1]; by default one a core, on the CPU"
    )
    host: str = Field(
        "127.0.0.1",
        description="this machine's address for the model service; executors on others need one that they can reach",
    )


@dataclass(frozen=True)
class Step:
    """One resolved step: where its artifact goes and what it reads."""

    name: str
    stage: Stage[Any]
    params: Params
    inputs: Mapping[str, str]  # role → URL
    parents: tuple[str, ...]  # names of the steps among the inputs
    output: str


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe: steps in an order in which they can run."""

    name: str
    run: str
    threads: int
    engine: EngineParams
    steps: tuple[Step, ...]
    resolved: Mapping[str, Any]


def load_stage(name: str) -> Stage[Any]:
    """Raises ConfigError for an unknown name, with the nearest known one."""
    if name not in STAGES:
        raise ConfigError(f'unknown stage "{name}"{nearest(name, STAGES)}', remedy="megahour stages lists them all")
    module, class_name, _ = STAGES[name]
    stage: Stage[Any] = getattr(importlib.import_module(module), class_name)()
    return stage


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply ``key=value`` overrides.

    Raises
    ------
    ConfigError: unreadable YAML, unknown keys (with the nearest name), unknown inputs, or steps in a circle.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(
            "no such recipe", where=str(path), remedy="give the path of a YAML file, e.g. recipes/demo.yaml"
        )
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"not valid YAML: {error}", where=str(path)) from None
    if not isinstance(data, dict):
        raise ConfigError("a recipe is a mapping with a `steps` section", where=str(path))
    for override in overrides:
        _override(data, override)
    return resolve(data, name=path.stem, where=str(path))


def resolve(data: dict[str, Any], *, name: str, where: str) -> Recipe:
    """Check a recipe's mapping and build its steps."""
    known = {"about", "run", "seed", "threads", "engine", "vars", "steps"}
    for key in data:
        if key not in known:
            raise ConfigError(f'unknown key "{key}"{nearest(key, known)}', where=where)
    data = _substitute(data, {str(k): str(v) for k, v in _mapping(data, "vars", where).items()}, where)
    run = str(data.get("run", f"runs/{name}")).rstrip("/")
    sections = _mapping(data, "steps", where)
    if not sections:
        raise ConfigError("no steps", where=where, remedy="add a `steps` section")
    steps = {key: _step(key, section, sections, run, data.get("seed"), where) for key, section in sections.items()}
    engine = _engine(data.get("engine") or {}, where)
    ordered = _order(steps, where)
    threads = data.get("threads", 2)
    if not isinstance(threads, int) or threads < 1:
        raise ConfigError(f"threads = {threads!r} is not a whole number of at least 1", where=where)
    resolved: dict[str, Any] = {
        "run": run,
        "seed": data.get("seed"),
        "threads": threads,
        "engine": engine.model_dump(),
        "steps": {
            step.name: {"stage": step.stage.name, "inputs": dict(step.inputs), **step.params.model_dump(mode="json")}
            for step in ordered
        },
    }
    return Recipe(name, run, threads, engine, tuple(ordered), resolved)


def _mapping(data: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """A section of the recipe; an absent one is empty."""
    value = data.get(key) or {}
    if not isinstance(value, dict):
        raise ConfigError(f"`{key}` is a {type(value).__name__}, not a mapping of names to values", where=where)
    return value


def _step(name: str, section: Any, sections: Mapping[str, Any], run: str, seed: int | None, where: str) -> Step:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", str(name)):
        raise ConfigError(f'step name "{name}": use lower-case letters, digits, - and _', where=where)
    values = dict(_mapping(sections, name, where))
    stage = load_stage(str(values.pop("stage", name)))
    inputs, parents = {}, []
    for role, named in _mapping(values, "inputs", f"{where}: step {name}").items():
        source = str(named)
        if source in sections:
            inputs[role] = f"{run}/{source}"
            parents.append(source)
        elif "/" in source:
            inputs[role] = source
        else:
            hint = nearest(source, sections)
            raise ConfigError(f'step {name}: input {role} names an unknown step "{source}"{hint}', where=where)
    values.pop("inputs", None)
    _check_roles(name, stage, inputs, where)
    if seed is not None and "seed" in stage.params.model_fields:
        values.setdefault("seed", seed)
    params = parse(stage.params, values, where=f"{where}: step {name}, stage {stage.name}")
    return Step(name, stage, params, inputs, tuple(parents), f"{run}/{name}")


def _check_roles(name: str, stage: Stage[Any], inputs: Mapping[str, str], where: str) -> None:
    roles = {spec.role: spec.optional for spec in stage.inputs}
    for role in inputs:
        if role not in roles:
            raise ConfigError(
                f'step {name}: stage {stage.name} has no input "{role}"{nearest(role, roles)}', where=where
            )
    missing = [role for role, optional in roles.items() if not optional and role not in inputs]
    if missing:
        raise ConfigError(f"step {name}: stage {stage.name} needs the inputs {missing}", where=where)


def _engine(values: Any, where: str) -> EngineParams:
    try:
        return EngineParams.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors())
        raise ConfigError(problems, where=f"{where}: engine") from None


def _order(steps: Mapping[str, Step], where: str) -> list[Step]:
    """Steps after all their parents, otherwise in the recipe's order."""
    ordered: dict[str, Step] = {}
    while len(ordered) < len(steps):
        ready = [s for s in steps.values() if s.name not in ordered and all(p in ordered for p in s.parents)]
        if not ready:
            circle = sorted(set(steps) - set(ordered))
            raise ConfigError(f"steps {circle} wait for each other", where=where)
        ordered[ready[0].name] = ready[0]
    return list(ordered.values())


def _override(data: dict[str, Any], override: str) -> None:
    """Apply ``run=…``, ``vars.data=…``, ``engine.workers=4`` or ``STEP.parameter=value`` (the value is YAML)."""
    key, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(f'"{override}" is not key=value', remedy="e.g. student.epochs=2")
    parts = key.split(".")
    if parts[0] in (data.get("steps") or {}):
        parts = ["steps", *parts]
    place = data
    for part in parts[:-1]:
        if not isinstance(place.get(part), dict):
            hint = nearest(part, [*(data.get("steps") or {}), *place])
            raise ConfigError(f'override {key}: nothing is called "{part}"{hint}')
        place = place[part]
    try:
        place[parts[-1]] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {key}: {text!r} is not valid YAML: {error}") from None


def _substitute(value: Any, variables: Mapping[str, str], where: str) -> Any:
    """Replace ``${name}`` in strings by the recipe's `vars`."""
    if isinstance(value, dict):
        return {key: _substitute(item, variables, where) for key, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, variables, where) for item in value]
    if not isinstance(value, str):
        return value

    def look_up(match: re.Match[str]) -> str:
        if match[1] not in variables:
            raise ConfigError(f'no variable "{match[1]}"{nearest(match[1], variables)}', where=where)
        return variables[match[1]]

    return re.sub(r"\$\{(\w+)\}", look_up, value)
