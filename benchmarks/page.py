"""Shared by the benchmarks: the line that names the machine, and the page of results beside the script."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path


def machine(*more: str, load: float | None = None) -> str:
    """Processor, cores, load and what else is given. load: before the run; without it, today's at the end."""
    average = f"load {os.getloadavg()[0]:.1f}" if load is None else f"load {load:.1f} before the run"
    return ", ".join([platform.machine(), f"{os.cpu_count()} cores", average, *more]) + "."


def python() -> str:
    return f"Python {platform.python_version()}"


def command_line(script: str) -> str:
    """This run's command, without the folders of this machine."""
    return shlex.join(["python", f"benchmarks/{Path(script).name}", *(Path(word).name for word in sys.argv[1:])])


def publish(script: str, text: str | Iterable[str], *, write: bool) -> None:
    """Print a page, and with `write` keep it as SCRIPT.md. text: the page, or its lines."""
    page = text if isinstance(text, str) else "\n".join(text) + "\n"
    print(page)
    if write:
        Path(script).with_suffix(".md").write_text(page, "utf-8")
