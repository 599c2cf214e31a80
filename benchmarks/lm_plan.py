"""How well `megahour lm plan` predicts the cost of `lm cluster` at sizes not run. In two parts, so that the plan is
written down before there is anything to compare it with:

python benchmarks/lm_plan.py predict --from RUN --from RUN --from RUN --words 1e6,2e6,4e6     # writes lm_plan.json
python benchmarks/lm_plan.py compare --run RUN --run RUN --run RUN --write                   # lm_plan.md, from both

Runs are folders of `megahour lm cluster --stages --workers 2`, of parts of one text in random order. With --one-process
they are of `lm cluster` without --stages, of one or more orders; plans and page are lm_plan_one.json and .md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from page import machine, publish, python

from megahour.clock.language_models import measured_run
from megahour.core.store import Artifact
from megahour.lm.scale.on_engine import COST

PLANS = Path(__file__).with_suffix(".json")
ONE = Path(__file__).with_name("lm_plan_one.json")
SHOWN = {
    "cpu_s": "CPU, s", "reserved_s": "reserved CPU, s", "wall_s": "wall, s", "written_bytes": "written, MB",
    "read_bytes": "read (shuffled), MB", "peak_bytes": "memory of a task, MB", "types": "different words",
    "ngrams": "n-grams",
}  # fmt: skip


def predict(runs: list[str], words: list[str], cores: list[str]) -> list[dict[str, Any]]:
    plans = []
    for size in words:
        given = [part for run in runs for part in ("--from", run)]
        command = [
            sys.executable,
            "-m",
            "megahour",
            "lm",
            "plan",
            "--words",
            size,
            *cores,
            *given,
            "--json",
        ]
        plans.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    return plans


def took(run: str) -> dict[str, float]:
    """The cost of a finished run, in the units of a plan."""
    steps = measured_run(run)
    costs = [cost for step in steps if (cost := Artifact(f"{run}/{step.name}").figures(COST))]
    sizes = Artifact(f"{run}/arpa").manifest.summary["ngrams"]
    return {
        "words": 1e6 * next(step.hours for step in steps if step.name == "words"),
        "types": sizes[0], "ngrams": sum(sizes),
        **{key: sum(cost[key] for cost in costs) for key in ("cpu_s", "reserved_s", "wall_s")},
        **{key: sum(step.quantities[key] for step in steps) for key in ("written_bytes", "read_bytes")},
        "peak_bytes": max(step.quantities["peak_bytes"] for step in steps),
    }  # fmt: skip


def page(plans: list[dict[str, Any]], runs: list[dict[str, float]], of: list[float]) -> list[str]:
    parts = ", ".join(f"{size:.2f}" for size in of)
    lines = [
        "# A plan of language models beside the runs", "",
        "`python benchmarks/lm_plan.py predict --from RUN … --words N,N,N`, the runs, then `… compare --run RUN …`:",
        f"`lm cluster --order 4 --shard-rows 65536 --stages --workers 2` of {parts} M words gave the laws. These plans",
        "were committed (`lm_plan.json`) before a larger run had ended. Planned, took, and the difference.", "",
    ]  # fmt: skip
    rows, near, every = table(plans, runs)
    return [*lines, *rows, "", f"Within 25 %: {near} of {every}."]


def page_of_one_process(plans: dict[str, Any], runs: list[str]) -> list[str]:
    lines = [
        "# A plan of language models in one process beside the runs", "",
        "`python benchmarks/lm_plan.py predict --one-process --from RUN … --words N,N,N`, the runs, then `… compare",
        "--one-process --run RUN …`: `lm cluster --workers 2` gave the laws; each plan was made before its run began.",
        "Planned, took, and the difference.", "",
    ]  # fmt: skip
    near = every = 0
    for order, held in sorted(plans.items()):
        of = [took(run) for run in runs if order_of(run) == order]
        rows, close, cells = table(held["plans"], of)
        near, every = near + close, every + cells
        parts = ", ".join(f"{size:.2f}" for size in held["of"])
        lines += [f"Order {order}, from runs of {parts} M words:", "", *rows, ""]
    return [*lines, f"Within 25 %: {near} of {every}."]


def order_of(run: str) -> str:
    return str(len(Artifact(f"{run}/arpa").manifest.summary["ngrams"]))


def table(plans: list[dict[str, Any]], runs: list[dict[str, float]]) -> tuple[list[str], int, int]:
    """The rows of a table, how many of its figures are within 25 %, and of how many."""
    head = [f"{run['words'] / 1e6:.2f} M words" for run in runs]
    lines = [f"| | {' | '.join(head)} |", f"| --- |{' ---: |' * len(runs)}"]
    near = every = 0
    for key, name in SHOWN.items():
        unit = 1e6 if key.endswith("bytes") else 1.0
        cells = []
        for plan, run in zip(plans, runs, strict=True):
            if not run[key]:
                continue  # nothing is shuffled within a process
            off = plan[key] / run[key] - 1
            near, every = near + (abs(off) <= 0.25), every + 1
            digits = 1 if run[key] / unit < 10 else 0
            cells.append(f"{plan[key] / unit:,.{digits}f}, {run[key] / unit:,.{digits}f}: {off:+.0%}")
        if cells:
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines, near, every


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["predict", "compare"])
    parser.add_argument("--from", dest="small", action="append", default=[])
    parser.add_argument("--words", default="")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--run", action="append", default=[])
    parser.add_argument("--one-process", action="store_true")
    parser.add_argument("--note", default="", help="a sentence for the page")
    parser.add_argument("--write", action="store_true", help="write lm_plan.md beside this script")
    given = parser.parse_args()
    if given.part == "predict":
        of = [took(run)["words"] / 1e6 for run in given.small]
        cores = [] if given.one_process else ["--cores", str(given.cores)]
        plans = predict(given.small, given.words.split(","), cores)
        if given.one_process:
            held = json.loads(ONE.read_text()) if ONE.exists() else {}
            held[order_of(given.small[0])] = {"of": of, "plans": plans}
            ONE.write_text(json.dumps(held, indent=1) + "\n")
            return
        PLANS.write_text(json.dumps({"of": of, "plans": plans}, indent=1) + "\n")
        return
    note = ["", given.note] if given.note else []
    if given.one_process:
        lines = page_of_one_process(json.loads(ONE.read_text()), given.run)
        publish(str(ONE), [*lines, *note, "", machine(python())], write=given.write)
        return
    held = json.loads(PLANS.read_text())
    lines = page(held["plans"], [took(run) for run in given.run], held["of"])
    publish(__file__, [*lines, *note, "", machine(python())], write=given.write)


if __name__ == "__main__":
    main()
