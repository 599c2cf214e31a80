"""`--metrics-port` of `run`, `serve` and each stage: serves a page of metrics while the command runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from megahour.runner import log

if TYPE_CHECKING:
    from megahour.metrics.names import MetricSample
    from megahour.metrics.run import RunBoard
    from megahour.runner.progress import StepPlace, TerminalMonitor

OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "--metrics-port",
        "metrics__port",
        {
            "type": click.IntRange(0, 65535),
            "help": "Serve Prometheus metrics on this port while the command runs. 0: any free port.",
        },
    ),
    (
        "--metrics-host",
        "metrics__host",
        {
            "default": "127.0.0.1",
            "metavar": "ADDRESS",
            "help": "Address to serve metrics on. The page has no password.",
        },
    ),
    (
        "--price-per-core-hour",
        "metrics__price",
        {
            "type": click.FloatRange(0),
            "default": 0.0,
            "help": "Price per core and hour, for the metric of the cost so far.",
        },
    ),
)
Command = TypeVar("Command", bound=Callable[..., Any])


def options_of_metrics() -> list[click.Option]:
    """The metrics options, whose values `watching` takes."""
    return [click.Option([flag, name], show_default=name == "metrics__host", **how) for flag, name, how in OPTIONS]


def metrics_options(command: Command, count: int = len(OPTIONS)) -> Command:
    """Decorator: adds the metrics options to a command's function, or the first `count` of them."""
    decorated: Any = command
    for flag, name, how in reversed(OPTIONS[:count]):
        decorated = click.option(flag, name, **how)(decorated)
    return decorated  # type: ignore[no-any-return]


@contextmanager
def watching(values: dict[str, Any]) -> Iterator[RunBoard | None]:
    """Serve metrics while the block runs, if a port is given; removes the options from `values`.

    Yields the board to which the command's monitors write (`monitor_of`); None, and no imports, without a port.
    """
    port, host, price = (values.pop(name, how.get("default")) for _, name, how in OPTIONS)
    if port is None:
        yield None
        return
    from megahour.metrics.run import RunBoard

    board = RunBoard(price)
    try:
        with page(port, host, {"run": board}):
            yield board
    finally:
        board.close()


@contextmanager
def page(port: int | None, host: str, sources: Mapping[str, Callable[[], Iterator[MetricSample]]]) -> Iterator[None]:
    """Serve metrics of `sources`, of this process's model services and of the GPUs, if a port is given."""
    if port is None:
        yield
        return
    from megahour.metrics.endpoint import serving
    from megahour.metrics.machine import Gpus
    from megahour.metrics.services import services

    gpus = Gpus()
    try:
        with serving(port, {**sources, "services": services, "gpus": gpus}, host=host) as url:
            log.say("metrics", f"metrics: {url}", {"url": url})
            yield
    finally:
        gpus.close()


def monitor_of(board: RunBoard | None, step: str = "", place: StepPlace | None = None) -> TerminalMonitor:
    """The monitor of a step, which also writes to the board if there is one."""
    if board is None:
        from megahour.runner.progress import TerminalMonitor

        return TerminalMonitor(step, place)
    from megahour.metrics.run import MeteredMonitor

    return MeteredMonitor(board, step, place)
