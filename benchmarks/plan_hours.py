"""How well `megahour plan RECIPE --hours` predicts the time of each step of a run many times larger.

python benchmarks/plan_hours.py --folder runs/plan --sizes 0.56,1.12 --size 5.6 [--write]

Runs the demo at the small sizes, plans the large one on this machine from their books, then runs it. Minutes long.
--cpu compares CPU seconds of tasks and models, which say something on a machine that others use, and writes
plan_hours_cpu.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from page import machine, publish, python

from megahour.clock.measured import books
from megahour.core.store import DEVICES, Artifact

LEAST_S = 2.0  # shorter steps are added up: half a second of a start is none of their law


class Row(NamedTuple):
    """A step: seconds planned, their range, and what it took."""

    name: str
    planned: float
    between: Sequence[float]
    took: float

    @property
    def difference(self) -> str:
        least, most = self.between
        if least == most:
            return f"{self.planned / self.took - 1:+.0%}"
        where = "within" if least <= self.took <= most else "OUTSIDE"
        return f"{where} {least:.1f} … {most:.1f}"


def megahour(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "megahour", *words], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for the runs; what is there is not made again")
    parser.add_argument("--recipe", default="demo")
    parser.add_argument("--key", default="raw.hours", help="the parameter that is the size")
    parser.add_argument("--of", default="raw", help="the step whose hours are the plan's")
    parser.add_argument("--sizes", default="0.56,1.12")
    parser.add_argument("--size", type=float, default=5.6)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="other parameters of all runs")
    parser.add_argument("--until", default="", metavar="STEP", help="run only what this step needs")
    parser.add_argument("--shared", nargs="*", default=[], metavar="STEP", help="steps that the runs share, not shown")
    parser.add_argument("--decode-with", default="", metavar="RUN", help="a run in the folder, see `megahour plan`")
    parser.add_argument("--cpu", action="store_true", help="compare CPU seconds of tasks, not time on the clock")
    parser.add_argument("--write", action="store_true", help="write the page beside this script")
    parser.add_argument("--page", default="plan_hours", help="name of the page, _cpu is added by --cpu")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    runs = [*given.set, "--quiet", *(["--until", given.until] if given.until else [])]
    small = [str(given.folder / f"size-{size}") for size in given.sizes.split(",")]
    for size, run in zip(given.sizes.split(","), small, strict=True):
        megahour("run", given.recipe, f"{given.key}={size}", f"run={run}", *runs)
    sources = [word for run in small for word in ("--from", run)]
    large = str(given.folder / f"size-{given.size}")
    made = books(Artifact(f"{small[-1]}/{given.of}")).audio_s / 3600 / float(given.sizes.split(",")[-1])
    hours = f"{given.size * made:.4f}"  # a recipe makes a little more or less than it is asked for
    plan = ["plan", given.recipe, *given.set, "--hours", hours, "--of", given.of, *sources, "--json"]
    if given.decode_with:
        plan += ["--decode-with", str(given.folder / given.decode_with)]
    text = megahour(*plan, "--cores", str(os.cpu_count()))
    (given.folder / f"planned-{given.size}.json").write_text(text, "utf-8")  # before the large run begins
    planned = json.loads(text)
    megahour("run", given.recipe, f"{given.key}={given.size}", f"run={large}", *runs)
    rows = []
    for step in planned["steps"]:
        if step["name"] in given.shared:
            continue
        made = Artifact(f"{large}/{step['name']}")
        models_s = made.figures(DEVICES).get("seconds", 0.0)
        took = net(made.timings(), "cpu_seconds") + models_s if given.cpu else made.wall()["seconds"]
        unit = "cpu" if given.cpu else "wall"
        rows.append(Row(step["name"], step[f"{unit}_s"], step[f"{unit}_range_s"], took))
    target = Path(__file__).with_name(f"{given.page}{'_cpu' * given.cpu}.py")
    publish(str(target), page(given, rows, load), write=given.write)


def net(timings: Mapping[int, Mapping[str, Any]], name: str) -> float:
    """What tasks took, without the functions that a machine compiles once."""
    return float(sum(each[name] - each.get(f"compile_{name}", 0.0) for each in timings.values()))


def page(given: argparse.Namespace, rows: list[Row], load: float) -> list[str]:
    flags = given.cpu * "--cpu " + (f"--page {given.page} " if given.page != "plan_hours" else "")
    flags += f"--until {given.until} " if given.until else ""
    flags += f"--decode-with {given.decode_with} " if given.decode_with else ""
    flags += "".join(f"--{key} {' '.join(words)} " for key in ("set", "shared") if (words := getattr(given, key)))
    recipe = "" if given.recipe == "demo" else f"--recipe {given.recipe} "
    long = [row for row in rows if row.took >= LEAST_S]
    short = [row for row in rows if row.took < LEAST_S]
    ruled = [row for row in long if row.between[0] == row.between[1]]
    searches = [row for row in long if row not in ruled]
    near = sum(abs(row.planned / row.took - 1) <= 0.2 for row in ruled)
    inside = sum(row.between[0] <= row.took <= row.between[1] for row in searches)
    lines = [
        "# A plan beside the run",
        "",
        f"`python benchmarks/plan_hours.py --folder FOLDER {recipe}--sizes {given.sizes} --size {given.size} "
        f"{flags}--write`: recipe `{given.recipe}` was run with "
        f"`{given.key}` {given.sizes.replace(',', ' and ')}, that of {given.size} "
        "was planned from their books (`megahour plan --hours --from --from`), and then made.",
        "",
        f"Within 20 %: {near} of {len(ruled)} steps that take {LEAST_S:.0f} s or more and have a law."
        + f" Within the planned range: {inside} of {len(searches)} that search." * bool(searches),
        "",
        "| step | planned, {0} | took, {0} | difference |".format("CPU s of tasks and models" if given.cpu else "s"),
        "| --- | ---: | ---: | ---: |",
    ]
    lines += [f"| {row.name} | {row.planned:.1f} | {row.took:.1f} | {row.difference} |" for row in long]
    for name, those in ((f"{len(short)} shorter ones", short), ("all", rows)):
        planned, took = sum(row.planned for row in those), sum(row.took for row in those)
        lines.append(
            f"| {name} | {planned:.1f} | {took:.1f} | {planned / took - 1:+.0%} |" if took else f"| {name} | | | |"
        )
    return [*lines, "", machine(python(), load=load)]


if __name__ == "__main__":
    main()
