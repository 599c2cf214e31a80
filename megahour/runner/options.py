"""Builds command-line options from the fields of pydantic models, so each option is described once."""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from megahour.core.config import descriptions, is_policy
from megahour.core.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
SCALARS: dict[Any, Any] = {int: click.INT, float: click.FLOAT, str: click.STRING}
WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
PLAIN_FLOAT = re.compile(r"-?\d+\.\d+")
PLAIN_WORD = re.compile(r"[a-z]+([-_][a-z]+)*")
YAML_WORDS = {*WORDS, "null"}


class FiniteRange(click.FloatRange):
    """A `click.FloatRange` that refuses `inf`, and `nan`, which is beyond no limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class OptionCommand(click.Command):
    """A command whose ``--audio/--no-audio`` flags also take a value, as other options do: ``--audio false``.

    The error for a word too many names the option that is meant in ``megahour ingest FOLDER``.
    """

    allow_extra_args = True  # until `parse_args` has read them

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        pairs = {p.opts[0]: p.secondary_opts[0] for p in self.params if p.opts and p.secondary_opts}
        super().parse_args(ctx, list(_plain_flags(args, pairs)))
        if ctx.args and not ctx.resilient_parsing:
            hint = f": name it --source {ctx.args[0]}" if not ctx.params.get("source", "none") else ""
            ctx.fail(f"Got unexpected extra argument ({' '.join(ctx.args)}){hint}")
        return ctx.args


def _plain_flags(args: list[str], pairs: dict[str, str]) -> Iterator[str]:
    """Rewrite ``--audio false`` and ``--audio=false`` as ``--no-audio``; only words in `WORDS` count as values."""
    left = args[::-1]
    while left:
        arg = left.pop()
        flag, equals, value = arg.partition("=")
        if arg == "--":
            yield from (arg, *reversed(left))
            return
        if flag not in pairs:
            yield arg
            continue
        if not equals:
            value = left.pop() if left and left[-1].lower() in WORDS else "true"
        if value.lower() not in WORDS:
            raise click.BadParameter(f"{value!r} is not true or false", param_hint=flag)
        yield flag if WORDS[value.lower()] else pairs[flag]


def repeatable(*names: str, metavar: str | None = None, text: str) -> Callable[[F], F]:
    """Decorator: gives a command an option that may be repeated. Its help is `text`, marked as such."""
    return click.option(*names, multiple=True, metavar=metavar, help=f"(repeatable) {text}")


def options(*models: type[BaseModel], but: tuple[str, ...] = ()) -> Callable[[click.Command], click.Command]:
    """Decorator: gives a command an option for each field of `models`, except policy fields and those in `but`."""
    made = {
        key: each
        for model in models
        for key, each in options_of(model).items()
        if key not in but and not is_policy(model.model_fields[key])
    }

    def decorate(command: click.Command) -> click.Command:
        command.params[:0] = made.values()
        return command

    return decorate


def options_of(model: type[BaseModel]) -> dict[str, click.Option]:
    """A click option for each field of a pydantic model; its value is None if the option is not used."""
    texts = descriptions(model)
    return {key: _option(key, info, texts[key]) for key, info in model.model_fields.items()}


def _option(key: str, info: FieldInfo, text: str) -> click.Option:
    kind = _unwrap(info.annotation)
    default = default_of(info)
    flag = key.replace("_", "-")
    if kind is bool:
        return click.Option([f"--{flag}/--no-{flag}", key], default=None, help=f"{text}  [default: {default}]")
    if get_origin(kind) is Literal:
        choice: Any = click.Choice([str(value) for value in get_args(kind)])
    else:
        choice = SCALARS.get(kind) or (_Numbers() if kind in (list[int], list[float]) else _Yaml())
    shown = "required" if default is PydanticUndefined else f"default: {yaml_text(default)}"
    return click.Option([f"--{flag}", key], type=choice, default=None, help=f"{text}  [{shown}]")


class _Yaml(click.ParamType):  # type: ignore[type-arg]
    """Lists and mappings as YAML, e.g. ``--sets "[labelled, test]"``."""

    name = "yaml"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from megahour.core.strict_yaml import parse_yaml

        try:
            return parse_yaml(value, "the value") if isinstance(value, str) else value
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class _Numbers(_Yaml):
    """Comma-separated numbers, such as ``0,0,1``, or a YAML list."""

    name = "n,n,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and "[" not in value:
            return [number for number in re.split(r"[\s,]+", value) if number]  # the model turns them into numbers
        return super().convert(value, param, ctx)


def default_of(info: FieldInfo) -> Any:
    """A field's default as plain data; `PydanticUndefined` for a required field."""
    value = info.get_default(call_default_factory=True)
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def yaml_text(value: Any) -> str:
    """A value as one line of YAML that parses back to it."""
    if (plain := _spelled(value)) is not None:
        return plain
    import yaml

    text: str = yaml.safe_dump(_plain(value), default_flow_style=True, width=10_000).strip()
    return text.removesuffix("...").strip()


def _spelled(value: Any) -> str | None:
    """Values that YAML spells as Python or JSON does; most defaults are such. None: any other. Without the import of
    PyYAML and its emitter a command starts 0.05 s earlier."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and PLAIN_FLOAT.fullmatch(repr(value)):
        return repr(value)
    if isinstance(value, str) and (not value or (PLAIN_WORD.fullmatch(value) and value not in YAML_WORDS)):
        return value or "''"
    if isinstance(value, list) and all(type(item) is int for item in value):
        return json.dumps(value)
    return None


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_none=True)
    return value


def _unwrap(annotation: Any) -> Any:
    """`float | None` → float."""
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        return kinds[0] if len(kinds) == 1 else annotation
    return annotation
