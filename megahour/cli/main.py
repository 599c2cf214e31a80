"""The command line: `megahour run RECIPE`, `status`, `plan`, `verify`, `doctor`, groups, and one command per stage.

A stage's options are built from its pydantic model only when its command is used; nothing heavy is imported before.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

import megahour
from megahour.cli.command_table import COMMANDS
from megahour.cli.metrics import metrics_options, watching
from megahour.core.errors import ConfigError, MegahourError
from megahour.core.stopping import end_by_signals, exit_code, no_more_signals, said, signal_name
from megahour.recipes.stage_table import GROUPS, STAGES
from megahour.runner import log
from megahour.runner.lazy_group import LazyGroup

if TYPE_CHECKING:
    from megahour.recipes.recipe import Recipe
    from megahour.recipes.run import StepPlan


class Commands(LazyGroup):
    """The fixed commands and groups, then a lazily built command for every stage."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *STAGES]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in STAGES:
            return super().get_command(ctx, name)
        from megahour.cli.stage_command import ReportCommand, stage_command

        return ReportCommand() if name == "report" else stage_command(name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:  # commands that can resume handle this themselves
            log.say("stopped", f"{said(stop)}.", {"signal": signal_name(stop)}, level=logging.WARNING)
            ctx.exit(exit_code(stop))

    def summaries(self) -> dict[str, str]:
        return super().summaries() | {name: summary for name, (_, summary) in STAGES.items()}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_commands(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(
            "Stages: steps of recipes, and commands. `megahour STAGE --help` shows inputs and parameters."
        )
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, STAGES[name][1]) for name in names])


