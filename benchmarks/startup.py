"""Start-up of the command line: wall and CPU seconds of `megahour --help` in fresh processes.

python benchmarks/startup.py [--runs 21] [--write]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time

from page import machine, publish, python

GOAL_S = 0.5
COMMANDS = (("--help",), ("run", "--help"), ("train", "--help"))


def measure(arguments: tuple[str, ...]) -> tuple[float, float]:
    """(wall, CPU) seconds of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "megahour", *arguments], check=True, capture_output=True)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--write", action="store_true", help="write startup.md beside this script")
    given = parser.parse_args()
    lines = [
        "# Start-up",
        "",
        f"`python benchmarks/startup.py --runs {given.runs} --write`: medians of {given.runs} fresh processes.",
        "",
        f"| command | wall, s (goal < {GOAL_S}) | slowest, s | CPU, s |",
        "| --- | ---: | ---: | ---: |",
    ]
    for arguments in COMMANDS:
        measure(arguments)  # the first one reads the files from disk
        runs = [measure(arguments) for _ in range(given.runs)]
        wall, cpu = (statistics.median(run[i] for run in runs) for i in (0, 1))
        slowest = max(run[0] for run in runs)
        lines.append(f"| `megahour {' '.join(arguments)}` | {wall:.3f} | {slowest:.3f} | {cpu:.3f} |")
    lines += ["", machine(python())]
    publish(__file__, lines, write=given.write)


if __name__ == "__main__":
    main()
