"""Students of the targets that a teacher is surest of, beside a student of all targets, on AN4 with a third labelled.

python benchmarks/target_filters.py path/to/an4 --folder runs/filters [--folds 0,1,2,3,4,5,6] [--write]

The recipe an4 in each fold, and students beside it that differ in their targets alone: those of the utterances with the
lowest entropy of the teacher (stage `targets`, `share`), or with the highest confidence of its words in a lattice of a
trigram of the labelled texts (stages `lattices` and `pseudo-label`). Passes are the recipe's, so fewer targets are
fewer steps, too. A student of all targets with the next seed shows what chance does. Nothing is chosen by a result.
The runs resume.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from page import machine, publish, python

from megahour.core.store import Artifact
from megahour.score.pooled import pooled

FILTERS = {"entropy": (90, 75, 60), "confidence": (75,)}  # % of utterances that each keeps
AGAIN = "again"  # a student of all targets with another seed: what chance does
AN4 = Path(__file__).parents[1] / "megahour" / "recipes" / "an4.yaml"
Steps = dict[str, dict[str, Any]]


def recipe(run: Path, data: Path, fold: int, seed: int) -> dict[str, Any]:
    """The recipe an4 of one of seven folds, and a student of each filter, scored beside the recipe's student."""
    made: dict[str, Any] = yaml.safe_load(AN4.read_text("utf-8"))
    steps: Steps = made["steps"]
    heard = {"features": "features", "graph": "labelled-graph", "units": "units"}
    steps |= {
        "labelled-lm": steps["lm"] | {"sets": ["labelled"]},
        "labelled-graph": steps["graph"] | {"inputs": steps["graph"]["inputs"] | {"lm": "labelled-lm"}},
        "tune-heard": steps["baseline-tune"] | {"inputs": heard | {"model": "baseline"}},
        "heard": steps["baseline-hypotheses"]
        | {"inputs": heard | {"model": "baseline", "tuned": "tune-heard"}, "sets": ["unlabelled"], "lattice": 6},
        "confidences": {"stage": "lattices", "inputs": {"lattices": "heard"}},
    }
    for share in FILTERS["entropy"]:
        steps[f"entropy-{share}"] = steps["targets"] | {"share": share / 100}
    for share in FILTERS["confidence"]:
        inputs = {"features": "features", "hypotheses": "confidences"}
        steps[f"chosen-{share}"] = {"stage": "pseudo-label", "inputs": inputs, "share": share / 100}
        inputs = steps["targets"]["inputs"] | {"pseudo_labels": f"chosen-{share}"}
        steps[f"confidence-{share}"] = steps["targets"] | {"inputs": inputs}
    for targets in filters():
        steps |= student(steps, targets, targets, seed)
    steps |= student(steps, AGAIN, "targets", seed + 1)
    variables = made["vars"] | {"data": str(data), "folds": 7, "fold": fold}
    return made | {"run": str(run), "seed": seed, "vars": variables, "steps": steps}


def filters() -> list[str]:
    """The names of the steps with filtered targets."""
    return [f"{kind}-{share}" for kind, shares in FILTERS.items() for share in shares]


def student(steps: Steps, name: str, targets: str, seed: int) -> Steps:
    """The steps that train a student of these targets, decode it as the recipe's student, and score it beside that."""

    def changed(step: str, **inputs: str) -> dict[str, Any]:
        return steps[step] | {"inputs": steps[step]["inputs"] | inputs}

    return {
        f"{name}-ce": changed("student-ce", targets=targets) | {"seed": seed},
        f"{name}-student": changed("student", initial=f"{name}-ce") | {"seed": seed},
        f"{name}-tune": changed("student-tune", model=f"{name}-student"),
        f"{name}-hypotheses": changed("student-hypotheses", model=f"{name}-student", tuned=f"{name}-tune"),
        f"{name}-score": changed("score", baseline="student-hypotheses", student=f"{name}-hypotheses"),
    }


def table(runs: Sequence[Path]) -> list[str]:
    """A row a filter, pooled over the folds."""
    lines = ["| targets | frames kept % | teacher's mean top-1 % | WER % | WERR % | 95 % interval | P(better) |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    teacher = _pooled(runs, "score")
    lines.append(f"| none: the teacher | | | {100 * teacher['wer_baseline']:.2f} | | | |")
    for targets in ("targets", AGAIN, *filters()):
        made = [Artifact(run / ("targets" if targets == AGAIN else targets)).summary for run in runs]
        every = sum(Artifact(run / "targets").summary["frames"] for run in runs)
        frames = sum(one["frames"] for one in made)
        sure = sum(one["frames"] * one["mean_top1"] for one in made) / frames
        name = f"{filters()[0]}-score" if targets == "targets" else f"{targets}-score"
        row = _pooled(runs, name)
        start = f"| {targets} | {100 * frames / every:.0f} | {100 * sure:.1f} |"
        if targets == "targets":
            lines.append(f"{start} {100 * row['wer_baseline']:.2f} | | | |")
        else:
            low, high = row["werr_interval"]
            lines.append(
                f"{start} {100 * row['wer_student']:.2f} | {100 * row['werr']:.1f} | "
                f"{100 * low:.1f} … {100 * high:.1f} | {row['probability_of_improvement']:.3f} |"
            )
    return lines


def _pooled(runs: Sequence[Path], score: str) -> dict[str, Any]:
    """The row of all test speakers of these runs."""
    return pooled([Artifact(run / score) for run in runs]).table(1000, 0)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of AN4: feat and etc")
    parser.add_argument("--folder", type=Path, required=True, help="for the runs; what is there is not made again")
    parser.add_argument("--folds", default="0,1,2,3,4,5,6")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write target_filters.md beside this script")
    given = parser.parse_args()
    runs = []
    for fold in map(int, given.folds.split(",")):
        run = (given.folder / f"an4-{fold}").absolute()
        file = run.with_suffix(".yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        made = recipe(run, given.data.absolute(), fold, given.seed)
        file.write_text(yaml.safe_dump(made, sort_keys=False), "utf-8")
        words = [sys.executable, "-m", "megahour", "run", str(file), "--quiet", "engine.workers=1"]
        subprocess.run(words, check=True)
        runs.append(run)
    publish(
        __file__,
        [f"# Students of filtered targets, AN4, folds {given.folds}", "", *table(runs), "", machine(python())],
        write=given.write,
    )


if __name__ == "__main__":
    main()
