"""The console for results, and formats for durations and counts; light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

FILE_WIDTH = 140


def output_console() -> Console:
    """A console for tables on standard output: as wide as the terminal, or FILE_WIDTH in a file, for whole names.

    Markup is off: paths and patterns may contain "[a-z]".
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=FILE_WIDTH)


def duration(seconds: float) -> str:
    """Seconds as "0.8 s", "12 s", "3 min 20 s", "1 h 05 min" or "3 d 4 h"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def count(number: int, noun: str) -> str:
    """`1 shard`, `1,200 shards`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def show_table(headings: tuple[str, ...], rows: list[list[str]]) -> None:
    """Print rows under their headings."""
    from rich.table import Table

    table = Table(*headings)
    for row in rows:
        table.add_row(*row)
    output_console().print(table)
