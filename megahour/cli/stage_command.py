"""Builds a stage's command and its reference page from its pydantic model."""

from __future__ import annotations

import shlex
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from megahour.cli.metrics import monitor_of, options_of_metrics, watching
from megahour.cli.reference_tables import side_reference, table_reference
from megahour.core.config import descriptions, parse
from megahour.core.errors import ConfigError, DamagedError
from megahour.core.filesystems import work_beside
from megahour.core.stage import Stage
from megahour.recipes.recipe import EngineParams, load_stage
from megahour.recipes.stage_table import NEXT, NEXT_OF_CLIPS, STAGES
from megahour.runner import log
from megahour.runner.console import count
from megahour.runner.options import OptionCommand, default_of, options_of, yaml_text

if TYPE_CHECKING:
    from megahour.core.receipts import Manifest
    from megahour.core.store import Artifact
    from megahour.metrics.run import RunBoard


CLIP_S = 15.0  # the longest utterance that `cut` keeps by default


def stage_command(name: str) -> click.Command:
    """`megahour STAGE --ROLE URL … --out URL [--PARAMETER VALUE …]`."""
    stage = load_stage(name)
    options: list[click.Parameter] = [
        click.Option(
            [f"--{spec.role.replace('_', '-')}", f"input__{spec.role}"],
            required=not spec.optional,
            metavar="URL",
            help="Input artifact" + (" (optional)." if spec.optional else "."),
        )
        for spec in stage.inputs
    ]
    options.append(click.Option(["--out", "run__out"], required=True, metavar="URL", help="Output artifact."))
    options += options_of(stage.params).values()
    taken = {key.replace("_", "-") for key in stage.params.model_fields}
    more = [*_run_options(stage), *log.options(), *options_of_metrics()]
    options += [each for each in more if each.opts[0][2:] not in taken]

    def callback(**values: Any) -> None:
        log.begin_by(values)
        with watching(values) as board:
            _run(stage, values, board)

    doc = (stage.params.__doc__ or "").strip()
    return OptionCommand(name, params=options, callback=callback, help=doc, short_help=STAGES[name][1])


def _run_options(stage: Stage[Any]) -> list[click.Option]:
    """Options for the engine. A stage's parameter of the same name takes precedence: `train` has `workers`."""
    texts = descriptions(EngineParams)
    options = [
        click.Option(["--engine", "engine__kind"], type=click.Choice(["local", "spark", "ray"]), default="local"),
        click.Option(
            ["--workers", "engine__workers"],
            type=click.INT,
            default=0,
            help="Worker processes of the local engine. 0: one per core.",
        ),
        click.Option(["--master", "engine__master"], default="local[*]", help=texts["master"]),
        click.Option(
            ["--conf", "engine__conf"], multiple=True, metavar="NAME=VALUE", help="(repeatable) A Spark setting."
        ),
        click.Option(["--cores", "run__threads"], type=click.INT, default=2, help="Threads of a training stage."),
    ]
    if type(stage).accelerator is not Stage.accelerator:
        options += [
            click.Option(["--device", "engine__devices"], multiple=True, help=f"(repeatable) {texts['devices']}"),
            click.Option(["--host", "engine__host"], default="127.0.0.1", help=texts["host"]),
            click.Option(["--services", "engine__services"], default="", help=texts["services"]),
            click.Option(["--tls", "engine__tls"], default="", help=texts["tls"]),
            click.Option(["--mutual", "engine__mutual"], is_flag=True, help=texts["mutual"]),
        ]
    return options


class ReportCommand(click.Command):
    """`report ARTIFACT …` opens the explorer of a data set; `report --ROLE URL …` runs the stage on a run."""

    def __init__(self) -> None:
        super().__init__("report", short_help=STAGES["report"][1])

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and not args[0].startswith("-"):
            from megahour.report.command import explorer

            return explorer.make_context(info_name, args, parent, **extra)
        command = stage_command("report")
        command.epilog = "megahour report ARTIFACT makes a page about one data set: megahour report ARTIFACT --help"
        return command.make_context(info_name, args, parent, **extra)


def _run(stage: Stage[Any], values: dict[str, Any], board: RunBoard | None) -> None:
    from megahour.cli.session import tables_of
    from megahour.core.store import Artifact
    from megahour.recipes.run import difference, resumable
    from megahour.recipes.steps import make_engine, models_of
    from megahour.runner.runner import run_stage

    given = {key: value for key, value in values.items() if value is not None}
    inputs = {key[7:]: Artifact(given.pop(key)) for key in list(given) if key.startswith("input__")}
    engine_values = {key[8:]: given.pop(key) for key in list(given) if key.startswith("engine__")}
    threads, out = given.pop("run__threads", 2), given.pop("run__out")
    params = parse(stage.params, given, where=f"stage {stage.name}")
    work = work_beside(out)
    chosen = parse(EngineParams, engine_values, where="the engine", remedy=f"see `megahour {stage.name} --help`")
    monitor = monitor_of(board)
    output = Artifact(out)

    def replacing(made: Manifest) -> None:
        changed = difference(stage, params, made, inputs)
        log.LOG.warning("%s was finished, and is made again: %s", output.url, changed)

    options = {"work": work, "threads": threads, "monitor": monitor, "replacing": replacing}
    _check_output(stage, output, inputs)
    with resumable(out, monitor.kept), make_engine(chosen) as engine:
        models = models_of(chosen)
        manifest = run_stage(stage, params, inputs, output, engine, models=models, **options)
    for text in () if log.quiet() else tables_of([output]):
        click.echo(text)
    summary = f"{out}: {count(manifest.shards, 'shard')}, {manifest.counts.kept:,} records kept"
    log.say_last(summary, facts={"path": out, "shards": manifest.shards, "kept": manifest.counts.kept})
    log.say_next(_next(stage, params, out, inputs, manifest.summary))


