"""`megahour pool-scores`: pools the scores of a corpus's folds into one table."""

from __future__ import annotations

import json as json_module

import click

from megahour.core.store import Artifact


@click.command(name="pool-scores")
@click.argument("scores", nargs=-1, required=True)
@click.option("--draws", default=1000, show_default=True, type=click.IntRange(1), help="Bootstrap draws for intervals.")
@click.option("--seed", default=0, show_default=True, help="Seed of the bootstrap.")
@click.option("--json", is_flag=True, help="Print the table and the speakers as JSON, for programs.")
def command(scores: tuple[str, ...], draws: int, seed: int, json: bool) -> None:
    """Pool the word error rates of several artifacts of `score`, with different test speakers, in one table.

    Errors are summed over the folds. Intervals are bootstrapped over the speakers of all folds.

    \b
    megahour pool-scores runs/an4-fold-*/score
    """
    from megahour.score.pooled import pooled
    from megahour.score.table import to_markdown

    scored = pooled([Artifact(url) for url in scores])
    table = scored.table(draws, seed)
    if json:
        click.echo(json_module.dumps({"table": table, "speakers": scored.speakers()}, indent=1, ensure_ascii=False))
    else:
        click.echo(to_markdown(table), nl=False)
