"""The tables of a recipe's steps that `plan` and `status` print."""

from __future__ import annotations

from collections.abc import Sequence

import click

from megahour.core.store import RESOLVED, Artifact
from megahour.recipes.run import StepPlan
from megahour.recipes.status import counts_of, shards_in_all
from megahour.runner.console import show_table


def show_plan(plans: Sequence[StepPlan]) -> None:
    """Print what each step would do, and how long those that would run took before."""
    marks = {"done": "-", "blocked": "blocked"}
    rows = [
        [str(number), p.step.name, p.step.stage.name, marks.get(p.state, "run"), p.why, _seconds(p.seconds)]
        for number, p in enumerate(plans, 1)
    ]
    show_table(("", "step", "stage", "", "why", "last time"), rows)
    todo = [p for p in plans if p.state not in ("done", "blocked")]
    known = sum(p.seconds or 0.0 for p in todo)
    unknown = sum(p.seconds is None for p in todo)
    blocked = sum(p.state == "blocked" for p in plans)
    facts = [f"{len(todo)} of {len(plans)} steps would run"]
    facts += [f"about {known:.0f} s"] if unknown < len(todo) or not todo else []
    facts += [f"{unknown} of them never timed"] if unknown else []
    facts += [f"{blocked} {'is' if blocked == 1 else 'are'} blocked"] if blocked else []
    click.echo(", ".join(facts))
    _say_absent(plans)


def show_status(plans: Sequence[StepPlan]) -> None:
    """Print how far each step is."""
    rows = []
    for number, p in enumerate(plans, 1):
        counts, total = counts_of(p), shards_in_all(p)
        kept = f"{counts.kept:,} of {counts.came_in:,}" if counts else ""
        shards = f"{p.shards} of {total}" if p.state == "partial" and total is not None else str(p.shards)
        rows.append([str(number), p.step.name, p.state, shards, kept, _seconds(p.seconds), p.step.output])
    show_table(("", "step", "state", "shards", "kept", "seconds", "artifact"), rows)
    for p in plans:
        if p.state in ("damaged", "blocked"):
            click.echo(f"{p.step.name} is {p.state}: {p.why}")
    _say_absent(plans)


def _say_absent(plans: Sequence[StepPlan]) -> None:
    """Say where a run was looked for that is not there: its folder may be relative to another working directory."""
    home = Artifact(plans[0].step.output.rpartition("/")[0])
    if not home.fs.exists(home.path(RESOLVED)):
        place = home.root if "://" not in home.url else home.url
        click.echo(f"No run in {place} so far. If it ran from another folder, work in that one, or add run=FOLDER.")


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"
