"""How much of its cores an engine keeps busy: seconds of the tasks over workers × wall seconds (goal ≥ 0.9).

    python benchmarks/engine_overhead.py --tasks 1000 --seconds 1 --write
    python benchmarks/engine_overhead.py --engine spark --tasks 1000 --seconds 1 --write

A task computes until it has used its seconds of CPU time. `busy share` counts the time from a task's start to its end,
so what is missing to 1 is the engine: waiting for work, messages, an uneven end. `CPU share` counts only the CPU time:
on a machine shared with others it is lower by what the others took, and the busy share is flattered, because their
load stretches the tasks. Read it together with the load average and the time of an empty task.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
import time
from functools import partial
from pathlib import Path

from megahour.engine.base import Engine


def burn(cpu_s: float, _: int) -> tuple[float, float]:
    """Compute until this process has used `cpu_s` of CPU time; (wall seconds, CPU seconds) of the task."""
    began, cpu_began = time.perf_counter(), time.process_time()
    while time.process_time() - cpu_began < cpu_s:
        sum(range(1000))
    return time.perf_counter() - began, time.process_time() - cpu_began


def timed(engine: Engine, tasks: int, cpu_s: float) -> tuple[float, float, float]:
    """(wall seconds of all, sum of the tasks' wall seconds, sum of their CPU seconds)."""
    began = time.perf_counter()
    spent = [seconds for _, seconds in engine.map(partial(burn, cpu_s), range(tasks))]
    return time.perf_counter() - began, sum(wall for wall, _ in spent), sum(cpu for _, cpu in spent)


def open_engine(name: str, workers: int) -> Engine:
    if name == "spark":
        from megahour.engine.spark import SparkEngine

        return SparkEngine(f"local[{workers}]")
    from megahour.engine.local import LocalEngine

    return LocalEngine(workers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["local", "spark"], default="local")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU seconds of a task")
    parser.add_argument("--write", action="store_true", help="write the result beside this script")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with open_engine(options.engine, options.workers) as engine:
        timed(engine, 2 * options.workers, 0.05)  # starts the workers
        wall_s, tasks_s, cpu_s = timed(engine, options.tasks, options.seconds)
        empty_s = timed(engine, 200, 0.0)[0] / 200
    places_s = options.workers * wall_s
    report = f"""# Engine overhead: {options.engine}

`python {shlex.join(sys.argv)}`

- {options.tasks} tasks of {options.seconds:g} s of CPU time, {options.workers} workers, {wall_s:.1f} s
- **busy share {tasks_s / places_s:.3f}** (goal ≥ 0.9), CPU share {cpu_s / places_s:.3f}
- a task that does nothing: {1e3 * empty_s:.2f} ms

A load average above the number of workers means that others shared the cores: the CPU share is lower by their part, and
the busy share is flattered, because the tasks are stretched.

{platform.machine()}, {os.cpu_count()} cores, load average {load:.1f} at the start, Python {platform.python_version()}.
"""
    print(report)
    if options.write:
        suffix = "" if options.engine == "local" else f"_{options.engine}"
        Path(__file__).with_name(f"engine_overhead{suffix}.md").write_text(report, "utf-8")


if __name__ == "__main__":
    main()
