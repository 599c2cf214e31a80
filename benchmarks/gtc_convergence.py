"""Gradient threshold compression against dense synchronous SGD at 8 to 128 workers, on frames of spoken digits.

    python benchmarks/gtc_convergence.py FOLDER [--workers 64 8 …] [--seeds 3] [--scale 1.0] [--minutes M] [--write]

Model, data and learning rates are those of `sync_convergence.py`; both trainers get the same samples, rates, clipping.
Workers are rows of a matrix (`stacked_gtc`), checked against the real synchronisers at the start of every run
(`convergence`). Every cell's result is appended to gtc_convergence.jsonl and not computed again; `--write` makes the
page of what is there and names what is missing.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from pathlib import Path

import torch
from convergence import Cell, Row, results, run_stacked
from page import publish
from sync_convergence import RATES
from sync_frames import COPIES

RESULTS = Path(__file__).with_suffix(".jsonl")
DENSITY, WARMUP_SHARE = 0.002, 0.08


def cells(scale: float, counts: list[int], seeds: int) -> list[Cell]:
    """Both trainers at every number of workers."""
    found = []
    for seed in range(seeds):
        for workers in counts:
            make = partial(
                Cell, "gtc", workers=workers, chunks=4, frames=16e6 * scale, learning_rate=RATES[workers], seed=seed,
                test_copies=COPIES,
            )  # fmt: skip
            warmup = round(WARMUP_SHARE * make(name="", trainer="").steps)
            options = {"density": DENSITY, "warmup_steps": warmup}
            found += [make(name="dense", trainer="dense"), make(name="GTC", trainer="gtc", options=options)]
    return found


def page(rows: list[Row], missing: list[Cell], command: str) -> str:
    """The page of the existing results."""
    lines = ["# GTC and dense synchronous SGD", "", f"`{command}`", ""]
    if rows:
        lines += [
            f"{rows[0]['frames'] / 1e6:g} M frames, four chunks of ten frames a worker and step, clipping at 5; GTC "
            f"aims at a density of {DENSITY:.1%}, from ten times that over the first {WARMUP_SHARE:.0%} of the steps. "
            f"Accuracies are of {COPIES} noisy copies of the test files; with one, seeds differ about twice as much.",
            "",
            "| N | learning rate | seeds | dense, frame accuracy % | GTC | relative ± standard error | of each seed "
            "| elements sent | words on the wire | τ |",
            "| ---: " * 10 + "|",
        ]
    for workers in sorted({row["workers"] for row in rows}):
        line = compared([row for row in rows if row["workers"] == workers])
        lines += [f"| {workers} | {RATES[workers]:g} | {line} |"] if line else []
    lines += [
        "",
        "Elements sent, words and τ are means over all steps, the warm-up among them, and seeds. Messages of so small "
        "a model always have room for a sixteenth of its elements: hence the words on the wire.",
        "",
    ]
    for workers in sorted({cell.workers for cell in missing}):
        seeds = sorted({cell.seed for cell in missing if cell.workers == workers})
        lines.append(f"Not run: N = {workers}, seeds {', '.join(map(str, seeds))}.")
    return "\n".join(lines).rstrip() + "\n"


def compared(rows: list[Row]) -> str:
    """Both trainers with one number of workers, over the seeds that both have."""
    dense, ours = ({row["seed"]: row for row in rows if row["name"] == name} for name in ("dense", "GTC"))
    seeds = sorted(dense.keys() & ours.keys())
    if not seeds:
        return ""
    each = [ours[seed]["accuracy"] / dense[seed]["accuracy"] - 1 for seed in seeds]
    means = [statistics.mean(found[seed]["accuracy"] for seed in seeds) for found in (dense, ours)]
    metrics = {
        name: statistics.mean(ours[seed]["metrics"][name] for seed in seeds)
        for name in ("density", "room", "threshold")
    }
    return " | ".join(
        [
            *(str(len(seeds)), f"{means[0]:.2f}", f"{means[1]:.2f}", _with_error(each)),
            ", ".join(f"{relative:+.2%}" for relative in each),
            *(f"{metrics['density']:.3%}", f"{metrics['room']:.2%}", f"{metrics['threshold']:.2f}"),
        ]
    )


def _with_error(each: list[float]) -> str:
    """The mean with its standard error."""
    error = f" ± {100 * statistics.stdev(each) / len(each) ** 0.5:.2f}" if len(each) > 1 else ""
    return f"{statistics.mean(each):+.2%}{error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the Free Spoken Digit Dataset")
    parser.add_argument("--workers", type=int, nargs="*", choices=RATES, default=list(RATES))
    parser.add_argument("--seeds", type=int, default=3, help="runs of each trainer")
    parser.add_argument("--scale", type=float, default=1.0, help="share of each cell's frames")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after so many")
    parser.add_argument("--write", action="store_true", help="write gtc_convergence.md beside this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    wanted = cells(options.scale, options.workers, options.seeds)
    rows, missing = results(wanted, RESULTS, options.folder, options.minutes, run_stacked)
    text = page(rows, missing, f"python benchmarks/gtc_convergence.py FOLDER --scale {options.scale:g} --write")
    publish(__file__, text, write=options.write)


if __name__ == "__main__":
    main()
