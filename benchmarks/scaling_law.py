"""Word error rates against hours of speech without and with transcripts, and laws through them.

    python benchmarks/scaling_law.py --folder runs/scaling --seeds 1,2 [--write]

The demo's corpus, models, test speakers and labelled tenth. Its unlabelled speakers come in sixteen parts. A student of
1, 2, 4, 8 or 16 parts learns the teacher's targets for them, and the labelled tenth. A supervised model of the same
parts learns their transcripts and nothing else. Each set holds the smaller ones; a seed has its own order of the parts
and its own trainings. Larger sets get fewer passes: 18, 18, 9, 9 and 6 for students, with 18 over the labelled tenth
each; 42, 26, 15, 9 and 6 for supervised models. That is between equal passes, of few steps for small sets, and equal
steps, of many repetitions of small sets. Both rules go through the demo's settings: its student is the largest, and its
baseline, of 1.6 parts, has 30 passes. Acoustic scales are those that the demo chose on its tuning speakers. No setting
was tried out here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from laws import FITS, Fit, Floats, Law, power, with_floor
from numpy.typing import NDArray
from page import machine, publish, python

from megahour.core.store import Artifact
from megahour.recipes.shipped import FOLDER

TIMES = (1, 2, 4, 8, 16)
PARTS = [f"part-{number:02d}" for number in range(1, TIMES[-1] + 1)]
UNLABELLED_PASSES = dict(zip(TIMES, (18, 18, 9, 9, 6), strict=True))
LABELLED_PASSES = 18  # of each student
SUPERVISED_PASSES = dict(zip(TIMES, (42, 26, 15, 9, 6), strict=True))
WHOLE = 3  # the last of them, on whole utterances
SCALES = {"student": 0.3, "supervised": 0.45, "teacher": 0.45}  # of acoustics
TEST_HOURS = 0.75  # of 1.5, drawn by utterance
DRAWS = 1000
FITTED = """\
by relative errors; the tables have them at the mean hours. Intervals draw the test speakers, not the seeds. Laws hold
between the smallest set and the largest; what they foretell of the largest shows how far to trust them beyond."""
Steps = dict[str, dict[str, Any]]


def recipe(run: Path, seeds: Sequence[int], supervised: Sequence[int]) -> dict[str, Any]:
    """The demo up to its units, then for each seed a teacher and students; supervised models for some of the seeds."""
    made: dict[str, Any] = yaml.safe_load((FOLDER / "demo.yaml").read_text("utf-8"))
    demo: Steps = made["steps"]
    names = list(demo)
    steps = {name: demo[name] for name in [*names[: names.index("units") + 1], "graph"]}
    test, tune, labelled, _ = steps["selection"]["sets"]
    parts = [{"name": part, "share": 1 / (len(PARTS) - number)} for number, part in enumerate(PARTS)]
    steps["test-selection"] = steps["selection"] | {"sets": [test], "draw_hours": {"test": TEST_HOURS}}
    heard = {"selection": "test-selection", "utterances": "utterances"}
    steps["test-features"] = steps["features"] | {"inputs": heard}
    steps["selection"] = steps["selection"] | {"sets": [test, tune, labelled, *parts]}
    for seed in seeds:
        steps |= steps_of(seed, TIMES if seed in supervised else (), demo)
    made |= {"run": str(run), "about": "laws of hours (benchmarks/scaling_law.py)", "steps": steps}
    return made | {"threads": 1, "engine": {"kind": "local", "workers": 1}}


def order_of(seed: int) -> list[str]:
    """The parts in the order in which a seed's sets take them."""
    return [PARTS[number] for number in np.random.default_rng(seed).permutation(len(PARTS))]


