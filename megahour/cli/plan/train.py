"""`megahour plan train`: forecasts training time and cost for each trainer and number of workers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import click

from megahour.clock.machines import Machines
from megahour.core.errors import ConfigError, nearest
from megahour.core.output import write_output
from megahour.runner.options import OptionCommand, options_of

MOST_WORKERS = 1_000_000
SHOWN = "trainer", "block", "step", "speed-up", "sent per step", "hours", "cost", "accuracy", ""


def command() -> click.Command:
    """The command, its options made from the model `Machines`."""
    options: list[click.Parameter] = [
        click.Option(
            ["--workers", "plan__workers"], default="1,8,16,32,64,128", help="Numbers of workers, separated by commas."
        ),
        click.Option(
            ["--steps", "plan__steps"], type=click.IntRange(1), default=100_000, help="Mini-batches over all workers."
        ),
        click.Option(["--machines", "plan__file"], type=click.Path(exists=True), help="A file written by --calibrate."),
        click.Option(
            ["--calibrate", "plan__calibrate"], metavar="FILE", help="First measure this machine and write FILE."
        ),
        click.Option(
            ["--check", "plan__check"],
            is_flag=True,
            help="Only compare the predictions with published figures, cell by cell.",
        ),
    ]
    options += options_of(Machines).values()
    return OptionCommand(
        "train",
        params=options,
        callback=_run,
        help="Predict step time, speed-up, bytes, hours and cost of every trainer with N workers, and "
        "recommend one.\n\n"
        "Constants come from --machines FILE or from the options, which take precedence. On several machines, measure "
        "them with torchrun … -m megahour.clock.calibrate FILE.",
    )


def _run(**values: Any) -> None:
    own = {key[6:]: values.pop(key) for key in list(values) if key.startswith("plan__")}
    if own["check"]:
        _check()
        return
    workers = _numbers(own["workers"])
    given = {key: value for key, value in values.items() if value is not None}
    if own["calibrate"]:
        _measure(Path(own["calibrate"]), given)
        own["file"] = own["calibrate"]
    _predict(_machines(own["file"], given), workers, own["steps"])


def _measure(path: Path, given: dict[str, Any]) -> None:
    """Write the constants that `calibrate` measures to `path`, after validating the given options."""
    from megahour.clock.calibrate import calibrate_here

    _machines(None, {"parameters": 1, "step_s": 1.0, **given})
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ConfigError("not a writable file", where=str(path), remedy="give a file in an existing folder")
    try:
        measured = calibrate_here(given.get("parameters"))
    except subprocess.CalledProcessError as error:
        raise ConfigError(
            f"the workers of the measurement failed: {error}", remedy="see their messages above"
        ) from None
    write_output(path, json.dumps(measured, indent=1) + "\n")


def _machines(path: str | None, given: dict[str, Any]) -> Machines:
    from pydantic import ValidationError

    try:
        values = json.loads(Path(path).read_text("utf-8")) if path else {}
    except (ValueError, OSError, RecursionError) as error:
        raise ConfigError(f"not a file of constants: {error}", where=str(path)) from None
    if not isinstance(values, dict):
        raise ConfigError("not a JSON object of constants", where=str(path))
    if unknown := [key for key in values if key not in Machines.model_fields]:
        raise ConfigError(
            f'unknown constant "{unknown[0]}"{nearest(unknown[0], Machines.model_fields)}', where=path or ""
        )
    try:
        return Machines(**{**values, **given})
    except ValidationError as error:
        problems = (f"--{str(p['loc'][0]).replace('_', '-')}: {p['msg']}" for p in error.errors())
        raise ConfigError(
            "; ".join(problems), where=path or "plan train", remedy="give it, or measure: --calibrate FILE"
        ) from None


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(1 <= number <= MOST_WORKERS for number in numbers):
        raise ConfigError(f"--workers {text}", remedy=f"give numbers from 1 to {MOST_WORKERS:,}, such as 8,16,64")
    return numbers


def _predict(machines: Machines, workers: list[int], steps: int) -> None:
    from rich.table import Table

    from megahour.clock.advise import table
    from megahour.runner.console import output_console

    for row in table(workers, machines, steps):
        best = row[0]
        shown = Table(*SHOWN, title=f"{best.workers} workers", title_justify="left")
        for p in row:
            block = str(p.block) if p.block > 1 else ""
            sent, hours = f"{p.sent_bytes / 1e6:,.2f} MB", f"{p.hours:,.2f}"
            shown.add_row(
                p.trainer,
                block,
                f"{p.step_s * 1e3:,.1f} ms",
                f"{p.speedup:.2f}",
                sent,
                hours,
                f"{p.cost:,.2f}",
                p.accuracy,
                p.warning,
            )
        output_console().print(shown)
        block = f" with blocks of {best.block}" if best.block > 1 else ""
        warning = f" ({best.warning})" if best.warning else ""
        click.echo(f"{best.workers} workers: {best.trainer}{block}, {best.speedup:.1f} times one worker{warning}\n")


def _span(span: tuple[float, float] | None) -> str:
    """A range, or one number if both ends round to the same."""
    low, high = (f"{value:.2f}" for value in span or (0.0, 0.0))
    return low if low == high else f"{low} to {high}"


def _check() -> None:
    """Print the clock's figures beside published ones, marking points that were used to fit it."""
    from rich.table import Table

    from megahour.clock.fit import extrapolated, ibm, table_one
    from megahour.runner.console import output_console

    terms, residuals = table_one()
    shown = Table("trainer", "workers", "published", "clock", "error", "held out", "error", title="Table I, speed-up")
    for r in residuals:
        held_out = ("(fits F₀ alone)", "") if r.held_out is None else (_span(r.span), f"{r.held_out_error:+.1%}")
        values = (f"{r.cell.speedup:.2f}", f"{r.fitted:.2f}", f"{r.fitted_error:+.1%}")
        shown.add_row(r.cell.trainer, str(r.cell.workers), *values, *held_out)
    output_console().print(shown)
    click.echo(
        f"c = {terms.contention:.3f}, u = {terms.spread:.3f}, s = {terms.jitter:.3f}, v = {terms.dense_link:.2f}, "
        f"g = {terms.message:.4f}, F₀ = {terms.knee_flows:.0f}: six constants, nine cells. A range covers equally good "
        "fits to the other cells; the error is that of one of these fits\n"
    )
    shown = Table("trainer", "workers", "published", "clock", "error", title="From at most 16 workers, all equal fits")
    for e in extrapolated():
        low, high = e.errors
        shown.add_row(
            e.cell.trainer, str(e.cell.workers), f"{e.cell.speedup:.2f}", _span(e.span), f"{low:+.0%} to {high:+.0%}"
        )
    output_console().print(shown)
    shown = Table("workers", "published", "clock", "error", "", title="IBM, hours (H-ADPSGD and its predecessor)")
    for h in ibm():
        note = "fitted to this point" if h.fitted else "held out"
        shown.add_row(
            str(h.workers), f"{h.published}", f"{h.predicted:.1f}", f"{h.predicted / h.published - 1:+.1%}", note
        )
    output_console().print(shown)
