"""Recipes: a YAML file of named steps, each a stage with parameters and inputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

from pydantic import Field, field_validator

from megahour.core.config import Options, Params, parse
from megahour.core.errors import ConfigError, nearest
from megahour.core.expect import shown
from megahour.core.kinds import check_roles, made_by, makers_of, taken_by
from megahour.core.stage import Stage
from megahour.core.store import RESOLVED
from megahour.core.strict_yaml import kind_name
from megahour.engine.spark_settings import settings_of, without_secrets
from megahour.recipes.recipe_text import KEYS, read_recipe, section
from megahour.recipes.shipped import find_recipe
from megahour.recipes.stage_table import STAGES

NAME_ONE = "name a step of this recipe, or the path or URL of an artifact (with a /)"
LONGEST_NAME = 200
"""Characters of a step's name: that of a folder, and part of those of scratch files, which may have 255."""
_OF_SHELLS = re.compile(r"(?:^|/)\$([A-Za-z_]\w*)(?=/|$)")


class EngineParams(Options):
    """Where tasks run."""

    kind: Literal["local", "spark", "ray"] = "local"
    """Where stages run. local: a pool of processes. spark: Apache Spark. ray: Ray."""
    workers: int = Field(0, ge=0)
    """Worker processes of the local engine. 0: one per core."""
    master: str = "local[*]"
    """Spark master URL; with kind ray, auto or HOST:PORT. local[*] is this machine in both cases."""
    retries: int = Field(2, ge=0)
    """Further attempts for a task whose worker died."""
    task_timeout_s: float | None = Field(None, gt=0)
    """Time limit for one task, in seconds. None: no limit."""
    devices: tuple[str, ...] = ()
    """One model process for each device listed: auto, cuda (every GPU), cpu (one per core) or single ones such as
    cuda:0. Empty: auto."""
    host: str = "127.0.0.1"
    """Address of this machine for the model service. Executors on other machines need one that they can reach."""
    tls: str = ""
    """Folder with tls.crt, tls.key and ca.crt, at the same path on every machine. It encrypts the model service; set it
    whenever others share the network."""
    mutual: bool = False
    """Require tasks to present a certificate signed by ca.crt to the model service."""
    services: str = ""
    """Folder or URL where `megahour serve FOLDER` registers on other machines, or their addresses: grpc://HOST:PORT,…
    Set it when devices are on other machines. Empty: models run beside the driver."""
    conf: dict[str, str] = Field({})
    """With kind spark: Spark settings, such as spark.executor.memory: 4g, which override the engine's own. Keep secrets
    in Spark's spark-defaults.conf."""

    @field_validator("conf", mode="before")
    @classmethod
    def _spark_settings(cls, value: Any) -> Any:
        return settings_of(value)


@dataclass(frozen=True)
class Step:
    """One resolved step: its stage with parameters, its inputs and its output."""

    name: str
    stage: Stage[Any]
    params: Params
    inputs: Mapping[str, str]  # role → URL
    parents: tuple[str, ...]  # names of the steps among the inputs
    output: str


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe, with its steps in a runnable order."""

    name: str
    run: str
    threads: int  # of a training
    steps_at_once: int
    engine: EngineParams
    steps: tuple[Step, ...]
    resolved: Mapping[str, Any]
    needs: tuple[tuple[str, str, str], ...] = ()  # variables with a path, the paths, and where to get what is there


def load_stage(name: str) -> Stage[Any]:
    """The stage with this name. Raises ConfigError for an unknown name, with the nearest known one."""
    if name not in STAGES:
        raise ConfigError(f'unknown stage "{name}"{nearest(name, STAGES)}', remedy="megahour --help lists them all")
    stage: Stage[Any] = resolve_name(STAGES[name][0])()
    return stage


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe, given by its path, as the name of a shipped one, or as the folder of a run, which has the recipe
    that it ran, and apply ``key=value`` overrides.

    Raises
    ------
    ConfigError: unreadable YAML, duplicate or unknown keys (with the nearest name), values of the wrong type, unknown
        inputs or inputs of the wrong kind, parameters that need other inputs, steps that form a cycle, or the folder of
        a run that was moved, is looked at from another folder than it ran in, or has an override of `run`, `seed` or
        `vars`.
    """
    # `run demo run=demo` is about the recipe when it goes on, too; a run's folder takes no such override.
    path = find_recipe(path, shipped_first=any(_is_of_recipe(override) for override in overrides))
    if path.name != RESOLVED:
        return resolve(read_recipe(path, overrides), name=path.stem, where=str(path))
    folder = path.resolve().parent
    _check_overrides_of_run(overrides, str(path))
    loaded = resolve(read_recipe(path, overrides), name=folder.name, where=str(path))
    if Path(loaded.run).resolve() != folder:
        remedy = f"work in the folder where it ran, or give the recipe or a copy of this file, with run={path.parent}"
        raise ConfigError(f"the run was in {loaded.run}, and not here", where=str(path), remedy=remedy)
    return loaded