def steps_of(seed: int, supervised: Sequence[int], demo: Steps) -> Steps:
    """The trainings of a seed, each with the steps that decode and score it. supervised: parts of those models."""
    teacher = f"teacher-{seed}"
    steps: Steps = {teacher: demo["teacher"] | {"seed": seed}}
    inputs = {"features": "features", "teacher": teacher}
    steps[f"targets-{seed}"] = demo["targets"] | {"inputs": inputs, "sets": PARTS}
    steps |= scored("teacher", f"{seed}", "units", demo)
    for times in TIMES:
        steps[f"student-{seed}-{times}"] = demo["student"] | {
            "inputs": demo["student"]["inputs"] | {"targets": f"targets-{seed}"},
            "unlabelled_sets": order_of(seed)[:times],
            "unlabelled_epochs": UNLABELLED_PASSES[times],
            "sub_epochs": LABELLED_PASSES // UNLABELLED_PASSES[times],
            "whole_sub_epochs": WHOLE,
            "seed": seed,
        }
        steps |= scored("student", f"{seed}-{times}", "units", demo)
    for times in supervised:
        units = f"units-{seed}-{times}"
        steps[units] = demo["units"] | {"sets": order_of(seed)[:times]}
        steps[f"supervised-{seed}-{times}"] = demo["baseline"] | {
            "inputs": {"features": "features", "units": units},
            "sets": order_of(seed)[:times],
            "epochs": SUPERVISED_PASSES[times] - WHOLE,
            "whole_epochs": WHOLE,
            "seed": seed,
        }
        steps |= scored("supervised", f"{seed}-{times}", units, demo)
    return steps


def scored(kind: str, which: str, units: str, demo: Steps) -> Steps:
    """The steps that decode and score model KIND-WHICH."""
    graph, hypotheses = units.replace("units", "graph"), f"{kind}-{which}-hypotheses"
    inputs = {"features": "test-features", "model": f"{kind}-{which}", "graph": graph, "units": units}
    decode = demo["baseline-hypotheses"] | {"inputs": inputs, "model_name": kind, "acoustic_scale": SCALES[kind]}
    of = {"features": "test-features", "selection": "test-selection", "baseline": hypotheses, "student": hypotheses}
    return {
        graph: demo["graph"] | {"inputs": demo["graph"]["inputs"] | {"units": units}},
        hypotheses: decode,
        f"{kind}-{which}-score": demo["score"] | {"inputs": demo["score"]["inputs"] | of},
    }


@dataclass(frozen=True)
class Point:
    """Models of one size and kind: hours and steps (S,) of each seed, and errors (S, N) on each test speaker."""

    parts: int
    hours: Floats
    steps: Floats
    errors: Floats

    def wer(self, words: Floats, speakers: NDArray[np.intp] | None = None) -> Floats:
        """% of words wrong (S,) of each seed. words: (N,); speakers: those that count, of N all as a default."""
        chosen = np.arange(len(words)) if speakers is None else speakers
        return 100 * np.asarray(self.errors[:, chosen].sum(axis=1) / words[chosen].sum())


@dataclass(frozen=True)
class Results:
    """Words (N,) of each test speaker, the two curves, and the teachers, which learn from the labelled tenth alone."""

    words: Floats
    curves: dict[str, list[Point]]
    teacher: Point


def results(run: Path, seeds: Sequence[int], supervised: Sequence[int]) -> Results:
    """Reads the scores of a run."""
    sets = Artifact(str(run / "selection")).summary["sets"]
    labelled = [sets["labelled"]["hours"] for _ in seeds]
    teacher = point(run, "teacher", [f"{seed}" for seed in seeds], labelled, 0)
    curves: dict[str, list[Point]] = {}
    for kind, trained in {"student": seeds, "supervised": supervised}.items():
        curves[kind] = []
        for times in TIMES:
            hours = [sum(sets[part]["hours"] for part in order_of(seed)[:times]) for seed in trained]
            curves[kind].append(point(run, kind, [f"{seed}-{times}" for seed in trained], hours, times))
    return Results(by_speaker(run / f"teacher-{seeds[0]}-score")[0], curves, teacher)


