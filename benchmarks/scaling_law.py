"""Word error rates of the demo's models against the hours that they learn from, and a law through them.

python benchmarks/scaling_law.py --folder runs/scaling [--seeds 1,2,3] [--hours 6.6] [--write]

The demo's corpus and models; its untranscribed hours come in five parts, of which a student has the first, the first
two and so on: 1, 2, 4, 8 and 16 times the smallest. Supervised models learn from the same parts with transcripts.
Students of what is left of all parts when the teacher's least sure utterances are dropped stand beside them. Each
training has the demo's passes, so more hours are also more steps. The runs resume, some 40 CPU-minutes a seed.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from page import machine, publish, python

from megahour.core.store import Artifact

TIMES = (1, 2, 4, 8, 16)
PARTS = tuple(f"part-{times}" for times in TIMES)
ENTROPIES = (1.5, 1.3, 1.1)  # nats a frame, above which an utterance is dropped: some 3, 2 and 1 quarters stay
DEMO = Path(__file__).parents[1] / "megahour" / "recipes" / "demo.yaml"
LEFT_OUT = ("baseline", "student", "targets", "score", "report")  # beginnings of the demo's steps that others replace
Steps = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Point:
    """A model: what it learnt from, and the errors on the test speakers."""

    hours: float
    wer: float


def recipe(run: Path, seed: int, hours: float) -> dict[str, Any]:
    """The demo up to its teacher, then supervised models and students of the parts."""
    made: dict[str, Any] = yaml.safe_load(DEMO.read_text("utf-8"))
    demo: Steps = made["steps"]
    steps = {name: step for name, step in demo.items() if not name.startswith(LEFT_OUT)}
    steps["raw"] |= {"hours": hours}
    smallest = 0.55 * hours / TIMES[-1]  # what is cut, less the labelled, tuning and test hours, is somewhat more
    sizes = [smallest * (times - before) for times, before in zip(TIMES, (0, *TIMES), strict=False)]
    test, tune, *_ = steps["selection"]["sets"]
    steps["selection"]["sets"] = [
        test,
        tune,
        {"name": "labelled", "hours": 0.45},
        *({"name": part, "hours": size} for part, size in zip(PARTS, sizes, strict=True)),
    ]
    steps |= decoded("teacher", demo, "units")
    steps["targets"] = demo["targets"] | {"sets": list(PARTS)}
    for count, part in enumerate(PARTS, 1):
        sets = list(PARTS[:count])
        units, supervised, student = (f"{name}-{part}" for name in ("units", "supervised", "student"))
        steps[units] = demo["units"] | {"sets": sets}
        steps[supervised] = demo["baseline"] | {"inputs": {"features": "features", "units": units}, "sets": sets}
        steps[student] = demo["student"] | {"unlabelled_sets": sets}
        steps |= decoded(supervised, demo, units) | decoded(student, demo, "units")
    for entropy in ENTROPIES:
        targets, student = filtered(entropy)
        steps[targets] = steps["targets"] | {"max_entropy": entropy}
        inputs = demo["student"]["inputs"] | {"targets": targets}
        steps[student] = demo["student"] | {"inputs": inputs, "unlabelled_sets": list(PARTS)}
        steps |= decoded(student, demo, "units")
    return made | {"run": str(run), "seed": seed, "about": "laws of hours", "steps": steps}


def filtered(entropy: float) -> tuple[str, str]:
    """Names of the steps of targets of at most this entropy, and of their student."""
    return f"targets-{100 * entropy:.0f}", f"student-{100 * entropy:.0f}"


def decoded(model: str, demo: Steps, units: str) -> Steps:
    """The steps that decode a model, at the scale that is best for the tuning speakers, and score it."""
    graph, tune, hypotheses = f"graph-{units}", f"{model}-tune", f"{model}-hypotheses"
    inputs = {"features": "features", "model": model, "graph": graph, "units": units}
    return {
        graph: demo["graph"] | {"inputs": demo["graph"]["inputs"] | {"units": units}},
        tune: demo["baseline-tune"] | {"inputs": inputs},
        hypotheses: demo["baseline-hypotheses"] | {"inputs": inputs | {"tuned": tune}, "model_name": model},
        f"{model}-score": demo["score"]
        | {"inputs": demo["score"]["inputs"] | {"baseline": "teacher-hypotheses", "student": hypotheses}},
    }


def wer(run: Path, model: str) -> float:
    """% of the words of all test speakers that are wrong."""
    table = Artifact(run / f"{model}-score").summary["table"]
    return float(100 * next(row["wer_student"] for row in table if row["condition"] == "all"))


def results(run: Path) -> dict[str, list[Point]]:
    """The points of a seed."""
    sets = Artifact(run / "selection").summary["sets"]
    hours = np.cumsum([sets[part]["hours"] for part in PARTS]).tolist()
    found = {
        name: [Point(size, wer(run, f"{name}-{part}")) for size, part in zip(hours, PARTS, strict=True)]
        for name in ("supervised", "student")
    }
    found["filtered"] = []
    for targets, student in map(filtered, ENTROPIES):
        share = Artifact(run / targets).summary["frames"] / Artifact(run / "targets").summary["frames"]
        found["filtered"].append(Point(hours[-1] * share, wer(run, student)))
    found["teacher"] = [Point(sets["labelled"]["hours"], wer(run, "teacher"))]
    return found


def law(points: Sequence[Point]) -> tuple[float, float]:
    """(a, b) of WER = a hours^-b, by least squares of the logarithms."""
    slope, intercept = np.polyfit(np.log([p.hours for p in points]), np.log([p.wer for p in points]), 1)
    return math.exp(intercept), -float(slope)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for the runs; what is there is not made again")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--hours", type=float, default=6.6, help="of recordings that are generated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write scaling_law.md beside this script")
    given = parser.parse_args()
    load, found = os.getloadavg()[0], []
    for seed in map(int, given.seeds.split(",")):
        run = (given.folder / f"seed-{seed}").absolute()
        file = run.with_suffix(".yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(recipe(run, seed, given.hours), sort_keys=False), "utf-8")
        words = [f"threads={given.threads}", f"engine.workers={given.threads}"]
        subprocess.run([sys.executable, "-m", "megahour", "run", str(file), *words], check=True)
        found.append(results(run))
    publish(__file__, page(given, found, load), write=given.write)


def page(given: argparse.Namespace, found: Sequence[dict[str, list[Point]]], load: float) -> list[str]:
    words = (given.folder, given.seeds, given.hours)
    lines = [
        "# Word error rates against hours",
        "",
        "`python benchmarks/scaling_law.py --folder {} --seeds {} --hours {} --write`".format(*words),
        "",
        "Generated speech of the demo: test speakers whom no model has heard, in five rooms; the demo's models and",
        "passes. More hours are also more steps. Figures are means of the seeds, those of each behind them.",
    ]
    names = {"supervised": "hours with transcripts", "student": "hours without, beside 0.45 labelled ones"}
    for name, heading in names.items():
        means = [mean_of([each[name][at] for each in found]) for at in range(len(TIMES))]
        a, b = law(means)
        lines += ["", f"## {heading.capitalize()}", "", f"| {heading} | WER, % | of each seed | law, % | WER off by |"]
        lines += ["| ---: | ---: | --- | ---: | ---: |"]
        for at, point in enumerate(means):
            told = a * point.hours**-b
            each = ", ".join(f"{run[name][at].wer:.2f}" for run in found)
            lines.append(f"| {point.hours:.2f} | {point.wer:.2f} | {each} | {told:.2f} | {point.wer / told - 1:+.1%} |")
        lines += ["", f"WER = {a:.1f} · hours^-{b:.3f}: twice the hours, {1 - 2**-b:.1%} fewer errors."]
    teacher = mean_of([each["teacher"][0] for each in found])
    lines += ["", f"The teacher, of {teacher.hours:.2f} labelled hours: {teacher.wer:.2f} %."]
    lines += filter_table(found)
    return [*lines, "", machine(python(), load=load)]


def filter_table(found: Sequence[dict[str, list[Point]]]) -> list[str]:
    """Students of the teacher's surest utterances, beside what the law has for as many hours drawn by speaker."""
    a, b = law([mean_of([each["student"][at] for each in found]) for at in range(len(TIMES))])
    lines = [
        "",
        "## The teacher's surest utterances",
        "",
        "Students of the utterances of all parts whose frames have at most a mean entropy, in nats. The law is that of",
        "students of as many hours of all kinds.",
        "",
        "| at most | hours | WER, % | of each seed | law of as many hours, % |",
        "| ---: | ---: | ---: | --- | ---: |",
    ]
    whole = mean_of([each["student"][-1] for each in found])
    rows = [("all", whole, [each["student"][-1] for each in found])]
    for at, entropy in enumerate(ENTROPIES):
        points = [each["filtered"][at] for each in found]
        rows.append((f"{entropy}", mean_of(points), points))
    for name, mean, points in rows:
        each_wer = ", ".join(f"{point.wer:.2f}" for point in points)
        lines.append(f"| {name} | {mean.hours:.2f} | {mean.wer:.2f} | {each_wer} | {a * mean.hours**-b:.2f} |")
    return lines


def mean_of(points: Sequence[Point]) -> Point:
    return Point(float(np.mean([p.hours for p in points])), float(np.mean([p.wer for p in points])))


if __name__ == "__main__":
    main()
