"""What a run was made with: versions of everything that shapes results, the source's commit, and the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path

import megahour

PACKAGES = ("numpy", "numba", "pyarrow", "torch", "soundfile", "soxr", "kaldifst", "kaldi-decoder", "espeakng-loader")


@cache
def versions() -> dict[str, str]:
    """Names and versions; "unknown" or "missing" where there is none. The machine goes by its kind, not its name."""
    known = {"megahour": megahour.__version__, "commit": _commit(), "python": platform.python_version()}
    for package in PACKAGES:
        try:
            known[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            known[package] = "missing"
    machine = f"{platform.system()} {platform.machine()}"
    return {**known, "machine": machine, "processor": _processor(), "cores": str(os.cpu_count() or "unknown")}


def _commit() -> str:
    folder = Path(megahour.__file__).parent
    if not (folder.parent / ".git").exists():
        return "unknown"  # installed; an environment within somebody else's checkout would give theirs
    try:
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or "unknown"