def point(run: Path, kind: str, which: Sequence[str], hours: Sequence[float], parts: int) -> Point:
    """The models KIND-WHICH."""
    curves = [Artifact(str(run / f"{kind}-{one}")).read_bytes(0, ".curves.jsonl") for one in which]
    steps = [json.loads(curve.splitlines()[-1])["step"] for curve in curves]
    errors = [by_speaker(run / f"{kind}-{one}-score")[1] for one in which]
    return Point(parts, np.array(hours), np.array(steps, float), np.array(errors))


def by_speaker(score: Path) -> tuple[Floats, Floats]:
    """Words and errors (N,) of the test speakers, by name."""
    table = Artifact(str(score)).read_table(0)
    speakers = np.array(table["speaker"].to_pylist())
    words = np.array([len(text.split()) for text in table["reference"].to_pylist()])
    errors = np.array(table["errors_student"].to_pylist())
    each = [speakers == name for name in sorted(set(speakers.tolist()))]
    return np.array([words[own].sum() for own in each], float), np.array([errors[own].sum() for own in each], float)


def fitted(fit: Fit, points: Sequence[Point], words: Floats, speakers: NDArray[np.intp] | None = None) -> Law:
    """The law of all seeds' points."""
    hours = np.concatenate([point.hours for point in points])
    return fit(hours, np.concatenate([point.wer(words, speakers) for point in points]))


def draws_of(words: Floats) -> list[NDArray[np.intp]]:
    """Test speakers drawn with replacement, DRAWS times."""
    return list(np.random.default_rng(0).integers(len(words), size=(DRAWS, len(words))))


def between(values: Sequence[float], digits: int = 1) -> str:
    low, high = np.percentile(values, (2.5, 97.5))
    return f"{low:.{digits}f} … {high:.{digits}f}"


