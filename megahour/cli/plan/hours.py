"""`megahour plan RECIPE --hours N`: forecasts a recipe's time and cost, at any size and on any machines."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from megahour.clock.pipeline import Forecast, PlannedCluster, Prices, StepForecast, StepLaws
from megahour.core.config import parse
from megahour.core.errors import ConfigError
from megahour.core.output import write_output
from megahour.runner.console import count, duration
from megahour.runner.options import FiniteRange, options_of

if TYPE_CHECKING:
    from megahour.recipes.recipe import Recipe

SHOWN = "step", "shards", "wall", "core hours", "device hours", "written", "read", "requests", "money", "bound by"
UNITS = ("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12), ("PB", 1e15)


def command() -> click.Command:
    """The command, its options made from the model `PlannedCluster`."""
    options: list[click.Parameter] = [
        click.Argument(["recipe"], type=click.Path()),
        click.Argument(["overrides"], nargs=-1, metavar="[KEY=VALUE]..."),
        click.Option(
            ["--hours"], type=FiniteRange(0, min_open=True), required=True, help="Hours of audio to plan for."
        ),
        click.Option(
            ["--of", "source"], default="", help="Step whose audio these hours are. Default: the largest source."
        ),
        click.Option(
            ["--from", "runs"],
            multiple=True,
            metavar="RUN",
            help="(repeatable) Finished runs of the recipe. Default: the recipe's own.",
        ),
        click.Option(
            ["--calibrate"],
            metavar="KEY=V1,V2,…",
            help="First run the recipe with KEY at these values (raw.hours=0.5,1.5), beside the recipe's own run.",
        ),
        click.Option(
            ["--decode-with"],
            metavar="RUN",
            help="A run whose models are as sure as those that you plan: decoding costs as much per hour as there.",
        ),
        click.Option(["--constants"], type=click.Path(), help="A file written by --save, instead of runs."),
        click.Option(["--save"], type=click.Path(), help="Write the constants to this file, to edit or to reuse."),
        click.Option(
            ["--prices"], type=click.Path(), help="YAML file of prices: core_hour, device_hour, spot_core_hour …"
        ),
        *options_of(PlannedCluster).values(),
        click.Option(["--json"], is_flag=True, help="Print JSON, for programs."),
    ]
    return click.Command(
        "plan",
        params=options,
        callback=_run,
        help="Predict time, machines, bytes, requests and money of a recipe for N hours of audio, step "
        "by step.\n\n"
        "Constants come from finished runs of the recipe. One run: steps that process audio grow with the hours, and "
        "all others stay constant. Two runs of different sizes (--from twice, or --calibrate): the growth of each step "
        "is measured.\n\n"
        f"The keys of --prices are {', '.join(Prices.model_fields)}.",
    )


def _run(
    *, recipe: str, overrides: tuple[str, ...], hours: float, source: str, runs: tuple[str, ...], calibrate: str | None,
    decode_with: str | None, constants: str | None, save: str | None, prices: str | None, json: bool, **cluster: Any,
) -> None:  # fmt: skip
    from megahour.clock.pipeline import forecast

    where = parse(PlannedCluster, {key: value for key, value in cluster.items() if value is not None}, where="plan")
    costs = read_prices(prices)
    if calibrate:
        runs = (*runs, *_calibrated(recipe, overrides, calibrate))
    known = _constants(recipe, overrides, source, runs, constants)
    if decode_with:
        from megahour.cli.plan.finished import measurements
        from megahour.clock.measured import with_searches_of

        decoded = measurements(_recipe_of(decode_with, recipe, overrides))
        known = known._replace(steps=with_searches_of(known.steps, decoded))
    if save:
        save_constants(save, known.steps)
    made = forecast(known.steps, hours, where, costs)
    if json:
        click.echo(_as_json(made))
        return
    _show(made, where)
    _say(made, known, priced=prices is not None)


def read_prices(path: str | None) -> Prices:
    """Read a file of prices. Raises ConfigError for an unknown key."""
    from megahour.core.strict_yaml import read_mapping

    if path is None:
        return Prices.model_validate({})
    remedy = f"the keys are {', '.join(Prices.model_fields)}"
    return parse(Prices, read_mapping(path, "file of prices", remedy), where=path, remedy=remedy)


def _calibrated(path: str, overrides: Sequence[str], calibrate: str) -> list[str]:
    """Run the recipe at each value of a key, unless it is finished; returns the runs."""
    from megahour.cli.session import RunSession
    from megahour.recipes.recipe import load_recipe

    key, _, values = calibrate.partition("=")
    sizes = [value.strip() for value in values.split(",") if value.strip()]
    if not key or len(set(sizes)) < 2:
        raise ConfigError(f"--calibrate {calibrate}", remedy="give a key and several values: raw.hours=0.5,1.5")
    if _is_run(path):
        what, remedy = "a run's folder has its steps at one size only", "give the recipe itself"
        raise ConfigError(f"--calibrate {calibrate}: {what}", where=path, remedy=remedy)
    home = load_recipe(path, overrides).run
    runs = [f"{home}-calibration/{key}={size}" for size in sizes]
    for size, run in zip(sizes, runs, strict=True):
        words = (*overrides, f"{key}={size}", f"run={run}")
        RunSession(load_recipe(path, words), (path, *words)).run()
    return runs


def _recipe_of(run: str, path: str, overrides: Sequence[str]) -> Recipe:
    """The recipe as `run` has made it: a run's folder in place of the recipe cannot be moved to another one."""
    from megahour.recipes.recipe import load_recipe

    return load_recipe(run, overrides) if _is_run(path) else load_recipe(path, (*overrides, f"run={run}"))


