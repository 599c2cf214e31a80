"""`megahour lm …`: language models without a recipe. Work is imported by the command that runs."""

from __future__ import annotations

import click


@click.group("lm")
def group() -> None:
    """n-gram language models: train, score, info, convert, rescore, combine, prune."""
