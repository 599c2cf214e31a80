"""Parts of all `megahour lm` commands: Ctrl-C, options, tables, the last line, a fast import of numba."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from megahour.core.stopping import exit_code, said, signal_name
from megahour.runner import log

if TYPE_CHECKING:
    from pydantic import BaseModel

M = TypeVar("M", bound="BaseModel")
threads = click.option(
    "--threads",
    type=click.IntRange(1, 256),
    default=2,
    show_default=True,
    help="Number of threads. The result does not depend on it.",
)


@contextmanager
def stoppable(left: str = "no partial file is left") -> Iterator[None]:
    """End the command on Ctrl-C and SIGTERM with a line that says what is left on disk."""
    try:
        yield
    except KeyboardInterrupt as stop:
        facts = {"kept": left, "signal": signal_name(stop)}
        log.say("stopped", f"{said(stop)}. The output was not written; {left}.", facts, level=logging.WARNING)
        sys.exit(exit_code(stop))


def parsed(model: type[M], values: Mapping[str, Any], command: str) -> M:
    """Validate the options of `megahour lm COMMAND` with a model, which has the defaults. Raises ConfigError."""
    from megahour.core.config import parse

    given = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
    given = {key: value for key, value in given.items() if value is not None}
    return parse(model, given, where=f"lm {command}", remedy=f"see `megahour lm {command} --help`")


def orders_table(
    sizes: list[int], discounts: list[Any], fallbacks: dict[Any, str], wildcards: list[tuple[int, int]] | None = None
) -> None:
    """Print a table with a row per order. discounts: three for Kneser-Ney, more for Good-Turing; wildcards: of
    `Estimated`."""
    if log.quiet():
        return
    from rich.table import Table

    from megahour.runner.console import output_console

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


def say_model(out: str, sizes: list[int]) -> None:
    """Print the last line of a command that wrote a model; sizes: n-grams by order."""
    n_bytes = Path(out).stat().st_size if Path(out).is_file() else 0  # of a pipe nothing is known
    text = f"{out}: {sum(sizes):,} n-grams{f', {n_bytes / 1e6:,.1f} MB' if n_bytes else ''}"
    log.say_last(text, facts={"path": out, "ngrams": sizes, "bytes": n_bytes})


def fast_numba_import() -> None:
    """Import numpy without BLAS's threads and, if needed, numba without SciPy's BLAS, cffi and garbage collection.

    This saves 0.6 s of CPU. Call it before other imports.

    numba imports all of scipy.linalg to find out whether it can compile `np.cov`. Functions that need BLAS, such as
    `np.dot`, check again by themselves; in this process numba refuses `np.cov` and functions of cffi, which nothing
    here uses. For commands that only estimate a model, not for libraries. Does nothing once SciPy or numba is loaded.
    """
    if "scipy.linalg" in sys.modules or "numba.np.arraymath" in sys.modules:
        return
    _import_numpy()
    from megahour.core.compiled import before_numba  # imports numpy

    before_numba(_import_numba)


def _import_numpy() -> None:
    """Import numpy without BLAS's threads, which would spin idly for 0.05 s of CPU. Child processes get theirs."""
    if "numpy" in sys.modules or "OPENBLAS_NUM_THREADS" in os.environ:
        return
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        importlib.import_module("numpy")
    finally:
        del os.environ["OPENBLAS_NUM_THREADS"]


def _import_numba() -> None:
    gc.disable()
    try:
        with _without("scipy.linalg"):
            importlib.import_module("numba.np.arraymath")
        with _without("cffi"):
            importlib.import_module("numba.core.typing.cffi_utils")
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _without(name: str) -> Iterator[None]:
    """Let imports of a module fail, unless it is loaded already."""
    if sys.modules.get(name) is not None:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