def _is_run(path: str) -> bool:
    from megahour.core.store import RESOLVED
    from megahour.recipes.shipped import find_recipe

    return find_recipe(path).name == RESOLVED


class _Known(NamedTuple):
    """Laws of the steps, and from what: hours of the measured runs, steps that not all runs have finished, and steps
    that a run measured with too few tasks (`measured_alone`)."""

    steps: list[StepLaws]
    sizes: Sequence[float] = ()
    missing: Sequence[str] = ()
    alone: Sequence[str] = ()


def _constants(path: str, overrides: Sequence[str], source: str, runs: Sequence[str], constants: str | None) -> _Known:
    from megahour.cli.plan.finished import measurements
    from megahour.clock.measured import laws, measured_alone, source_of_hours

    if constants:
        return _Known(read_constants(constants))
    from megahour.recipes.recipe import load_recipe

    recipes = [_recipe_of(run, path, overrides) for run in runs] or [load_recipe(path, overrides)]
    tables = [measurements(recipe) for recipe in recipes]
    for recipe, table in zip(recipes, tables, strict=True):
        if not table:
            remedy = f"megahour run {path} first, or --calibrate KEY=V1,V2, or --constants FILE"
            raise ConfigError("no step is finished", where=recipe.run, remedy=remedy)
    known = laws(tables, source)
    name = source_of_hours(tables[0], source)
    sizes = [next(each.hours for each in table if each.name == name) for table in tables]
    names = {step.name for step in known}
    missing = [step.name for step in recipes[0].steps if step.name not in names]
    return _Known(known, sizes, missing, measured_alone(tables))


def save_constants(path: str, steps: Sequence[StepLaws]) -> None:
    """Write a file for `--constants`."""
    from megahour.clock.constants import to_json

    write_output(path, to_json(steps))


