"""The console for results, light to import."""

from __future__ import annotations

from rich.console import Console

FILE_WIDTH = 140


def output_console() -> Console:
    """For tables on standard output: as wide as the terminal, and wide enough for whole names in a file.

    What they show is shown as it is: a path or a pattern may hold "[a-z]", which is no markup.
    """
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=FILE_WIDTH)
