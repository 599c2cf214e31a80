"""`megahour pool-scores`: pools the scores of a corpus's folds into one table."""

from __future__ import annotations

import json as json_module

import click

from megahour.core.store import Artifact


@click.command(name="pool-scores")
@click.argument("scores", nargs=-1, required=True)
@click.option(
    "--seeds",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Seeds that each fold was run with, for means over them: give the scores of all.",
)
@click.option("--draws", default=1000, show_default=True, type=click.IntRange(1), help="Bootstrap draws for intervals.")
@click.option("--seed", default=0, show_default=True, help="Seed of the bootstrap.")
@click.option("--json", is_flag=True, help="Print the table and the speakers as JSON, for programs.")
def command(scores: tuple[str, ...], seeds: int, draws: int, seed: int, json: bool) -> None:
    """Pool the word error rates of several artifacts of `score`, with different test speakers, in one table.

    Errors are summed over the folds. Intervals are bootstrapped over the speakers of all folds; they do not cover what
    further seeds would change.

    \b
    megahour pool-scores runs/an4-fold-*/score
    megahour pool-scores runs/an4-seed-*-fold-*/score --seeds 3
    """
    from megahour.score.pooled import pooled
    from megahour.score.table import to_markdown

    scored = pooled([Artifact(url) for url in scores], seeds)
    table = scored.table(draws, seed)
    if json:
        click.echo(json_module.dumps({"table": table, "speakers": scored.speakers()}, indent=1, ensure_ascii=False))
    else:
        click.echo(to_markdown(table), nl=False)