@click.group(
    cls=Commands, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(megahour.__version__, prog_name="megahour")
def app() -> None:
    """Turn raw speech into a speech recogniser, from ten minutes on a laptop to a million hours on a cluster."""
    log.begin()


def recipe_arguments(command: Any) -> Any:
    command = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")(command)
    return click.argument("recipe", type=click.Path())(command)


def _steps_of(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of the recipe's steps, for the shell's completion."""
    import yaml

    from megahour.recipes.shipped import find_recipe

    try:
        (path, *_) = ctx.args  # not in `params`: the parser stops at an option without a value
        data = yaml.safe_load(find_recipe(path).read_text("utf-8"))
        return [str(name) for name in data["steps"] if str(name).startswith(incomplete)]
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, ConfigError):
        return []


as_json = click.option("--json", is_flag=True, help="Print JSON, for programs. docs/operations.md describes its keys.")


@app.command("run")
@recipe_arguments
@click.option("--until", default="", shell_complete=_steps_of, help="Run this step and only what it needs.")
@log.logged
@metrics_options
def run_command(recipe: str, overrides: tuple[str, ...], until: str, **metrics: Any) -> None:
    """Run a recipe; finished steps are kept."""
    from megahour.cli.session import RunSession
    from megahour.recipes.recipe import load_recipe

    loaded = load_recipe(recipe, overrides)
    with watching(metrics) as board:
        RunSession(loaded, (recipe, *overrides), until, board).run()


class PlanCommand(click.Command):
    """`plan RECIPE` shows a recipe's steps; `--hours`, `plan train`, `plan chain`, `plan published` are forecasts."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] in (["train"], ["chain"], ["published"]):
            command = import_module(f"megahour.cli.plan.{args[0]}").command()
            return cast(click.Command, command).make_context(f"plan {args[0]}", args[1:], parent, **extra)
        if any(arg.partition("=")[0] == "--hours" for arg in args):
            command = import_module("megahour.cli.plan.hours").command()
            return cast(click.Command, command).make_context("plan", args, parent, **extra)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.NoSuchOption as error:
            command = import_module("megahour.cli.plan.hours").command()
            if any(error.option_name in param.opts for param in command.params):
                raise click.UsageError(f"{error.option_name} goes with --hours N", error.ctx) from None
            raise


@app.command(
    "plan",
    cls=PlanCommand,
    epilog="megahour plan RECIPE --hours N --help: time, machines and money for N hours of audio; "
    "megahour plan train --help: the time of N workers, before they are bought; "
    "megahour plan chain --help: the days of a million hours; megahour plan published: published set-ups, predicted",
)
@recipe_arguments
@as_json
def plan_command(recipe: str, overrides: tuple[str, ...], json: bool) -> None:
    """Show what `run` would do, and how long it took before."""
    from megahour.cli.session import refuse_blocked
    from megahour.cli.step_tables import show_plan

    loaded, plans, shown = _plans(recipe, overrides, json)
    if not shown:
        show_plan(plans)
    refuse_blocked(loaded, plans)


@app.command("status")
@recipe_arguments
@as_json
def status_command(recipe: str, overrides: tuple[str, ...], json: bool) -> None:
    """Show the progress of each step of a recipe."""
    from megahour.cli.step_tables import show_status

    _, plans, shown = _plans(recipe, overrides, json)
    if not shown:
        show_status(plans)


def _plans(recipe: str, overrides: tuple[str, ...], as_json: bool) -> tuple[Recipe, Sequence[StepPlan], bool]:
    """The recipe, the state of each step, and whether it has been printed as JSON."""
    import json

    from megahour.recipes.recipe import load_recipe
    from megahour.recipes.run import plan
    from megahour.recipes.status import overview

    loaded = load_recipe(recipe, overrides)
    plans = plan(loaded)
    if as_json:
        click.echo(json.dumps(overview(loaded, plans), indent=1, ensure_ascii=False))
    return loaded, plans, as_json


@app.command("verify")
@click.argument("target")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--repair", is_flag=True, help="Rebuild the damaged shards, and only those.")
@click.option(
    "--digest", default="", metavar="SHA-256", help="With an exported bundle: the SHA-256 that `export-model` printed."
)
def verify_command(target: str, overrides: tuple[str, ...], repair: bool, digest: str) -> None:
    """Check a run, an artifact or a bundle byte by byte.

    A run is a recipe, or a run's folder. With --repair, damaged shards are rebuilt from the same inputs, and replaced
    if the new ones match their receipts. Inputs are searched for beside the artifact, or named: inputs.ROLE=URL.
    """
    from megahour.cli.verify_targets import verify_bundle, verify_targets
    from megahour.transcribe.bundle import Bundle

    if digest or Bundle.at(target):
        verify_bundle(target, digest)
        return
    problems = verify_targets(target, overrides, repairing=repair)
    for problem in problems:
        click.secho(problem, fg="red", err=True)
    if problems:
        if not repair and any("missing or unfinished" not in problem for problem in problems):
            command = shlex.join(["megahour", "verify", "--repair", target, *overrides])
            click.echo(f"{command} rebuilds the damaged shards, and only those.", err=True)
        sys.exit(1)


@app.command("recipes")
@click.argument("name", default="")
@click.option("--copy", is_flag=True, help="Write the recipe to NAME.yaml in the working directory, to edit.")
def recipes_command(name: str, copy: bool) -> None:
    """List the recipes that come with megahour, or print one."""
    from megahour.recipes import shipped
    from megahour.runner.console import show_table

    if not name:
        show_table(("recipe", "about"), [list(row) for row in shipped.summaries()])
        log.say_next([("run one", "megahour run demo"), ("a copy to edit", "megahour recipes demo --copy")])
    elif copy:
        path = shipped.copy(name, Path())
        click.echo(path)
        log.say_next([("run it", f"megahour run {path}")])
    else:
        click.echo(shipped.find_recipe(name, shipped_first=True).read_text("utf-8"), nl=False)


@app.command("doctor")
def doctor_command() -> None:
    """Show what this machine lacks, and how to install it."""
    from megahour.cli.doctor import examine

    findings = examine()
    for finding in findings:
        mark = "ok     " if finding.ok else ("MISSING" if finding.required else "-      ")
        click.echo(f"{mark} {finding.name:<22} {finding.detail}")
    if any(finding.required and not finding.ok for finding in findings):
        sys.exit(1)


@app.command("docs", hidden=True)
@click.argument("path", type=click.Path())
def docs_command(path: str) -> None:
    """Write the reference page of all stages from their parameter models."""
    from megahour.cli.stage_command import reference
    from megahour.core.output import write_output

    write_output(path, reference())


def _for_users(error: Exception) -> MegahourError | None:
    """The error to print; for TaskFailed its cause, which names artifact and shard. None: a bug of ours."""
    from megahour.core.surroundings import explained
    from megahour.engine.base import TaskFailed

    known = explained(error, resumes=None)  # what can resume explains its errors itself
    cause = known.__cause__ if isinstance(known, TaskFailed) else None
    return cause if isinstance(cause, MegahourError) and cause.where else known


def main() -> None:
    """Entry point: prints errors that a user can fix without a traceback, and handles Ctrl-C and SIGTERM."""
    end_by_signals()
    if sys.stdin is None:  # closed by who started this process: read as empty
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115
    try:
        app()
    except Exception as error:
        if (known := _for_users(error)) is not None:
            log.say("error", str(known), {"kind": type(error).__name__}, level=logging.ERROR)
        else:
            log.LOG.exception("unexpected %s", type(error).__name__)
        sys.exit(1)
    finally:
        no_more_signals()
