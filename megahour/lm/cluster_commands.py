"""`megahour lm cluster`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from megahour.lm.command_parts import counts_of, orders_table, stoppable, text_options


@click.command("cluster")
@click.option("--out", required=True, metavar="DIR", help="directory or URL for the artifacts of all steps")
@text_options(least_order=2)
@click.option("--engine", type=click.Choice(["local", "spark"]), default="local", show_default=True)
@click.option("--master", default="", metavar="URL", help="of Spark; default: local[WORKERS]")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="processes of the local engine")
@click.option("--shard-rows", type=click.IntRange(1), default=1 << 20, show_default=True, help="positions of a shard")
@click.option("--piece-mb", type=click.IntRange(1), default=64, show_default=True, help="text that one task reads")
def cluster(
    sources: tuple[str, ...],
    out: str,
    order: int,
    prune: str,
    vocabulary: int,
    vocabulary_file: str,
    min_count: int,
    skip_symbols: bool,
    engine: str,
    master: str,
    workers: int,
    shard_rows: int,
    piece_mb: int,
) -> None:
    """Estimate a model by the stages lm-words … lm-arpa, for texts that no machine holds.

    The model is DIR/arpa/shards/00000.arpa, the bytes of `lm train`. A shard's task takes about 400 bytes of memory for
    each of its --shard-rows at order 5, and each task the vocabulary, some 64 bytes a word: cut it by count or by a
    list. What is finished is not made again.

    The closing table has for each stage the CPU time that the operating system counted in all processes of this
    machine, the CPU time reserved (workers × wall time), and the wall time.
    """
    from megahour.core.config import parse
    from megahour.engine.console import output_console
    from megahour.lm.scale.distributed_model_stage import TallyParams
    from megahour.lm.scale.distributed_stage import VocabularyParams, WordsParams
    from megahour.lm.scale.on_engine import cost_table, estimate_on

    given: dict[str, Any] = {"source": list(sources), "skip_symbols": skip_symbols, "piece_mb": piece_mb}
    words = parse(WordsParams, given, where="lm cluster")
    cut = {"vocabulary": vocabulary, "min_count": min_count, "vocabulary_file": vocabulary_file}
    chosen = parse(VocabularyParams, {"order": order, "shard_rows": shard_rows, **cut}, where="lm cluster")
    tally = parse(TallyParams, {"prune": list(counts_of(prune, order))}, where="lm cluster")
    with stoppable("what is finished stays: the same command goes on"), ExitStack() as stack:
        running = stack.enter_context(_engine(engine, master, workers))
        work = Path(out) / ".work" if "://" not in out else None
        model, costs = estimate_on(running, out.rstrip("/"), words, chosen, tally, work=work)
    console, made = output_console(), model.summary
    console.print(cost_table(costs))
    sharding = made["sharding"]
    click.echo(
        f"{sum(sharding['shards'])} shards in {sharding['rounds']} round(s), largest / median {sharding['skew']:.2f}, "
        f"left over by round: {', '.join(f'{rows:,}' for rows in sharding['left_over'])}"
    )
    orders_table(made["ngrams"], made["discounts"], made["fallbacks"], [tuple(each) for each in made["wildcards"]])
    click.echo(f"{model.path('shards/00000.arpa')}: {sum(made['ngrams']):,} n-grams")


def _engine(kind: str, master: str, workers: int) -> Any:
    if kind == "spark":
        from megahour.engine.spark import SparkEngine

        return SparkEngine(master or f"local[{workers}]")
    from megahour.engine.local import LocalEngine

    return LocalEngine(workers)
