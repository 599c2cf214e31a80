"""`megahour plan published`: published set-ups compared with the equations of `plan RECIPE --hours`."""

from __future__ import annotations

import click


def command() -> click.Command:
    """The command; it has no options."""
    return click.Command(
        "published",
        callback=_run,
        help="Predict published set-ups of whole pipelines from their stated constants, and show the difference.",
    )


def _run() -> None:
    from rich.table import Table

    from megahour.clock.set_ups import set_ups
    from megahour.runner.console import output_console

    shown = Table("set-up", "published", "predicted", "difference", "how")
    for row in set_ups():
        values = (f"{value:,.4g} {row.unit}" for value in (row.published, row.found))
        shown.add_row(row.what, *values, f"{row.found / row.published - 1:+.0%}", row.how)
    output_console().print(shown)
