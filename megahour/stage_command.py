"""A stage's command-line options and reference page, both made from its pydantic model."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import click
import yaml
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from megahour.core.config import parse
from megahour.core.stage import Stage
from megahour.recipe import EngineParams, load_stage
from megahour.stage_table import STAGES

SCALARS: dict[Any, Any] = {int: click.INT, float: click.FLOAT, str: click.STRING}


def stage_command(name: str) -> click.Command:
    """`megahour STAGE --ROLE URL … --out URL [--PARAMETER VALUE …]`."""
    stage = load_stage(name)
    options: list[click.Parameter] = [
        click.Option(
            [f"--{spec.role.replace('_', '-')}", f"input__{spec.role}"],
            required=not spec.optional,
            metavar="URL",
            help="input artifact" + (" (optional)" if spec.optional else ""),
        )
        for spec in stage.inputs
    ]
    options.append(click.Option(["--out", "run__out"], required=True, metavar="URL", help="output artifact"))
    options += [option(key, info) for key, info in stage.params.model_fields.items()]
    options += [
        click.Option(["--engine", "engine__kind"], type=click.Choice(["local", "spark"]), default="local"),
        click.Option(["--workers", "engine__workers"], type=click.INT, default=0, help="0 = one per core"),
        click.Option(["--master", "engine__master"], default="local[*]", help="Spark master URL"),
        click.Option(["--cores", "run__threads"], type=click.INT, default=2, help="threads of a training stage"),
    ]

    if type(stage).accelerator is not Stage.accelerator:
        fields = EngineParams.model_fields
        devices, host = fields["devices"].description, fields["host"].description
        options += [
            click.Option(["--device", "engine__devices"], multiple=True, help=f"(repeatable) {devices}"),
            click.Option(["--host", "engine__host"], default="127.0.0.1", help=host),
        ]

    def callback(**values: Any) -> None:
        _run(stage, values)

    doc = (stage.params.__doc__ or "").strip()
    return click.Command(name, params=options, callback=callback, help=doc, short_help=STAGES[name][2])


def option(key: str, info: FieldInfo) -> click.Option:
    """A parameter of a pydantic model as an option; what is not given on the command line comes as None."""
    kind = _unwrap(info.annotation)
    default = _default(info)
    text = info.description or ""
    flag = key.replace("_", "-")
    if kind is bool:
        return click.Option([f"--{flag}/--no-{flag}", key], default=None, help=f"{text}  [default: {default}]")
    if get_origin(kind) is Literal:
        choice: Any = click.Choice([str(value) for value in get_args(kind)])
    else:
        choice = SCALARS.get(kind, _Yaml())
    shown = "required" if default is PydanticUndefined else f"default: {yaml_text(default)}"
    return click.Option([f"--{flag}", key], type=choice, default=None, help=f"{text}  [{shown}]")


class ReportCommand(click.Command):
    """`report ARTIFACT …` is the explorer of a data set; `report --ROLE URL …` is the stage about a run."""

    def __init__(self) -> None:
        super().__init__("report", short_help=STAGES["report"][2])

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and not args[0].startswith("-"):
            from megahour.report.command import explorer

            return explorer.make_context(info_name, args, parent, **extra)
        command = stage_command("report")
        command.epilog = "megahour report ARTIFACT makes a page about one data set: megahour report ARTIFACT --help"
        return command.make_context(info_name, args, parent, **extra)


class _Yaml(click.ParamType):  # type: ignore[type-arg]
    """Lists and mappings are given as YAML, e.g. ``--sets "[labelled, test]"``."""

    name = "yaml"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return yaml.safe_load(value) if isinstance(value, str) else value
        except yaml.YAMLError as error:
            self.fail(f"not valid YAML: {error}", param, ctx)


def _run(stage: Stage[Any], values: dict[str, Any]) -> None:
    from megahour.core.store import Artifact
    from megahour.engine.progress import TerminalMonitor
    from megahour.engine.runner import Models, run_stage
    from megahour.run import make_engine, resumable

    given = {key: value for key, value in values.items() if value is not None}
    inputs = {key[7:]: Artifact(given.pop(key)) for key in list(given) if key.startswith("input__")}
    engine_values = {key[8:]: given.pop(key) for key in list(given) if key.startswith("engine__")}
    threads, out = given.pop("run__threads"), given.pop("run__out")
    params = parse(stage.params, given, where=f"stage {stage.name}")
    work = Path(out).parent / ".work" if "://" not in out else None
    chosen = EngineParams(**engine_values)
    options = {"work": work, "threads": threads, "monitor": TerminalMonitor()}
    with resumable(out), make_engine(chosen) as engine:
        models = Models(chosen.devices, chosen.host)
        manifest = run_stage(stage, params, inputs, Artifact(out), engine, models=models, **options)
    click.echo(f"{out}: {manifest.shards} shards, {manifest.counts.kept:,} records kept")


def reference() -> str:
    """Markdown reference of all stages."""
    lines = [
        "# Stages",
        "",
        "Made from the parameter models by `make docs`; do not edit. Each stage runs in a recipe step or as",
        "`megahour STAGE --ROLE URL … --out URL --PARAMETER VALUE`.",
        "",
    ]
    for name in STAGES:
        stage = load_stage(name)
        roles = ", ".join(f"`{s.role}`" + (" (optional)" if s.optional else "") for s in stage.inputs) or "none"
        lines += [f"## {name}", "", " ".join((stage.params.__doc__ or "").split()), "", f"Inputs: {roles}.", ""]
        lines += ["| parameter | type | default | |", "| --- | --- | --- | --- |"]
        for key, info in stage.params.model_fields.items():
            default = _default(info)
            shown = "required" if default is PydanticUndefined else f"`{yaml_text(default)}`"
            kind = _type_name(info.annotation).replace("|", "\\|")
            lines.append(f"| `{key}` | {kind} | {shown} | {(info.description or '').replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines)


def _default(info: FieldInfo) -> Any:
    value = info.get_default(call_default_factory=True)
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def yaml_text(value: Any) -> str:
    """A value on one line, as YAML would take it back."""
    text: str = yaml.safe_dump(_plain(value), default_flow_style=True, width=10_000).strip()
    return text.removesuffix("...").strip()


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


def _type_name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(str(value) for value in arguments)
    if origin in (Union, types.UnionType):
        return " | ".join("none" if kind is type(None) else _type_name(kind) for kind in arguments)
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_type_name, arguments))}]"
    return str(getattr(annotation, "__name__", annotation))
