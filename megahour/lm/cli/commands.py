"""`megahour lm …`: language models without a recipe. Work is imported by the command that runs."""

from __future__ import annotations

from typing import Any

import click

from megahour.runner.lazy_group import LazyGroup

ESTIMATE = "megahour.lm.cli.estimate_commands"
QUERY = "megahour.lm.cli.query_commands"
COMBINE = "megahour.lm.cli.combine_commands"
COMMANDS = {
    "train": (f"{ESTIMATE}:train", "Estimate a model from text."),
    "count": (f"{ESTIMATE}:count", "Count n-grams, to files in SRILM's or Google's format."),
    "cluster": (f"{ESTIMATE}:cluster", "Estimate a model by stages on an engine, for texts larger than one machine."),
    "score": (f"{QUERY}:score", "Compute perplexities and log probabilities of texts."),
    "info": (f"{QUERY}:info", "Show orders, sizes, discounts and memory of a model."),
    "convert": (f"{QUERY}:convert", "Convert a model between ARPA, memory-mapped and KenLM's formats."),
    "rescore": (f"{QUERY}:rescore", "Rescore n-best lists with a language model."),
    "interpolate": (f"{COMBINE}:interpolate", "Interpolate models into one, with given or tuned weights."),
    "plan": (
        "megahour.cli.plan.words:plan",
        "Predict time, CPU, disk and memory of `cluster` for a size that has not been run.",
    ),
    "loglinear": (f"{COMBINE}:loglinear", "Score sentences by a log-linear mix of models."),
    "expand": (f"{COMBINE}:expand", "Expand a class model into a word model."),
    "prune": (f"{COMBINE}:prune", "Prune the n-grams that change the model least."),
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
