"""Gradient threshold compression against dense synchronous SGD at 8 to 128 workers, on frames of spoken digits.

    python benchmarks/gtc_convergence.py FOLDER [--workers 64 8 …] [--scale 1.0] [--minutes M] [--write]

Model, data and learning rates are those of `sync_convergence.py`; both trainers get the same samples, rates, clipping.
Workers are rows of a matrix (`stacked_gtc`). Every cell begins with steps that the real synchronisers make too, on
virtual workers, and ends there unless the weights are the same (GTC: bit for bit; dense sums round in another order).
Every cell's result is appended to gtc_convergence.jsonl and not computed again; `--write` makes the page of what is
there and names what is missing.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import stacked_lstm
import torch
from stacked_gtc import StackedDense, StackedGtc
from stacked_lstm import Weights
from sync_convergence import Cell, gradients, read, rows_of
from sync_frames import Frames, load
from torch import Tensor

from megahour import sync
from megahour.sync import virtual
from megahour.sync.threshold import schedule

RESULTS = Path(__file__).with_suffix(".jsonl")
RATES = {8: 2.0, 16: 3.0, 32: 5.0, 64: 8.0, 128: 12.0}  # the same for both; not tuned for each N
DENSITY, WARMUP_SHARE = 0.002, 0.08
CAPACITY = 1 / 16  # that of `sync.gtc`
CHECKED_STEPS = 12


def cells(scale: float, counts: list[int]) -> list[Cell]:
    """Both trainers at every number of workers."""
    found = []
    for workers in counts:
        make = partial(Cell, "gtc", workers=workers, chunks=4, frames=16e6 * scale, learning_rate=RATES[workers])
        warmup = round(WARMUP_SHARE * make(name="", trainer="").steps)
        options = {"density": DENSITY, "warmup_steps": warmup}
        found += [make(name="dense", trainer="dense"), make(name="GTC", trainer="gtc", options=options)]
    return found


def run(cell: Cell, frames: Frames) -> dict[str, Any]:
    """The cell with its test accuracy in %, the metrics' means over steps, and the seconds it took."""
    cpu_s = time.process_time()
    model = Weights(cell.seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    assert cell.clip_norm is not None
    trainer: StackedDense | StackedGtc = StackedDense(cell.clip_norm)
    if cell.trainer == "gtc":
        follow = schedule(None, warmup_from=0.1, **cell.options)
        trainer = StackedGtc(cell.workers, model.vector.numel(), cell.clip_norm, follow, CAPACITY)
    sums: dict[str, float] = {}
    for step in range(cell.steps):
        if step == min(CHECKED_STEPS, cell.steps - 1):
            compare(cell, model.vector.detach(), frames)
        optimiser.param_groups[0]["lr"] = cell.rate(step)
        features, labels = frames.batch(step, cell.workers, cell.chunks, cell.seed)
        same = model.vector.detach().repeat(cell.workers, 1)
        model.vector.grad = trainer.mean(stacked_lstm.gradients(same, features, labels)[0])
        optimiser.step()
        for name, value in trainer.metrics().items():
            sums[name] = sums.get(name, 0.0) + value / cell.steps
    accuracy = 100 * stacked_lstm.accuracy(model.vector.detach(), frames.test, frames.test_labels)
    measured = {"steps": cell.steps, "accuracy": round(accuracy, 3), "cpu_s": round(time.process_time() - cpu_s, 1)}
    return asdict(cell) | measured | {"metrics": {name: round(value, 6) for name, value in sorted(sums.items())}}


def compare(cell: Cell, vector: Tensor, frames: Frames) -> None:
    """Raises unless the real synchroniser on virtual workers has the same weights after the first steps."""

    def work(group: virtual.VirtualGroup) -> Tensor:
        model = Weights(cell.seed)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
        worker = sync.build(cell.trainer, model, optimiser, group=group, clip_norm=cell.clip_norm, **cell.options)
        for step in range(min(CHECKED_STEPS, cell.steps - 1)):
            optimiser.param_groups[0]["lr"] = cell.rate(step)
            model.vector.grad = group.together(partial(gradients, frames, cell, step), model.vector.detach())
            worker.step()
        return model.vector.detach()

    for real in virtual.run(work, cell.workers):
        tolerance = 0.0 if cell.trainer == "gtc" else 1e-4
        torch.testing.assert_close(vector, real, rtol=0, atol=tolerance)


def page(rows: list[dict[str, Any]], missing: list[Cell], command: str) -> str:
    """The page of what is there."""
    found = {(row["name"], row["workers"]): row for row in rows}
    lines = ["# GTC and dense synchronous SGD", "", f"`{command}`", ""]
    if rows:
        lines += [
            f"{rows[0]['frames'] / 1e6:g} M frames, four chunks of ten frames a worker and step, clipping at 5; GTC "
            f"aims at a density of {DENSITY:.1%}, from ten times that over the first {WARMUP_SHARE:.0%} of the steps.",
            "",
            "| N | learning rate | dense, frame accuracy % | GTC | relative | elements sent | words on the wire | τ |",
            "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
    for workers in sorted({cell for _, cell in found}):
        dense, ours = found.get(("dense", workers)), found.get(("GTC", workers))
        if dense and ours:
            means = ours["metrics"]
            lines.append(
                f"| {workers} | {RATES[workers]:g} | {dense['accuracy']:.2f} | {ours['accuracy']:.2f} "
                f"| {ours['accuracy'] / dense['accuracy'] - 1:+.2%} | {means['density']:.3%} | {means['room']:.2%} "
                f"| {means['threshold']:.2f} |"
            )
    lines += [
        "",
        "Elements sent, words and τ are means over all steps, the warm-up among them. One seed. Messages of so ",
    ]
    lines[-1] += "small a model always have room for a sixteenth of its elements: hence the words on the wire."
    lines += ["", *(f"Not run: {cell.name}, N = {cell.workers}." for cell in missing)]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the Free Spoken Digit Dataset")
    parser.add_argument("--workers", type=int, nargs="*", choices=RATES, default=list(RATES))
    parser.add_argument("--scale", type=float, default=1.0, help="share of each cell's frames")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after so many")
    parser.add_argument("--write", action="store_true", help="write gtc_convergence.md beside this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began_s = time.monotonic()
    wanted = cells(options.scale, options.workers)
    _, missing = rows_of(wanted, read(RESULTS))
    frames = load(options.folder) if missing and options.minutes > 0 else None
    for cell in missing:
        if frames is None or time.monotonic() - began_s > 60 * options.minutes:
            break
        row = run(cell, frames)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(f"{cell.name}, N = {cell.workers}: {row['accuracy']:.2f} %, {row['metrics']}", flush=True)
    rows, missing = rows_of(wanted, read(RESULTS))
    text = page(rows, missing, f"python benchmarks/gtc_convergence.py FOLDER --scale {options.scale:g} --write")
    print(text)
    if options.write:
        Path(__file__).with_suffix(".md").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
