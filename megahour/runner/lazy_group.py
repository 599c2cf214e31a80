"""A click group that imports a command only when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import click

from megahour.core.errors import nearest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """Its own commands, then those of `lazy`: {name: (address `module:attribute`, summary)}.

    Help and completion use the summaries, since asking a command for its help would import it.
    """

    def __init__(self, *arguments: Any, lazy: Mapping[str, tuple[str, str]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *self.lazy]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.lazy:
            return super().get_command(ctx, name)
        command: click.Command = resolve_name(self.lazy[name][0])
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(f"{error.message}{nearest(args[0], self.list_commands(ctx))}", ctx) from None

    def summaries(self) -> dict[str, str]:
        """Summaries for shell completion, by command name."""
        own = {name: command.get_short_help_str() for name, command in self.commands.items() if not command.hidden}
        return own | {name: summary for name, (_, summary) in self.lazy.items()}

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        named = [(name, text) for name, text in self.summaries().items() if name.startswith(incomplete)]
        items = [CompletionItem(name, help=text) for name, text in named]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            shown = ((name, command) for name, command in self.commands.items() if not command.hidden)
            own = [(name, command.get_short_help_str(100)) for name, command in shown]
            formatter.write_dl([*own, *((name, summary) for name, (_, summary) in self.lazy.items())])
