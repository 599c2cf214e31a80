"""`megahour lm plan --words N`: forecasts `lm cluster`, at any size, in one process or on any machines.

The laws are those of `megahour plan` (`clock.measured`, `clock.pipeline`), in millions of running words. The size of a
step (running words, distinct words or n-grams) is a function of the text's size, given by `clock.pipeline.Growth`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from megahour.cli.plan.hours import read_constants, read_prices, save_constants, size_text
from megahour.clock.pipeline import Forecast, PlannedCluster, StepForecast, forecast
from megahour.core.config import parse
from megahour.core.errors import ConfigError
from megahour.runner.console import count, duration
from megahour.runner.options import FiniteRange, options_of

if TYPE_CHECKING:
    from megahour.clock.pipeline import StepLaws

WORD_BYTES = 64
"""Memory per distinct word in each task, as in the help of `lm cluster`."""
SHOWN = "step", "shards", "wall", "CPU", "reserved CPU", "written", "read", "memory of a task", "bound by"


def _command() -> click.Command:
    """The command, its options made from the model `PlannedCluster`."""
    options: list[click.Parameter] = [
        click.Option(
            ["--words"], type=FiniteRange(0, min_open=True), required=True,
            help="Running words to plan for, including sentence ends.",
        ),
        click.Option(
            ["--from", "runs"], multiple=True, metavar="DIR",
            help="(repeatable) Finished runs of lm cluster with the same options on texts of different sizes: with "
            "--stages or on Spark to plan a cluster, without to plan one process.",
        ),
        click.Option(["--constants"], type=click.Path(), help="A file written by --save, instead of runs."),
        click.Option(["--save"], type=click.Path(), help="Write the constants to this file, to edit or to reuse."),
        click.Option(["--prices"], type=click.Path(), help="YAML file of prices, as in megahour plan."),
        *(each for key, each in options_of(PlannedCluster).items() if key in ("cores", "store_gb_s")),
        click.Option(["--json"], is_flag=True, help="Print JSON, for programs."),
    ]  # fmt: skip
    return click.Command(
        "plan",
        params=options,
        callback=_run,
        help="Predict time, CPU, reserved CPU, disk, memory and shuffled bytes of `lm cluster` for N running words.\n\n"
        "Constants come from finished runs: give runs of at least two sizes, as far apart as you can. With three, the "
        "growth of n-grams is fitted by a curve. Shuffled bytes are those that later steps read from earlier ones. "
        "Runs in one process are planned for their own --workers.\n\n"
        "megahour lm plan --words 1e9 --cores 500 --from runs/lm-1M --from runs/lm-4M --from runs/lm-16M",
    )


@dataclass(frozen=True)
class PlannedText:
    """A text's running words, and the distinct words and n-grams that the laws predict."""

    words: float
    types: float
    ngrams: float


def _run(
    *, words: float, runs: tuple[str, ...], constants: str | None, save: str | None, prices: str | None, json: bool,
    **cluster: Any,
) -> None:  # fmt: skip
    from megahour.clock.language_models import MILLION, workers_of_one_process

    laws = _laws(runs, constants)
    if workers := workers_of_one_process(laws):
        if cluster.get("cores") not in (None, workers):
            why, remedy = f"the runs had --workers {workers}", "leave --cores out, or give runs with --stages"
            raise ConfigError(f"{cluster['cores']} cores for one process: {why}", where="--cores", remedy=remedy)
        cluster["cores"] = workers
    where = parse(PlannedCluster, {key: value for key, value in cluster.items() if value is not None}, where="lm plan")
    if save:
        save_constants(save, laws)
    made = forecast(laws, words / MILLION, where, read_prices(prices))
    sizes = {step.name: step.own.at(words / MILLION) * MILLION for step in laws}
    text = PlannedText(words, sizes.get("vocabulary", 0.0), sizes.get("arpa", 0.0))
    if workers:
        made = replace(made, steps=[step for step in made.steps if step.stage])
    else:
        each = [replace(step, peak_bytes=step.peak_bytes + WORD_BYTES * text.types) for step in made.steps]
        made = replace(made, steps=each)
    if json:
        click.echo(as_json(made, text, where))
        return
    _show(made, text, where)
    residual = max((step.residual for step in laws), default=0.0)
    click.echo(f"Bottleneck: {made.bottleneck.name}, bound by {made.bottleneck.bound}; laws fit within {residual:.0%}")
    if prices:
        click.echo(f"On demand {made.money:,.2f} {made.currency}".rstrip())


def _laws(runs: Sequence[str], constants: str | None) -> list[StepLaws]:
    from megahour.clock.language_models import SOURCE, measured_run
    from megahour.clock.measured import laws

    if constants:
        return read_constants(constants)
    if len(runs) < 2:
        given = "one run gives no law" if runs else "no runs"
        raise ConfigError(given, where="--from", remedy="give runs of two sizes or more, or --constants")
    made = [measured_run(run) for run in runs]
    if len({steps[-1].stage for steps in made}) > 1:
        remedy = "give runs that were all made with --stages, or none"
        raise ConfigError("runs in stages and in one process", where="--from", remedy=remedy)
    return laws(made, SOURCE, growing=True)


def as_json(made: Forecast, text: PlannedText, cluster: PlannedCluster) -> str:
    """All figures of a plan."""
    steps = [{**vars(step), "reserved_s": step.wall_s * cluster.cores} for step in made.steps]
    sums = {
        key: sum(step[key] for step in steps)
        for key in ("wall_s", "cpu_s", "reserved_s", "written_bytes", "read_bytes")
    }
    peak = max((step.peak_bytes for step in made.steps), default=0.0)
    return json.dumps({**vars(text), **sums, "peak_bytes": peak, "money": made.money, "steps": steps}, indent=1)


def _show(made: Forecast, text: PlannedText, cluster: PlannedCluster) -> None:
    from rich.table import Table

    from megahour.runner.console import output_console

    title = f"{text.words:,.4g} words, {text.types:,.4g} different ones, {text.ngrams:,.4g} n-grams on "
    shown = Table(*SHOWN, title=title + count(cluster.cores, "core"), title_justify="left")
    for step in made.steps:
        shown.add_row(step.name, f"{step.shards:,}", *_row(step, cluster), step.bound)
    shown.add_section()
    wall, cpu, written, read = (
        sum(getattr(step, key) for step in made.steps) for key in ("wall_s", "cpu_s", "written_bytes", "read_bytes")
    )
    peak = max(step.peak_bytes for step in made.steps)
    cells = [duration(wall), duration(cpu), duration(wall * cluster.cores), size_text(written), size_text(read)]
    shown.add_row("all", "", *cells, size_text(peak), made.bottleneck.name)
    output_console().print(shown)


def _row(step: StepForecast, cluster: PlannedCluster) -> list[str]:
    times = [duration(step.wall_s), duration(step.cpu_s), duration(step.wall_s * cluster.cores)]
    return [*times, size_text(step.written_bytes), size_text(step.read_bytes), size_text(step.peak_bytes)]


plan = _command()