def _check_overrides_of_run(overrides: Sequence[str], where: str) -> None:
    """Raise ConfigError for what the steps of a run no longer take from elsewhere: each has its own seed, the values of
    the variables, and inputs in the run's folder."""
    for override in overrides:
        if _is_of_recipe(override):
            what = f"override {override.partition('=')[0]}: the steps of a run have their own values already"
            raise ConfigError(
                what, where=where, remedy="set a step's parameter, STEP.parameter=…, or give the recipe itself"
            )


def _is_of_recipe(override: str) -> bool:
    return re.split("[.=]", override, maxsplit=1)[0] in ("run", "seed", "vars")


def resolve(data: dict[str, Any], *, name: str, where: str) -> Recipe:
    """Check a recipe's mapping and build its steps."""
    run = _address(data.get("run", f"runs/{name}"), "run", where)
    seed, threads, at_once = data.get("seed"), data.get("threads", 2), data.get("steps_at_once", 1)
    if not isinstance(data.get("about", ""), str | None):
        raise ConfigError(f"about is {kind_name(data['about'])}, not text", where=where)
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise ConfigError(f"seed = {seed!r} is not a whole number", where=where)
    for key, number in (("threads", threads), ("steps_at_once", at_once)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ConfigError(f"{key} = {number!r} is not a whole number of at least 1", where=where)
    sections = section(data, "steps", where)
    if not sections:
        raise ConfigError("no steps", where=where, remedy="add a `steps` section")
    engine = parse(
        EngineParams,
        section(data, "engine", where),
        where=f"{where}: engine",
        remedy=f"the keys of `engine` are {', '.join(EngineParams.model_fields)}",
    )
    steps = {step: _step(step, sections, run, seed, where) for step in sections}
    for step in steps.values():
        _check_inputs(step, steps, where)
    ordered = _order(steps, where)
    resolved: dict[str, Any] = {
        "run": run,
        "seed": seed,
        "threads": threads,
        "steps_at_once": at_once,
        "engine": {**engine.model_dump(), "conf": without_secrets(engine.conf)},
        "steps": {
            step.name: {"stage": step.stage.name, "inputs": dict(step.inputs), **step.params.model_dump(mode="json")}
            for step in ordered
        },
    }
    return Recipe(name, run, threads, at_once, engine, tuple(ordered), resolved, tuple(_needs(data, where)))


def _needs(data: Mapping[str, Any], where: str) -> Iterator[tuple[str, str, str]]:
    variables = section(data, "vars", where)
    for name, text in section(data, "needs", where).items():
        if name not in variables:
            raise ConfigError(f'needs: no variable "{name}"{nearest(name, variables)}', where=where)
        yield name, str(variables[name]), str(text)


def _address(value: Any, what: str, where: str, remedy: str = "e.g. run: runs/demo") -> str:
    """A path or URL without its trailing slash."""
    text = value.rstrip("/") if isinstance(value, str) else ""
    if not text.strip() or not text.isprintable():
        shape = shown(value) if isinstance(value, str) else kind_name(value)
        raise ConfigError(f"{what} is {shape}, not a path or a URL", where=where, remedy=remedy)
    if found := _OF_SHELLS.search(text):  # it would become a folder of that name
        name = found[1]
        remedy = f"write ${{{name}}}, add {name} to `vars`, and give vars.{name}=… on the command line"
        if what == "run":
            remedy = f"give run=… on the command line, where the shell replaces ${name}; or {remedy}"
        raise ConfigError(f"{what} is {shown(text)}: recipes do not replace ${name}", where=where, remedy=remedy)
    return text


def _step(name: str, sections: Mapping[str, Any], run: str, seed: int | None, where: str) -> Step:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise ConfigError(f'step name "{name}": use lower-case letters, digits, - and _', where=where)
    if len(name) > LONGEST_NAME:
        what = f'step name "{name[:40]}…" has {len(name)} characters, at most {LONGEST_NAME} fit into folders\' names'
        raise ConfigError(what, where=where)
    if name in KEYS:
        raise ConfigError(f'step name "{name}" is reserved: it is a key of recipes', where=where)
    values = dict(section(sections, name, where))
    stage_name = values.pop("stage", name)
    if not isinstance(stage_name, str):
        raise ConfigError(f"step {name}: stage is {kind_name(stage_name)}, not a stage's name", where=where)
    try:
        stage = load_stage(stage_name)
    except ConfigError as error:
        error.where = f"{where}: step {name}"
        raise
    inputs, parents = {}, []
    for role, named in section(values, "inputs", f"{where}: step {name}").items():
        source = _address(named, f"step {name}: input {role}", where, NAME_ONE).removeprefix(f"{run}/")
        if source in sections:
            parents.append(source)
        elif "/" not in source:
            raise ConfigError(
                f'step {name}: input {role} names an unknown step "{source}"{nearest(source, sections)}',
                where=where,
                remedy=NAME_ONE,
            )
        inputs[role] = f"{run}/{source}" if source in sections else source
    values.pop("inputs", None)
    if seed is not None and "seed" in stage.params.model_fields:
        values.setdefault("seed", seed)
    params = parse(stage.params, values, where=f"{where}: step {name}, stage {stage.name}")
    return Step(name, stage, params, inputs, tuple(parents), f"{run}/{name}")


def _check_inputs(step: Step, steps: Mapping[str, Step], where: str) -> None:
    """Raise ConfigError for roles that are unknown, missing or do not fit the parameters, and for inputs of the wrong
    kind.
    """
    made = {other.output: other for other in steps.values()}
    sources = {role: made[url] for role, url in step.inputs.items() if url in made}
    try:
        check_roles(step.stage, step.inputs)
        step.stage.check(step.params, step.inputs)
        known = {role: (source.stage.name, source.params.model_dump()) for role, source in sources.items()}
        step.stage.check_made(step.params, step.inputs, known)
    except ConfigError as error:
        of_step = error.where in ("", step.name, step.stage.name)
        error.where = f"{where}: step {step.name}" + ("" if of_step else f", {error.where}")
        raise
    for spec in step.stage.inputs:
        source, wanted = sources.get(spec.role), taken_by(spec)
        kind = made_by(source.stage.name, source.params.model_dump()) if source else ""
        if source is None or not kind or not wanted or kind in wanted:
            continue
        others = [other for other in steps.values() if other is not step]
        fit = [other.name for other in others if made_by(other.stage.name, other.params.model_dump()) in wanted]
        raise ConfigError(
            f'step {step.name}: input {spec.role} takes {" or ".join(wanted)}, the step "{source.name}" makes {kind}',
            where=where,
            remedy=f"name one of {', '.join(fit)}" if fit else makers_of(wanted),
        )


def _order(steps: Mapping[str, Step], where: str) -> list[Step]:
    """Steps in the recipe's order, but after all of their parents."""
    ordered: dict[str, Step] = {}
    while len(ordered) < len(steps):
        ready = [s for s in steps.values() if s.name not in ordered and all(p in ordered for p in s.parents)]
        if not ready:
            cycle = " → ".join(_cycle({name: step for name, step in steps.items() if name not in ordered}))
            raise ConfigError(f"steps depend on each other: {cycle}", where=where, remedy="remove one of the inputs")
        ordered[ready[0].name] = ready[0]
    return list(ordered.values())


def _cycle(waiting: Mapping[str, Step]) -> list[str]:
    """A cycle among steps that each read another one of them, in the order in which they would run."""
    path = [next(iter(waiting))]
    while path[-1] not in path[:-1]:
        path.append(next(parent for parent in waiting[path[-1]].parents if parent in waiting))
    return path[path.index(path[-1]) :][::-1]
