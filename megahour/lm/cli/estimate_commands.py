"""`megahour lm train | cluster`: models from text."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from megahour.core.filesystems import work_in
from megahour.lm.cli.command_parts import fast_numba_import, orders_table, parsed, say_model, stoppable
from megahour.lm.cli.on_engine import engine_of
from megahour.lm.params import (
    CountOptions,
    ModelOptions,
    TallyParams,
    TrainOptions,
    VocabularyParams,
    WordsParams,
    parse_bytes,
)
from megahour.runner import log
from megahour.runner.options import OptionCommand, options

if TYPE_CHECKING:
    from megahour.core.store import Artifact

_source = click.argument("source", nargs=-1, required=True, metavar="TEXT…")


@options(TrainOptions, but=("source", "out"))
@click.command("train", cls=OptionCommand)
@_source
@click.option(
    "--out", required=True, metavar="FILE", help="Output file: .arpa, .arpa.gz .xz .zst, or .mlm (memory-mapped)."
)
@log.logged
def train(**values: Any) -> None:
    """Estimate an n-gram model from texts with one sentence per line.

    TEXT: files, globs, URLs, also .gz .xz .zst; FILE.parquet:COLUMN is a column of a table; - is standard input.
    Options may come before, between or after the texts.

    Without --memory the text is held in memory, about 75 bytes per word. With it, the same model is estimated within
    SIZE. The required disk space is estimated from the first megabyte of text, and the command stops at once if there
    is too little. After an interruption, run the same command again: it resumes.

    \b
    megahour lm train text/*.gz --order 5 --out lm.arpa.gz
    megahour lm train text.txt --order 5 --memory 2GB --vocabulary 400000 --prune 0,0,1 --out lm.arpa
    megahour lm train counts.gz --counts --order 3 --smoothing witten-bell --out lm.arpa
    """
    chosen = parsed(TrainOptions, values, "train")
    fast_numba_import()
    from megahour.lm.cli.phases import Phases
    from megahour.lm.text.sources import is_stream
    from megahour.lm.train import train as estimate

    memory_bytes = parse_bytes(chosen.memory) if chosen.memory else 0
    resumes = memory_bytes and not any(map(is_stream, chosen.source))
    left = "the same command resumes from the files on disk" if resumes else "no partial file is left"
    with stoppable(left), Phases() as phases:
        trained = estimate(chosen, memory_bytes, phases)
    phases.say_summary()
    text = [", ".join(f"{value:,} {key}" for key, value in trained.text.items())] if trained.text else []
    for line in () if log.quiet() else (*text, *trained.notes):
        click.echo(line)
    orders_table(trained.sizes, trained.discounts, trained.fallbacks, trained.wildcards)
    say_model(chosen.out, trained.sizes)
    log.say_next([("perplexity of a text", f"megahour lm score {shlex.quote(chosen.out)} TEXT")])


@options(CountOptions, but=("source", "out"))
@click.command("count", cls=OptionCommand)
@_source
@click.option("--out", required=True, metavar="FILE", help="Output file; with --form google a folder.")
@log.logged
def count(**values: Any) -> None:
    """Count the n-grams of texts for all orders up to --order, with sentence boundaries.

    \b
    megahour lm count text/*.gz --order 3 --out counts.gz
    megahour lm count counts.gz more.gz --counts --order 3 --form google --out counts
    """
    chosen = parsed(CountOptions, values, "count")
    fast_numba_import()
    from megahour.lm.cli.phases import Phases
    from megahour.lm.counts.files import write_google, write_srilm
    from megahour.lm.query.model_files import packing, replacing
    from megahour.lm.train import counts_of

    with stoppable(), Phases() as phases:
        counts = counts_of(chosen, phases)
        if chosen.form == "google":
            write_google(counts, Path(chosen.out))
        else:
            with (
                replacing(chosen.out) as making,
                packing(making, chosen.out, 1, phases) as path,
                path.open("wb") as file,
            ):
                write_srilm(counts, file)
    sizes = [int((each > 0).sum()) for each in counts.counts]
    text = (
        f"{chosen.out}: {sum(sizes):,} n-grams ({', '.join(f'{size:,}' for size in sizes)}), {counts.tokens:,} tokens"
    )
    log.say_last(text, facts={"path": chosen.out, "ngrams": sizes, "tokens": counts.tokens})


@options(WordsParams, VocabularyParams, TallyParams, but=("source", "parts", "ranges", "groups"))
@click.command("cluster", cls=OptionCommand)
@_source
@click.option("--out", required=True, metavar="DIR", help="Directory or URL for the artifacts of all steps.")
@click.option("--engine", type=click.Choice(["local", "spark"]), default="local", show_default=True)
@click.option("--master", default="", metavar="URL", help="Spark master URL. Default: local[WORKERS].")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Processes of the local engine.")
@click.option(
    "--stages",
    is_flag=True,
    help="On the local engine, too, run the stages lm-words … lm-arpa, in WORKERS processes. They take more CPU "
    "time; lm plan needs them to plan a cluster.",
)
@log.logged
def cluster(out: str, engine: str, master: str, workers: int, stages: bool, **values: Any) -> None:
    """Estimate a model by the stages lm-words … lm-arpa, for texts larger than one machine.

    The model is DIR/arpa/shards/00000.arpa, with the same bytes as from `lm train`. At order 5 the task of a shard
    takes about 400 bytes of memory for each of its --shard-rows. Every task holds the vocabulary, 64 bytes per word:
    limit it by count or by a list. Finished steps do not run again.

    On the local engine one process with WORKERS threads does the work of all stages. It holds the positions of the
    text, too, where they take no more memory than a shard.

    The table at the end shows, for each stage, the CPU time of all processes on this machine, the reserved CPU time
    (workers × wall time) and the wall time.
    """
    fast_numba_import()
    from megahour.lm.estimate.partitions import BUCKET
    from megahour.lm.scale.on_engine import cost_table, estimate_on
    from megahour.lm.scale.resources import MOST_SHARDS
    from megahour.runner.console import output_console

    chosen: list[Any] = [
        parsed(model, {key: value for key, value in values.items() if key in model.model_fields}, "cluster")
        for model in (WordsParams, VocabularyParams, TallyParams)
    ]
    parsed(ModelOptions, {key: values[key] for key in ("order", "prune")}, "cluster")
    with stoppable("finished steps stay: the same command resumes"), ExitStack() as stack:
        running = stack.enter_context(engine_of(engine, master, workers))
        work = work_in(out)
        staged = stages or engine != "local"
        model, costs = estimate_on(running, out.rstrip("/"), *chosen, work=work, staged=staged)
    summary = model.summary
    sharding = summary["sharding"]
    asked, used = chosen[1].shard_rows, _shard_rows(model)
    if used > asked:
        what = f"shards have up to {used:,} positions, not {asked:,}: fewer than {BUCKET:,} save nothing"
        more = f"round 1 has at most {MOST_SHARDS:,} shards; a task takes about {used * 400 / 1e9:,.2f} GB of memory"
        log.say("shard-rows", f"{what}, and {more}", {"shard_rows": used})
    if not log.quiet():
        output_console().print(cost_table(costs))
        click.echo(
            f"{sum(sharding['shards'])} shards in {sharding['rounds']} round(s), "
            f"largest / median {sharding['skew']:.2f}, "
            f"left over by round: {', '.join(f'{rows:,}' for rows in sharding['left_over'])}"
        )
    wildcards = [tuple(each) for each in summary["wildcards"]]
    orders_table(summary["ngrams"], summary["discounts"], summary["fallbacks"], wildcards)
    path = f"{model.url.removeprefix('file://')}/shards/00000.arpa"
    log.say_last(f"{path}: {sum(summary['ngrams']):,} n-grams", facts={"path": path, "ngrams": summary["ngrams"]})


def _shard_rows(model: Artifact) -> int:
    """The largest shard in positions that was allowed."""
    made = model.receipts()[0].stats
    if "shard_rows" not in made:  # the vocabulary's receipt has it
        made = type(model)(f"{model.url.removesuffix('/arpa')}/vocabulary").receipts()[0].stats
    return int(made["shard_rows"])