def read_constants(path: str) -> list[StepLaws]:
    """Read a file for `--constants`. Raises ConfigError: it cannot be read, or is not such a file."""
    from megahour.clock.constants import from_json

    try:
        return from_json(Path(path).read_text("utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"it cannot be read: {error}", where=path) from None


def _show(made: Forecast, cluster: PlannedCluster) -> None:
    from rich.table import Table

    from megahour.runner.console import output_console

    on = count(cluster.cores, "core") + (f", {count(cluster.devices, 'device')}" if cluster.devices else "")
    shown = Table(*SHOWN, title=f"{made.hours:,.6g} h of audio on {on}", title_justify="left")
    for step in made.steps:
        shown.add_row(*_row(step))
    shown.add_section()
    total = [sum(getattr(step, name) for step in made.steps) for name in ("written_bytes", "read_bytes", "requests")]
    core, device = (sum(getattr(step, name) for step in made.steps) for name in ("core_hours", "device_hours"))
    sums = [f"{core:,.1f}", f"{device:,.1f}", size_text(total[0]), size_text(total[1]), f"{total[2]:,.0f}"]
    shown.add_row("all", "", _wall(made.wall_s, made.wall_range_s), *sums, f"{made.money:,.2f}", made.bottleneck.name)
    output_console().print(shown)


def _row(step: StepForecast) -> list[str]:
    numbers = [f"{step.core_hours:,.1f}", f"{step.device_hours:,.1f}", size_text(step.written_bytes)]
    numbers += [size_text(step.read_bytes), f"{step.requests:,.0f}", f"{step.money:,.2f}", step.bound]
    return [step.name, f"{step.shards:,}", _wall(step.wall_s, step.wall_range_s), *numbers]


def _wall(middle_s: float, range_s: tuple[float, float]) -> str:
    """A time, and its range where there is one."""
    least, most = (duration(seconds) for seconds in range_s)
    return duration(middle_s) + f" ({least} … {most})" * (least != most)


def size_text(size: float) -> str:
    """Bytes in a suitable unit."""
    name, unit = max((pair for pair in UNITS if pair[1] <= max(size, 1)), key=lambda pair: pair[1])
    return f"{size / unit:.3g} {name}"


def _say(made: Forecast, known: _Known, *, priced: bool) -> None:
    steps, sizes = known.steps, known.sizes
    slow = made.bottleneck
    share = slow.wall_s / made.wall_s if made.wall_s else 0.0
    click.echo(f"Bottleneck: {slow.name}, {share:.0%} of the time, bound by {slow.bound}")
    if priced:
        unit = f" {made.currency}".rstrip()
        each = made.money / made.hours
        click.echo(f"On demand {made.money:,.2f}{unit}, {each:.4g} per hour of audio; store {made.store_money:,.2f}")
        if made.spot_money is not None:
            longer = made.spot_wall_s / made.wall_s if made.wall_s else 1.0
            lost = "" if math.isfinite(longer) else ": shards or checkpoints are too long for such machines"
            click.echo(f"Spot {made.spot_money:,.2f}{unit}, {longer:.3f} times as long because of lost work{lost}")
    if sizes:
        text = " and ".join(f"{size:.3g} h" for size in sorted(sizes))
        fit = f", fitted within {max(step.residual for step in steps):.0%}" if len(sizes) > 1 else ""
        one = "; a second run of another size would separate fixed costs from those per hour" if len(sizes) == 1 else ""
        click.echo(f"Constants: from runs of {text}{fit}{one}")
    if searches := [step.name for step in steps if step.search]:
        click.echo(
            f"No law for {', '.join(searches)}: a search takes as long as its model is unsure. The range is from cost "
            "that falls as the hours grow to the most per hour of the measured runs. --decode-with RUN takes the cost "
            "of a run whose models are as sure as those that you plan; a search with min_active equal to max_active "
            "has a law, and so has one that had the same model in all of several runs"
        )
    if known.alone:
        click.echo(
            f"Measured with fewer tasks than workers: {', '.join(known.alone)}. They did not fill the batches of their "
            "model, and cost more per hour: plan from larger runs, or from runs with smaller shards"
        )
    if known.missing:
        click.echo(f"Left out, not finished in all runs: {', '.join(known.missing)}")


def _as_json(made: Forecast) -> str:
    rows = [_finite(vars(step)) for step in made.steps]
    sums = {key: getattr(made, key) for key in ("hours", "wall_s", "money", "store_money", "spot_money", "spot_wall_s")}
    sums["wall_range_s"] = made.wall_range_s
    return json.dumps({**_finite(sums), "bottleneck": made.bottleneck.name, "steps": rows}, indent=1)


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values.items()
    }
