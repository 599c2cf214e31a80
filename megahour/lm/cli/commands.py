"""`megahour lm …`: language models without a recipe. Work is imported by the command that runs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

from megahour.core.errors import nearest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

ESTIMATE = "megahour.lm.cli.estimate_commands"
QUERY = "megahour.lm.cli.query_commands"
COMBINE = "megahour.lm.cli.combine_commands"
COMMANDS = {
    "train": (ESTIMATE, "Text to a model: counts, discounts, probabilities."),
    "cluster": (ESTIMATE, "The same by stages on an engine, for texts larger than a machine."),
    "score": (QUERY, "Perplexities and log probabilities of texts."),
    "info": (QUERY, "Orders, sizes, discounts and memory of a model."),
    "convert": (QUERY, "ARPA to the mapped form and back, compressed or not."),
    "rescore": (QUERY, "Sort n-best lists by language model and recogniser scores."),
    "interpolate": (COMBINE, "Merge models into one, with weights given or tuned."),
    "loglinear": (COMBINE, "Score sentences by a log-linear mix of models."),
    "prune": (COMBINE, "Remove the n-grams that change the model least."),
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
            if args[0] in ("plan", "run"):  # commands of earlier versions
                remedy = "write the steps as a recipe, as docs/language-models.md shows"
                raise click.UsageError(f"use `megahour {args[0]} RECIPE`: {remedy}", ctx) from None
            raise click.UsageError(f"{error.message}{nearest(args[0], COMMANDS)}", ctx) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        named = [CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group("lm", cls=_Lazy)
def group() -> None:
    """n-gram language models: train, score, info, convert, rescore, combine, prune."""
