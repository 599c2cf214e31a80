"""Reads a recipe's file, applies the command line's overrides and substitutes variables."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from megahour.core.errors import ConfigError, nearest
from megahour.core.expect import shown
from megahour.core.strict_yaml import kind_name, parse_yaml, read_mapping

KEYS = ("about", "run", "seed", "threads", "steps_at_once", "engine", "vars", "needs", "steps")
LONGEST = 1 << 20  # characters that variables may add to one text
_VARIABLE = re.compile(r"\$\{([\w.-]+)\}")


def read_recipe(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The recipe's mapping, with overrides applied and variables substituted.

    Raises ConfigError: no such file, not YAML, a duplicate key, unknown or wrong top-level keys, an override or a
    variable of an unknown name.
    """
    where = str(path)
    remedy = "give the path of a YAML file with `steps` or of a run, or a name from `megahour recipes`"
    data = read_mapping(path, "recipe", remedy)
    check_names(data, "the recipe", where)
    for key in data:
        if key not in KEYS:
            raise ConfigError(
                f'unknown key "{key}"{nearest(key, KEYS)}', where=where, remedy=f"the keys are {', '.join(KEYS)}"
            )
    if runs := [_split(override)[2] for override in overrides if override.startswith("run=")]:
        _name_own_steps(data, runs[-1].rstrip("/"), where)
    for override in overrides:
        _override(data, override, where)
    variables = _variables(data, where)
    return {key: value if key == "vars" else _substitute(value, variables, where) for key, value in data.items()}


def section(data: Mapping[Any, Any], key: str, where: str) -> dict[str, Any]:
    """The mapping of names at a key; empty if the key is absent."""
    value = data.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"`{key}` is {kind_name(value)}, not a mapping of names to values", where=where)
    check_names(value, f"`{key}`", where)
    return value


def check_names(mapping: Mapping[Any, Any], what: str, where: str) -> None:
    """Raise ConfigError for a key that YAML does not read as text, such as `on` or 3."""
    for key in mapping:
        if not isinstance(key, str):
            raise ConfigError(f'YAML reads a key of {what} as {key!r}, not as text: put it in quotes, "…"', where=where)


def _override(data: dict[str, Any], override: str, where: str) -> None:
    """Apply ``run=…``, ``vars.data=…``, ``engine.workers=4`` or ``STEP.parameter=value`` (the value is YAML)."""
    key, parts, value = _split(override)
    steps = section(data, "steps", where)
    if parts[0] in KEYS and parts[0] != "steps":
        known = section(data, "vars", where) | dict.fromkeys(_VARIABLE.findall(repr(data)))
        if parts[0] == "vars" and len(parts) > 1 and parts[1] not in known:
            raise ConfigError(f'override {key}: the recipe has no variable "{parts[1]}"{nearest(parts[1], known)}')
        _put(data, parts, value, key)
        return
    parts = parts[1:] if parts[0] == "steps" else parts
    if not parts or parts[0] not in steps:
        name = parts[0] if parts else "steps"
        hint = nearest(name, [*steps, *KEYS])
        raise ConfigError(
            f'override {key}: unknown name "{name}"{hint}', remedy=f"name a step, or one of {', '.join(KEYS)}"
        )
    _put(steps, parts, value, key)


def _name_own_steps(data: dict[str, Any], run: str, where: str) -> None:
    """Replace addresses of the recipe's own steps in the run of its file by those in `run`, in parameters, too.

    The resolved recipe of a run has them: with another `run`, its copy would mix old artifacts into the new ones.
    """
    old, steps = f"{str(data.get('run')).rstrip('/')}/", section(data, "steps", where)

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: moved(item) for key, item in value.items()}
        if isinstance(value, list):
            return [moved(item) for item in value]
        inner = value.removeprefix(old) if isinstance(value, str) and value.startswith(old) else ""
        return f"{run}/{inner}" if inner.partition("/")[0] in steps else value

    if steps:
        data["steps"] = moved(steps)


def put(data: dict[str, Any], override: str) -> None:
    """Apply an override such as `engine.workers=4` to a mapping without steps."""
    key, parts, value = _split(override)
    _put(data, parts, value, key)


def _split(override: str) -> tuple[str, list[str], Any]:
    """Split an override into its key, the key's parts, and the value, parsed as YAML."""
    key, equals, text = override.partition("=")
    parts = key.split(".")
    if not equals or not all(parts):
        raise ConfigError(f'override "{override}" is not key=value', remedy="e.g. student.epochs=2")
    if parts[:2] == ["engine", "conf"] and len(parts) > 2:
        parts = ["engine", "conf", ".".join(parts[2:])]  # names of Spark's settings contain dots
    if key == "run" and re.fullmatch(r"[\d_:.]+", text):
        return key, parts, text  # a folder may be named 010
    value = parse_yaml(text, f"override {key}")
    return key, parts, text if key == "run" and not isinstance(value, str) else value


def _put(mapping: dict[str, Any], parts: Sequence[str], value: Any, key: str) -> None:
    """Set a value at a path of names; missing mappings are added, and validated later with all others."""
    for depth, part in enumerate(parts[:-1], 1):
        inner = mapping.get(part)
        if inner is None:
            inner = mapping[part] = {}
        if not isinstance(inner, dict):
            outer = ".".join(parts[:depth])
            raise ConfigError(
                f'override {key}: "{outer}" is {kind_name(inner)}, not a mapping with names',
                remedy=f"set it as a whole: {outer}=…",
            )
        mapping = inner
    mapping[parts[-1]] = value


def _variables(data: Mapping[str, Any], where: str) -> dict[str, str]:
    """The values of `vars`; a value may use the variables above it."""
    variables: dict[str, str] = {}
    for name, value in section(data, "vars", where).items():
        if not isinstance(value, str | int | float | datetime.date):
            raise ConfigError(f'variable "{name}" is {kind_name(value)}, neither text nor a number', where=where)
        variables[name] = str(_substitute(value, variables, where))
    return variables


def _substitute(value: Any, variables: Mapping[str, str], where: str) -> Any:
    """Replace ``${name}`` in strings by the recipe's `vars`."""
    if isinstance(value, dict):
        return {key: _substitute(item, variables, where) for key, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, variables, where) for item in value]
    if not isinstance(value, str):
        return value
    length = 0

    def look_up(match: re.Match[str]) -> str:
        nonlocal length
        if match[1] not in variables:
            hint = nearest(match[1], variables)
            raise ConfigError(f'{shown(value)}: no variable "{match[1]}"{hint}', where=where, remedy="add it to `vars`")
        length += len(variables[match[1]])
        if length > LONGEST:
            what = f"{shown(value)}: its variables stand for more than {LONGEST:,} characters"
            raise ConfigError(what, where=where, remedy="use fewer variables of what contains variables")
        return variables[match[1]]

    return _VARIABLE.sub(look_up, value)
