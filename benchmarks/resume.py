"""Time from resuming a run to its first task, with a store latency of 20 ms.

python benchmarks/resume.py [--sizes 1000,3000,10000] [--write]

All shards but one are finished. Wall time depends on the load; with nothing beside it, it is the larger of the CPU time
and of 20 ms a shard over 64 requests side by side.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import pytest
from page import machine, publish, python

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests/runner"))

from slow_store import DELAY_S
from test_slow_store import FIRST_TASK_S, FOR_SHARDS, seconds_to_the_first_task

from megahour.core.transfer import REQUESTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,3000,10000")
    parser.add_argument("--write", action="store_true", help="write resume.md beside this script")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    lines = [
        "# The first task of a run that goes on",
        "",
        f"`python benchmarks/resume.py --sizes {given.sizes} --write`: all shards but one are finished, the store "
        f"answers after {1e3 * DELAY_S:.0f} ms. Wanted: less than {FIRST_TASK_S:.0f} s at {FOR_SHARDS:,} shards.",
        "",
        f"| shards | s to the first task | CPU s of that | s of waiting at {REQUESTS} requests a time |",
        "| ---: | ---: | ---: | ---: |",
    ]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for shards in map(int, given.sizes.split(",")):
            wall_s, cpu_s = seconds_to_the_first_task(shards, Path(folder), patch)
            lines.append(f"| {shards:,} | {wall_s:.1f} | {cpu_s:.1f} | {shards * DELAY_S / REQUESTS:.1f} |")
    publish(__file__, [*lines, "", machine(python(), load=load)], write=given.write)


if __name__ == "__main__":
    main()
