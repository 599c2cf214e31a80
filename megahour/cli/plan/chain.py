"""`megahour plan chain`: forecasts the days of the Amazon paper's pipeline on given machines."""

from __future__ import annotations

from typing import Any

import click
from pydantic import ValidationError

from megahour.clock.chain import DATA_DAYS, PAPERS, TRAINING_DAYS, Chain, gpus_that_explain, parts
from megahour.core.errors import ConfigError
from megahour.runner.options import options_of


def command() -> click.Command:
    """The command, its options made from the model `Chain`."""
    return click.Command(
        "chain",
        params=[*options_of(Chain).values()],
        callback=_run,
        help="Predict the days from raw audio to the student in the chain of the recipe `petabyte`, "
        "from stated constants.\n\n"
        "Without options, the constants are the paper's, and its published days are shown as well.",
    )


def _run(**values: Any) -> None:
    from rich.table import Table

    from megahour.runner.console import output_console

    try:
        chain = Chain(**{key: value for key, value in values.items() if value is not None})
    except ValidationError as error:
        problems = (f"--{str(p['loc'][0]).replace('_', '-')}: {p['msg']}" for p in error.errors())
        raise ConfigError("; ".join(problems), where="plan chain", remedy="see `megahour plan chain --help`") from None
    steps = parts(chain)
    papers = chain == PAPERS
    shown = Table("step", "days", "machines", *(["published", "error"] if papers else []))
    totals = []
    for name, published, data in (("data pipeline", DATA_DAYS, True), ("training", TRAINING_DAYS, False)):
        for part in steps:
            if part.data == data:
                shown.add_row(part.name, f"{part.days:.2f}", part.machines)
        totals.append(sum(part.days for part in steps if part.data == data))
        shown.add_row(name, f"{totals[-1]:.2f}", "", *(_beside(totals[-1], published) if papers else []), style="bold")
    both = _beside(sum(totals), DATA_DAYS + TRAINING_DAYS) if papers else []
    shown.add_row("all", f"{sum(totals):.2f}", "", *both, style="bold")
    output_console().print(shown)
    if papers:
        click.echo(
            f"The paper does not say how many GPUs made the targets: {gpus_that_explain(chain):.0f} instead of "
            f"{chain.target_gpus} would take its {DATA_DAYS} days. `--help` lists the other assumptions"
        )


def _beside(days: float, published: float) -> list[str]:
    return [f"{published:.1f}", f"{days / published - 1:+.0%}"]