def curve_lines(points: Sequence[Point], words: Floats) -> list[str]:
    """The table of a curve: error rates, and how far each law is off."""
    draws = draws_of(words)
    laws = {name: fitted(fit, points, words) for name, fit in FITS.items()}
    names = "".join(f" `{name}` | off by |" for name in laws)
    lines = [f"| parts | hours | steps | WER %, each seed | mean | 95 % over speakers |{names}"]
    lines.append("| ---: | ---: | ---: | --- | ---: | --- |" + " ---: | ---: |" * len(laws))
    for point in points:
        wer, hours = point.wer(words), float(point.hours.mean())
        each = " ".join(f"{value:.1f}" for value in wer)
        interval = between([float(point.wer(words, draw).mean()) for draw in draws])
        cells = [f"{point.parts}", f"{hours:.2f}", f"{point.steps.mean():,.0f}", each, f"{wer.mean():.1f}", interval]
        for law in laws.values():
            cells += [f"{law(hours):.1f}", f"{wer.mean() / law(hours) - 1:+.1%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def law_line(name: str, points: Sequence[Point], words: Floats) -> str:
    """A fit, its residuals, and its prediction for the largest set without using it."""
    fit, largest = FITS[name], float(points[-1].wer(words).mean())
    law = fitted(fit, points, words)
    drawn = [fitted(fit, points, words, draw) for draw in draws_of(words)]
    off = np.concatenate([point.wer(words) / law(point.hours) - 1 for point in points])
    told = float(fitted(fit, points[:-1], words)(points[-1].hours).mean())
    floor = f", a {between([one.floor for one in drawn])}" if fit is with_floor else ""
    return (
        f"- `{name}`: WER = {law}; c {between([one.exponent for one in drawn], 2)}{floor} (95 % over speakers). "
        f"Root mean square of the residuals {100 * np.sqrt((off**2).mean()):.1f} %. Fitted without the largest set it "
        f"foretells {told:.1f} % there, and {largest:.1f} % were measured ({told / largest - 1:+.1%})."
    )


def worth(found: Results) -> str:
    """The hours with transcripts that make a supervised model as good as the largest student, between its neighbours.

    Logarithms of hours are read off the line through those of the measured means; past its ends, the end counts.
    """
    words, largest, teacher = found.words, found.curves["student"][-1], found.teacher
    wer, taught = (float(one.wer(words).mean()) for one in (largest, teacher))
    hours, labelled = largest.hours.mean(), teacher.hours.mean()
    measured = [(one.wer(words).mean(), np.log(one.hours.mean())) for one in found.curves["supervised"]]
    rates, logs = zip(*sorted(measured), strict=True)
    equal = float(np.exp(np.interp(wer, rates, logs)))
    drawn = [100 - 100 * float(largest.wer(words, d).mean() / teacher.wer(words, d).mean()) for d in draws_of(words)]
    return (
        f"The teacher of {labelled:.2f} labelled hours has {taught:.1f} %. With {hours:.1f} hours without transcripts "
        f"beside them a student has {wer:.1f} %: {100 - 100 * wer / taught:.1f} % fewer errors than its teacher "
        f"({between(drawn)}). A supervised model needs {equal:.2f} hours to be as good, read between those measured. "
        f"So an hour without transcripts was worth {(equal - labelled) / hours:.2f} with them. The labelled tenth has "
        "four speakers; another four would make another teacher."
    )


def page(found: Results, given: argparse.Namespace, cpu_s: float, load: float) -> list[str]:
    command = f"python benchmarks/scaling_law.py --folder runs/{given.folder.name} --seeds {listed(given.seeds)}"
    if given.supervised:
        command += f" --supervised {listed(given.supervised)}"
    command += " --write"
    lines = ["# Word error rates against hours", "", f"`{command}`", "", (__doc__ or "").split("\n\n")[2].strip()]
    for kind, heading in {"student": "Hours without transcripts", "supervised": "Hours with transcripts"}.items():
        points = found.curves[kind]
        lines += ["", f"## {heading}", "", *curve_lines(points, found.words), ""]
        lines += [law_line(name, points, found.words) for name in FITS]
        twice = 1 - 2 ** -fitted(power, points, found.words).exponent
        lines.append(f"- Twice the hours, by the power law: {twice:.1%} fewer errors.")
    lines += ["", "## What hours without transcripts are worth", "", worth(found), ""]
    heard = (
        f"{int(found.words.sum()):,} words of {len(found.words)} test speakers in five rooms, whom no model has heard."
    )
    lines += [f"{heard} Laws are fitted to the points of all seeds,", FITTED, ""]
    return [*lines, machine(python(), f"{cpu_s / 60:.0f} CPU-minutes, those of the corpus among them", load=load)]


def cpu_seconds(run: Path) -> float:
    """CPU seconds of all tasks of a run; those of the model service are not known."""
    timings = [Artifact(str(step)).timings() for step in run.iterdir() if (step / "manifest.json").exists()]
    return float(sum(each.get("cpu_seconds", 0) for timing in timings for each in timing.values()))


def listed(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for the run; what is there is not made again")
    parser.add_argument("--seeds", type=numbers, default=[1, 2])
    parser.add_argument("--supervised", type=numbers, default=[], help="seeds of supervised models, if not all")
    parser.add_argument("--write", action="store_true", help="write scaling_law.md beside this script")
    given = parser.parse_args()
    load, run = os.getloadavg()[0], given.folder.absolute()
    run.mkdir(parents=True, exist_ok=True)
    file = run.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(recipe(run, given.seeds, given.supervised or given.seeds), sort_keys=False), "utf-8")
    subprocess.run([sys.executable, "-m", "megahour", "run", str(file)], check=True)
    publish(
        __file__,
        page(results(run, given.seeds, given.supervised or given.seeds), given, cpu_seconds(run), load),
        write=given.write,
    )


if __name__ == "__main__":
    main()
