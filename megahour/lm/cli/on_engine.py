"""`megahour lm interpolate` and `prune` with `--engine`: the stages of `lm.sharded`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from megahour.core.errors import ConfigError
from megahour.core.filesystems import work_in
from megahour.lm.cli.command_parts import stoppable
from megahour.runner import log

if TYPE_CHECKING:
    from megahour.core.store import Artifact
    from megahour.engine.base import Engine
    from megahour.lm.params import InterpolateParams, PruneParams
    from megahour.lm.scale.on_engine import Cost

F = TypeVar("F", bound=Callable[..., Any])
KINDS = ("local", "spark")
OPTIONS = ("engine", "master", "workers", "shard_rows")


def engine_options(command: F) -> F:
    """Add the options of OPTIONS to a command, all optional."""
    for option in (
        click.option(
            "--shard-rows", type=click.IntRange(1), default=1 << 20, help="With --engine: n-grams per partition."
        ),
        click.option("--workers", type=click.IntRange(1), default=2, help="With --engine local: number of processes."),
        click.option(
            "--master",
            default="",
            metavar="URL",
            help="With --engine spark: Spark master URL. Default: local[WORKERS].",
        ),
        click.option(
            "--engine",
            type=click.Choice(KINDS),
            default=None,
            help="Compute by stages, in memory bounded by --shard-rows. --out is then a directory for "
            "all steps, and MODEL may be the output of `lm cluster`, `lm interpolate` or `lm prune` with --engine.",
        ),
    ):
        command = option(command)
    return command


def engine_of(kind: str, master: str, workers: int) -> Engine:
    """The engine with this name."""
    if kind == "spark":
        from megahour.engine.spark import SparkEngine

        return SparkEngine(master or f"local[{workers}]")
    from megahour.engine.local import LocalEngine

    return LocalEngine(workers)


def model_of(path: str) -> Artifact | str:
    """The artifact of lines in a directory of steps, else its ARPA file; or a file.

    Raises ConfigError: another directory.
    """
    from megahour.core.store import Artifact

    if not Path(path).is_dir():
        return path
    found = next((made for name in ("lines", "arpa") if (made := Artifact(f"{path}/{name}")).complete), None)
    if found is None:
        remedy = "give an ARPA file, or the --out of lm cluster, lm interpolate --engine or lm prune --engine"
        raise ConfigError("no finished model in this directory", where=path, remedy=remedy)
    return found


def interpolate_on(models: Sequence[str], out: str, p: InterpolateParams, engine: dict[str, Any]) -> None:
    """Interpolate models on an engine, and print their weights."""
    from megahour.lm.sharded.on_engine import mix_on, model_table

    _check_order(models)
    given = [model_of(path) for path in models]
    _run(lambda running, **where: mix_on(running, out, given, p, **where), out, engine, lambda: [model_table(out)])


def prune_on_engine(model: str, out: str, p: PruneParams, engine: dict[str, Any]) -> None:
    """Prune a model on an engine."""
    from megahour.lm.sharded.on_engine import prune_on

    _run(lambda running, **where: prune_on(running, out, model_of(model), p, **where), out, engine, lambda: [])


def _check_order(models: Sequence[str]) -> None:
    """Raises ConfigError: a file comes before a directory."""
    kinds = [Path(path).is_dir() for path in models]
    if kinds != sorted(kinds, reverse=True):
        remedy = "name the directories first, and give weights in the same order"
        raise ConfigError("a file comes before a directory", where=" ".join(models), remedy=remedy)


def _run(
    call: Callable[..., tuple[Artifact, list[Cost]]],
    out: str,
    engine: dict[str, Any],
    tables: Callable[[], list[Any]],
) -> None:
    from megahour.lm.scale.on_engine import cost_table
    from megahour.lm.sharded.params import RangesParams
    from megahour.runner.console import output_console

    ranges = RangesParams.model_validate({"shard_rows": engine["shard_rows"]})
    with stoppable("finished steps stay: the same command resumes"), ExitStack() as stack:
        running = stack.enter_context(engine_of(engine["engine"], engine["master"], engine["workers"]))
        work = work_in(out)
        model, costs = call(running, ranges=ranges, work=work)
    if not log.quiet():
        for table in (*tables(), cost_table(costs)):
            output_console().print(table)
    sizes, path = model.summary["ngrams"], f"{model.url.removeprefix('file://')}/shards/00000.arpa"
    log.say_last(f"{path}: {sum(sizes):,} n-grams", facts={"path": path, "ngrams": sizes})