def _check_output(stage: Stage[Any], output: Artifact, inputs: Mapping[str, Artifact]) -> None:
    """Raise ConfigError for an output that is an input or another stage's artifact: it would be removed."""
    for role, artifact in inputs.items():
        if artifact.fs == output.fs and artifact.root == output.root:
            raise ConfigError(f"the output is the input {role}", where=output.url, remedy="choose another output")
    made = ""
    with suppress(DamagedError):
        made = output.manifest.stage if output.complete else ""
    if made not in ("", stage.name):
        what = f"a finished artifact of `{made}`, which `{stage.name}` would remove"
        raise ConfigError(what, where=output.url, remedy="choose another output, or remove this one first")


def _next(
    stage: Stage[Any], params: Any, out: str, inputs: Mapping[str, Any], summary: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """The likely next command, with known inputs filled in and unknown required ones in capitals."""
    if getattr(params, "kind", "") == "voice":
        yield "speak with it", shlex.join(["megahour", "say", "TEXT", "--voice", out])
        return
    if getattr(params, "kind", "") == "vocoder":
        yield "speak with it", shlex.join(["megahour", "say", "TEXT", "--voice", "VOICE", "--vocoder", out])
        return
    model = inputs.get("model")
    if stage.name == "graph" and model is not None and model.manifest.stage == "import-aligner":
        # It reads audio, where `decode` has features.
        yield "recognise a file", shlex.join(["megahour", "transcribe", "FILE", "--model", model.url, "--graph", out])
        return
    finished = "ingest" if getattr(params, "kind", "") == "recordings" else stage.name
    if finished not in NEXT:
        return
    command, role = NEXT_OF_CLIPS if finished == "ingest" and _are_clips(summary) else NEXT[finished]
    following, *options = command.split()
    known = {name: artifact.url for name, artifact in inputs.items()} | {role: out}
    words = ["megahour", following]
    for spec in load_stage(following).inputs:
        # Other inputs of this stage may not fit. References of `score` are those of the features that were decoded.
        if spec.role == role or not spec.optional or (following, spec.role) == ("score", "features"):
            words += [f"--{spec.role.replace('_', '-')}", known.get(spec.role, spec.role.upper())]
    if following in ("score", "pseudo-label") and (sets := getattr(params, "sets", None)) is not None:
        usual = default_of(load_stage(following).params.model_fields["sets"])
        words += ["--sets", yaml_text(sets)] * (sets != usual)  # those that have hypotheses
    folder, slash, _ = out.rstrip("/").rpartition("/")  # shells complete folders with a slash
    yield STAGES[following][1].rstrip("."), shlex.join([*words, *options, "--out", f"{folder}{slash}{following}"])


def _are_clips(summary: Mapping[str, Any]) -> bool:
    """Whether recordings are as short as utterances, with one text each, as in LJ Speech and Common Voice."""
    recordings, seconds = summary.get("recordings", 0), 3600 * summary.get("hours", 0)
    return bool(0 < summary.get("cues", 0) <= recordings and seconds <= CLIP_S * recordings)


def reference() -> str:
    """Markdown reference of all stages and of the tables that they exchange."""
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
        lines += [f"## {name}", "", _summary(stage.params), "", f"Inputs: {roles}.", "", *_table_of(stage.params)]
        if name == "train":
            lines += _trainers()
    return "\n".join([*lines, *table_reference(), *side_reference()])


def _summary(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())


def _table_of(model: type[BaseModel]) -> list[str]:
    lines, texts = ["| parameter | type | default | |", "| --- | --- | --- | --- |"], descriptions(model)
    for key, info in model.model_fields.items():
        default = default_of(info)
        shown = "required" if default is PydanticUndefined else f"`{yaml_text(default)}`"
        kind = _type_name(info.annotation).replace("|", "\\|")
        lines.append(f"| `{key}` | {kind} | {shown} | {texts[key].replace('|', chr(92) + '|')} |")
    return [*lines, ""]


def _trainers() -> list[str]:
    from megahour.features.params import WaveformParams
    from megahour.learn.machine_params import CHOICES
    from megahour.learn.options import CRITERIA, OPTIMISERS, Parallel, SpeechScoreOptions
    from megahour.sync.params import TRAINERS

    lines = ["`parallel`:", "", _summary(Parallel), "", *_table_of(Parallel)]
    lines += ["`waveform`:", "", _summary(WaveformParams), "", *_table_of(WaveformParams)]
    lines += ["`score_speech`:", "", _summary(SpeechScoreOptions), "", *_table_of(SpeechScoreOptions)]
    lines += ["`trainer_options` of each trainer (`clip_norm` is the parameter `clip`):", ""]
    for name in CHOICES:
        lines += [f"### trainer {name}", "", _summary(TRAINERS[name]), "", *_table_of(TRAINERS[name])]
    lines += ["`criterion_options` of each criterion (ce has none):", ""]
    for name, goal in CRITERIA.items():
        if goal.model_fields:
            lines += [f"### criterion {name}", "", _summary(goal), "", *_table_of(goal)]
    lines += ["`optimiser_options` of each optimiser:", ""]
    for name, options in OPTIMISERS.items():
        lines += [f"### optimiser {name}", "", _summary(options), "", *_table_of(options)]
    return lines


def _type_name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(str(value) for value in arguments)
    if origin in (Union, types.UnionType):
        return " | ".join("none" if kind is type(None) else _type_name(kind) for kind in arguments)
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_type_name, arguments))}]"
    return str(getattr(annotation, "__name__", annotation))
