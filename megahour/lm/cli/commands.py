"""`megahour lm …`: language models without a recipe. Work is imported by the command that runs."""

from __future__ import annotations

from typing import Any

import click

from megahour.runner.lazy_group import LazyGroup

ESTIMATE = "megahour.lm.cli.estimate_commands"
QUERY = "megahour.lm.cli.query_commands"
COMBINE = "megahour.lm.cli.combine_commands"
COMMANDS = {
    "train": (f"{ESTIMATE}:train", "Text to a model: counts, discounts, probabilities."),
    "count": (f"{ESTIMATE}:count", "Counts of n-grams, as SRILM's and Google's files have them."),
    "cluster": (f"{ESTIMATE}:cluster", "The same by stages on an engine, for texts larger than a machine."),
    "score": (f"{QUERY}:score", "Perplexities and log probabilities of texts."),
    "info": (f"{QUERY}:info", "Orders, sizes, discounts and memory of a model."),
    "convert": (f"{QUERY}:convert", "ARPA to the mapped form and back, compressed or not."),
    "rescore": (f"{QUERY}:rescore", "Sort n-best lists by language model and recogniser scores."),
    "interpolate": (f"{COMBINE}:interpolate", "Merge models into one, with weights given or tuned."),
    "plan": ("megahour.cli.plan.words:plan", "Time, CPU, disk and memory of `cluster` at a size that never ran."),
    "loglinear": (f"{COMBINE}:loglinear", "Score sentences by a log-linear mix of models."),
    "expand": (f"{COMBINE}:expand", "A class model into one of words."),
    "prune": (f"{COMBINE}:prune", "Remove the n-grams that change the model least."),
}
"""By name: the command's address, and a one-line summary."""


class _Group(LazyGroup):
    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args[0] == "run":  # a command of earlier versions
            remedy = "write the steps as a recipe, as docs/language-models.md shows"
            raise click.UsageError(f"use `megahour run RECIPE`: {remedy}", ctx)
        return super().resolve_command(ctx, args)


@click.group("lm", cls=_Group, lazy=COMMANDS)
def group() -> None:
    """n-gram language models: train, score, info, convert, rescore, combine, prune."""
