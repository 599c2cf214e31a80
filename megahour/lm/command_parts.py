"""What `megahour lm` commands have in common: options, Ctrl-C, tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from megahour.core.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., Any])


@contextmanager
def stoppable(left: str = "nothing half is left") -> Iterator[None]:
    """Ctrl-C ends the command, and says what is left."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"\nStopped. The output was not written; {left}.", err=True)
        sys.exit(130)


def text_options(least_order: int) -> Callable[[Command], Command]:
    """What `train` and `cluster` ask alike: texts, order, cut-offs, vocabulary."""
    shared = (
        click.argument("sources", nargs=-1, required=True, metavar="TEXT…"),
        click.option(
            "--order", type=click.IntRange(least_order, 7), default=3, show_default=True, help="longest n-gram"
        ),
        click.option(
            "--prune", default="0", show_default=True, metavar="N,N,…", help="drop k-grams seen at most so often"
        ),
        click.option(
            "--vocabulary", type=click.IntRange(0), default=0, help="keep so many most frequent words; 0: all"
        ),
        click.option("--vocabulary-file", default="", metavar="FILE", help="keep the words of this list only"),
        click.option(
            "--min-count", type=click.IntRange(1), default=1, show_default=True, help="keep words seen so often"
        ),
        click.option(
            "--skip-symbols", is_flag=True, help="leave <s>, </s> and <unk> out of the text; they are errors else"
        ),
    )

    def asked(command: Command) -> Command:
        for option in reversed(shared):
            command = option(command)
        return command

    return asked


def counts_of(text: str, order: int) -> tuple[int, ...]:
    """``0,0,1`` → (0, 0, 1), for a model of so long n-grams. Raises ConfigError."""
    try:
        counts = tuple(int(part) for part in text.replace(" ", ",").split(",") if part)
    except ValueError:
        raise ConfigError(f"--prune {text!r} is no list of counts", remedy="write it as 0,0,1") from None
    if len(counts) > order:
        raise ConfigError(f"--prune {text} is for orders 1 to {len(counts)}", remedy=f"--order is {order}")
    if counts[:1] not in ((), (0,)) or list(counts) != sorted(counts):
        raise ConfigError(f"--prune {text} must begin with 0 and not decrease", remedy="limit words by the vocabulary")
    return counts


def orders_table(
    sizes: list[int], discounts: list[Any], fallbacks: dict[Any, str], wildcards: list[tuple[int, int]] | None = None
) -> None:
    """A line an order. discounts: three of Kneser-Ney, more of Good-Turing; wildcards: of `Model`."""
    from rich.table import Table

    from megahour.engine.console import output_console

    wildcards = wildcards if any(map(any, wildcards or [])) else []
    width = len(discounts[0]) if discounts else 0
    names = ["D1", "D2", "D3+"] if width == 3 else [f"d({r})" for r in range(1, width + 1)]
    table = Table()
    for heading in ("order", "n-grams", *names, *(["cut off: *-entries", "their counts"] if wildcards else []), ""):
        table.add_column(heading, justify="left" if not heading else "right")
    given = {int(order): why for order, why in fallbacks.items()}
    for k, size in enumerate(sizes, 1):
        each = [f"{value:.4f}" for value in discounts[k - 1]] if discounts else []
        cut = [f"{number:,}" for number in wildcards[k - 1]] if wildcards else []
        table.add_row(str(k), f"{size:,}", *each, *cut, f"fallback: {given[k]}" if k in given else "")
    output_console().print(table)
