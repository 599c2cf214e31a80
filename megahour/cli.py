"""The command line: `megahour run RECIPE`, `status`, `plan`, `verify`, `doctor`, groups, and one command per stage.

A stage's options are made from its pydantic model when its command is asked for; nothing heavy is imported before.
"""

from __future__ import annotations

import errno
import importlib
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import click

import megahour
from megahour.core.errors import MegahourError, nearest
from megahour.stage_table import STAGES

if TYPE_CHECKING:
    from megahour.recipe import Recipe

GROUPS = {
    "lm": ("megahour.lm.commands", "n-gram language models: train, score, info, convert, rescore, combine, prune.")
}
"""Groups of commands by name: the module whose `group` they are, and their one-line summary."""


class Commands(click.Group):
    """The fixed commands and groups, then a lazily built command for every stage."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *GROUPS, *STAGES]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in GROUPS:
            group: click.Command = importlib.import_module(GROUPS[name][0]).group
            return group
        if name in STAGES:
            from megahour.stage_command import ReportCommand, stage_command

            return ReportCommand() if name == "report" else stage_command(name)
        return super().get_command(ctx, name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(f"{error.message}{nearest(args[0], self.list_commands(ctx))}", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            own = [(name, command.get_short_help_str(100)) for name, command in self.commands.items()]
            formatter.write_dl([*own, *((name, summary) for name, (_, summary) in GROUPS.items())])
        with formatter.section("Stages (megahour STAGE --help shows inputs, parameters, types and defaults)"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in STAGES.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(megahour.__version__, prog_name="megahour")
def app() -> None:
    """Piles of raw speech to a speech recogniser, from ten minutes on a laptop to a million hours on a cluster."""


def recipe_arguments(command: Any) -> Any:
    command = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")(command)
    return click.argument("recipe", type=click.Path())(command)


@app.command("run")
@recipe_arguments
@click.option("--until", default="", help="Stop after this step, and run only what it needs.")
def run_command(recipe: str, overrides: tuple[str, ...], until: str) -> None:
    """Run a recipe: what is finished stays, what is missing or changed is made."""
    from megahour.core.store import Artifact
    from megahour.engine.console import output_console
    from megahour.engine.progress import TerminalMonitor, audio_seconds, summary_table
    from megahour.recipe import load_recipe
    from megahour.run import execute, resumable

    loaded = load_recipe(recipe, overrides)
    rows = []
    with resumable(loaded.run):
        for done in execute(loaded, lambda name: TerminalMonitor(step=name), until=until):
            output = Artifact(done.step.output)
            wall_s = output.wall().get("seconds") or done.seconds or 1.0
            speed = sum(map(audio_seconds, output.receipts())) / wall_s
            rows.append((done.step.name, done.manifest, done.seconds, speed))
    output_console().print(summary_table(rows))
    seconds = sum(row[2] or 0.0 for row in rows)
    click.echo(f"{len(rows)} steps, {seconds:.1f} s of work in this session; artifacts are in {loaded.run}")
    _say_results(loaded, {row[0] for row in rows})


def _say_results(recipe: Recipe, steps: Collection[str]) -> None:
    """Print the tables that scoring steps made, and where the report is; of other steps they may be outdated."""
    from megahour.core.store import Artifact

    for step in recipe.steps:
        if step.name not in steps:
            continue
        output = Artifact(step.output)
        for receipt in output.receipts():
            if ".md" in receipt.files:
                click.echo("\n" + output.read_bytes(receipt.shard, ".md").decode())
            if ".html" in receipt.files:
                click.echo(f"Report: {output.url}/shards/{receipt.shard:05d}.html")


class PlanCommand(click.Command):
    """`plan RECIPE` is about a recipe; `plan train` predicts a training's time on N workers."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["train"]:
            from megahour.plan_train import command

            return command().make_context("plan train", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@app.command(
    "plan", cls=PlanCommand, epilog="megahour plan train --help: the time of N workers, before they are bought"
)
@recipe_arguments
def plan_command(recipe: str, overrides: tuple[str, ...]) -> None:
    """What would run, why, and how long it took last time."""
    from megahour.recipe import load_recipe
    from megahour.run import plan

    plans = plan(load_recipe(recipe, overrides))
    rows = [
        [p.step.name, p.step.stage.name, "-" if p.state == "done" else "run", p.why, _seconds(p.seconds)] for p in plans
    ]
    _table(("step", "stage", "", "why", "last time"), rows)
    known = sum(p.seconds or 0.0 for p in plans if p.state != "done")
    todo = [p for p in plans if p.state != "done"]
    unknown = sum(p.seconds is None for p in todo)
    tail = f", {unknown} of them never timed" if unknown else ""
    click.echo(f"{len(todo)} of {len(plans)} steps would run, about {known:.0f} s{tail}")


@app.command("status")
@recipe_arguments
def status_command(recipe: str, overrides: tuple[str, ...]) -> None:
    """Where each step of a recipe stands."""
    from megahour.core.store import Artifact
    from megahour.recipe import load_recipe
    from megahour.run import plan

    rows = []
    for p in plan(load_recipe(recipe, overrides)):
        output = Artifact(p.step.output)
        counts = output.manifest.counts if output.complete else None
        kept = f"{counts.kept:,} of {counts.came_in:,}" if counts else ""
        rows.append([p.step.name, p.state, str(p.shards), kept, _seconds(p.seconds), p.step.output])
    _table(("step", "state", "shards", "kept", "seconds", "artifact"), rows)


@app.command("verify")
@click.argument("target")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def verify_command(target: str, overrides: tuple[str, ...]) -> None:
    """Re-read every file of an artifact, or of all artifacts of a recipe, against its checksum."""
    from megahour.core.store import Artifact
    from megahour.core.verify import verify
    from megahour.recipe import load_recipe

    if target.endswith((".yaml", ".yml")):
        urls = [step.output for step in load_recipe(target, overrides).steps]
    else:
        urls = [target]
    problems = []
    for url in urls:
        artifact = Artifact(url)
        found = verify(artifact) if artifact.complete else [f"{url}: no manifest: missing or unfinished"]
        click.echo(f"{'ok ' if not found else 'BAD'} {url}")
        problems += found
    for problem in problems:
        click.secho(problem, fg="red", err=True)
    if problems:
        click.echo("Delete a damaged artifact and run again; its inputs are untouched.", err=True)
        sys.exit(1)


@app.command("doctor")
def doctor_command() -> None:
    """What this machine has, and what to install for what is missing."""
    from megahour.doctor import examine

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
    from pathlib import Path

    from megahour.stage_command import reference

    Path(path).write_text(reference(), "utf-8")


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _table(headings: tuple[str, ...], rows: list[list[str]]) -> None:
    from rich.table import Table

    from megahour.engine.console import output_console

    table = Table()
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*row)
    output_console().print(table)


def main() -> None:
    """Entry point: errors that a user can mend are printed without a traceback."""
    try:
        app()
    except MegahourError as error:
        message = str(error)
    except Exception as error:
        message = _of_the_surroundings(error)
        if not message:
            raise
    else:
        return
    click.secho(f"error: {message}", fg="red", err=True)
    sys.exit(1)


def _of_the_surroundings(error: Exception) -> str:
    """What a store or the disk refuses, with the remedy; empty for an error of ours."""
    from megahour.core.transfer import is_of_a_store

    if is_of_a_store(error):
        return f"the store cannot be used: {error}\nRemedy: check the address, the credentials and the network"
    if isinstance(error, PermissionError | NotADirectoryError | IsADirectoryError):
        return f"{error.filename or 'a file'}: {error.strerror or error}\nRemedy: choose a place that you may write to"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        name = error.filename or "a disk"
        return f"{name}: {error.strerror}\nRemedy: make room; the same command goes on where it stopped"
    return ""
