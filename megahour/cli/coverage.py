"""`megahour coverage`: hours by language, speaker and other names, of one run or artifact or of two side by side."""

from __future__ import annotations

from pathlib import Path

import click

from megahour.core.errors import ConfigError
from megahour.runner import log


@click.command(name="coverage")
@click.argument("run")
@click.argument("other", default="")
@click.option(
    "--out",
    default="",
    metavar="FILE",
    help="The page. Default: RUN's name with .coverage.html, in the working directory.",
)
@click.option("--table", default="", metavar="FILE", help="Also write all numbers to this Parquet file.")
@click.option("--json", is_flag=True, help="Print all numbers as JSON, for programs, and write no page.")
@click.option("--top", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Rows per table.")
@click.option("--title", default="", help="Heading of the page. Default: RUN's name, and OTHER's.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes that count shards.")
@log.logged
def command(run: str, other: str, out: str, table: str, json: bool, top: int, title: str, workers: int) -> None:
    """Show the hours by language, domain, licence, label, tier, speaker and month, and what was left out.

    RUN is the folder of a run, or an artifact, which is counted together with the artifacts in the same folder that it
    was made from. OTHER is shown beside it.

    \b
    megahour coverage work/selection
    megahour coverage runs/demo runs/petabyte --table hours.parquet
    """
    import json as json_module

    import pyarrow as pa
    import pyarrow.parquet as pq

    from megahour.core.output import is_sink, write_output
    from megahour.engine.local import LocalEngine
    from megahour.report.coverage import cover
    from megahour.report.coverage_family import family
    from megahour.report.coverage_page import page, rows, unlike
    from megahour.report.coverage_page import table as table_of
    from megahour.report.tables import size
    from megahour.runner.progress import TerminalMonitor

    if table and Path(table).suffix in (".csv", ".tsv", ".json", ".jsonl", ".xlsx"):
        raise ConfigError(
            "the table is a Parquet file", where=table, remedy="--table hours.parquet; --json prints JSON"
        )
    urls = [run, other] if other else [run]
    if other:
        family(other)  # fail before the first is counted
    monitor = TerminalMonitor(step="coverage")

    def advance(done: int, shards: int) -> None:
        if done == 1:
            monitor.started("coverage", shards, 0)
        monitor.progress(done, shards, "shards")

    try:
        with LocalEngine(workers=workers) as engine:
            covered = [cover(url, engine if workers > 1 else None, advance) for url in urls]
    finally:
        monitor.stopped()
    covered = unlike(covered)
    if table:
        pq.write_table(table_of(covered), packed := pa.BufferOutputStream())
        write_output(table, packed.getvalue().to_pybytes())
    if json:
        click.echo(json_module.dumps(list(rows(covered)), indent=1, ensure_ascii=False))
        return
    path = out or f"{covered[0].title}.coverage.html"
    text = page(covered, title or " and ".join(each.title for each in covered), top)
    write_output(path, text)
    log.say_last(f"{path}: {size(len(text.encode()))}", facts={"path": path})
    log.say_next([("the page, for a browser", path)] if not is_sink(path) else [])
