"""Runs `small.yaml` in its own process, and compares runs."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from command_line import forked

SMALL = Path(__file__).parent / "small.yaml"
TIMED = {"report"}  # tells times and costs, which differ between equal runs
TWO_MODELS = "engine.devices=[cpu,cpu]"  # processes of a model, where `small.yaml` has one: the same bytes


def megahour(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "megahour", *arguments]


def run(*arguments: str) -> str:
    """Standard output and error of a command that must succeed, in a process that is forked with its imports done."""
    done = forked(*arguments, timeout_s=1400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def already_made(folder: Path, other: Path, *steps: str) -> None:
    """Gives a run the artifacts that the same steps of another one made, so that it begins after them."""
    for step in steps:
        shutil.copytree(other / step, folder / step)


def contents(run_folder: Path, steps: set[str] | None = None) -> dict[str, str]:
    """SHA-256 of every file of a run's artifacts (of `steps` only, when given) but the timings, by path."""
    digests = {}
    for manifest in sorted(run_folder.glob("*/manifest.json")):
        step = manifest.parent.name
        if step in TIMED or (steps is not None and step not in steps):
            continue
        for path in sorted(manifest.parent.rglob("*")):
            if path.is_file() and path.parent.name != "timings":
                digests[str(path.relative_to(run_folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests
