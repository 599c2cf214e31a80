"""`megahour lm …`: language models without a recipe. Work is imported by the command that runs."""

from __future__ import annotations

import importlib
from typing import Any

import click

from megahour.core.errors import nearest

OWN = "megahour.lm.own_commands"
COMBINE = "megahour.lm.combine_commands"
CLUSTER = "megahour.lm.cluster_commands"
COMMANDS = {
    "train": (OWN, "Text to a model: counts, discounts, probabilities."),
    "cluster": (CLUSTER, "The same by stages on an engine, for texts that no machine holds; what each took."),
    "score": (OWN, "Log probabilities and perplexities of texts."),
    "info": (OWN, "What is in a model: orders, sizes, discounts, memory."),
    "convert": (OWN, "ARPA to the mapped form and back, compressed or not."),
    "rescore": (OWN, "n-best lists by the language model."),
    "interpolate": (COMBINE, "Merge models into one, with weights given or tuned."),
    "loglinear": (COMBINE, "Score sentences by a log-linear mix of models."),
    "prune": (COMBINE, "Leave out the n-grams that the model misses least."),
    "plan": (COMBINE, "What a configuration needs done, and why."),
    "run": (COMBINE, "Make what a configuration describes."),
}
"""By name: the module that has the command under its name, and a one-line summary."""


class _Lazy(click.Group):
    """Commands that are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[name][0]), name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(f"{error.message}{nearest(args[0], COMMANDS)}", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group("lm", cls=_Lazy)
def group() -> None:
    """n-gram language models: train, score, info, convert, rescore, combine, prune."""
