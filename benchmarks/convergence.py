"""Cells of the convergence experiments: their definition, how they run, and the file of results.

Two ways to run: the real synchronisers on virtual workers, or, for trainers whose workers are in step, rows of a
matrix (`stacked_gtc`, `stacked_bmuf`). The second begins with steps that the real synchronisers make too, and ends
there unless the weights are the same (GTC: bit for bit; others: up to the order of sums).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import stacked_lstm
import torch
from stacked_bmuf import StackedBmuf
from stacked_gtc import StackedDense, StackedGtc
from stacked_lstm import Weights
from sync_frames import CHUNK, Frames, load
from torch import Tensor

from megahour import sync
from megahour.sync.compress.threshold import schedule
from megahour.sync.group import virtual
from megahour.sync.params import BmufOptions, GtcOptions

LAST_RATE = 0.05  # of the first learning rate, at the end
CAPACITY = 1 / 16  # that of `sync.gtc`
CHECKED_STEPS = 13
TOLERANCE = {"gtc": 0.0, "dense": 1e-4, "bmuf": 1e-4}
Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One training run. `frames` is the number of all workers' frames together; `chunks` those of a worker's step.

    test_copies: noisy copies of the test files that the accuracy is of.
    """

    table: str
    name: str
    trainer: str
    workers: int
    chunks: int
    frames: float
    learning_rate: float
    seed: int = 0
    warm_up: float = 0.0
    clip_norm: float | None = 5.0
    options: dict[str, Any] = field(default_factory=dict)
    test_copies: int = 1

    @property
    def steps(self) -> int:
        return round(self.frames / (self.workers * self.chunks * CHUNK))

    @property
    def key(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    def rate(self, step: int) -> float:
        """Learning rate: up over `warm_up` of the run, constant to its half, then down exponentially."""
        done = step / self.steps
        up = min(1.0, (step + 1) / (self.warm_up * self.steps)) if self.warm_up else 1.0
        return self.learning_rate * up * LAST_RATE ** max(0.0, 2 * done - 1)


class Stacked(Protocol):
    """All workers of a trainer that keeps them in step."""

    weights: Tensor
    """(N, D)"""
    metrics: dict[str, float]

    def step(self, gradients: Tensor, rate: float) -> None: ...

    def finish(self) -> Tensor: ...


class Common:
    """Workers with one model (D,), moved by the mean that `trainer` makes of their gradients."""

    def __init__(self, model: Tensor, workers: int, trainer: StackedDense | StackedGtc) -> None:
        self._model, self._trainer = model, trainer
        self.weights = model.expand(workers, -1)
        self.metrics: dict[str, float] = {}

    def step(self, gradients: Tensor, rate: float) -> None:
        self._model.add_(self._trainer.mean(gradients), alpha=-rate)
        self.metrics = self._trainer.metrics()

    def finish(self) -> Tensor:
        return self._model


def stacked(cell: Cell) -> Stacked:
    """The workers of a cell at its beginning."""
    model = Weights(cell.seed).vector.detach()
    options = dict(cell.options)
    if cell.trainer == "bmuf":
        return StackedBmuf(
            model, cell.workers, BmufOptions(clip_norm=cell.clip_norm, total_steps=cell.steps, **options)
        )
    assert cell.clip_norm is not None
    trainer: StackedDense | StackedGtc = StackedDense(cell.clip_norm)
    if cell.trainer == "gtc":
        follow = schedule(GtcOptions(**options))
        trainer = StackedGtc(cell.workers, model.numel(), cell.clip_norm, follow, CAPACITY)
    return Common(model, cell.workers, trainer)


def run_stacked(cell: Cell, frames: Frames) -> Row:
    """The cell with its result, on rows of a matrix."""
    began_s, cpu_s = time.monotonic(), time.process_time()
    workers, sums = stacked(cell), dict[str, float]()
    for step in range(cell.steps):
        if step == min(CHECKED_STEPS, cell.steps - 1):
            compare(cell, workers.weights, step, frames)
        features, labels = frames.batch(step, cell.workers, cell.chunks, cell.seed)
        workers.step(stacked_lstm.gradients(workers.weights, features, labels)[0], cell.rate(step))
        _add(sums, workers.metrics, cell)
    return _row(cell, frames, workers.finish(), sums, (began_s, cpu_s))


def compare(cell: Cell, weights: Tensor, steps: int, frames: Frames) -> None:
    """Raises unless the real synchronisers on virtual workers have the same weights (N, D) after the first steps."""
    real = virtual.run(partial(play, cell=cell, frames=frames, steps=steps), cell.workers)
    found = torch.stack([own for own, _ in real])
    torch.testing.assert_close(weights, found, rtol=0, atol=TOLERANCE[cell.trainer])


def run_virtual(cell: Cell, frames: Frames) -> Row:
    """The cell with its result, by the real synchronisers on virtual workers."""
    began_s, cpu_s = time.monotonic(), time.process_time()
    found = virtual.run(partial(play, cell=cell, frames=frames), cell.workers, seed=cell.seed, cost=gossip_seconds)
    return _row(cell, frames, *found[0], (began_s, cpu_s))


def play(
    group: virtual.VirtualGroup, cell: Cell, frames: Frames, steps: int | None = None
) -> tuple[Tensor, dict[str, float]]:
    """One worker's weights (D,) after `steps`, or at the end of the run, and means of the synchroniser's metrics."""
    model = Weights(cell.seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    options = {"clip_norm": cell.clip_norm} | cell.options
    if cell.trainer == "bmuf":
        options |= {"total_steps": cell.steps}
    worker = sync.build(cell.trainer, model, optimiser, group=group, **options)
    sums: dict[str, float] = {}
    for step in range(cell.steps if steps is None else steps):
        optimiser.param_groups[0]["lr"] = cell.rate(step)
        compute = partial(gradients, frames, cell, step)
        model.vector.grad = group.together(compute, model.vector.detach())
        if cell.trainer == "gossip":
            group.compute(1.0)
        worker.step()
        _add(sums, worker.metrics, cell)
    if steps is None:
        worker.finish()
    sums["sent_bytes"] = group.traffic.sent_bytes / cell.steps
    return model.vector.detach(), sums


def gradients(frames: Frames, cell: Cell, step: int, weights: list[Tensor]) -> list[Tensor]:
    """All workers' gradients (D,) at their own weights, as one stacked product."""
    features, labels = frames.batch(step, cell.workers, cell.chunks, cell.seed)
    return list(stacked_lstm.gradients(torch.stack(weights), features, labels)[0])


def gossip_seconds(call: str, size_bytes: int, workers: int) -> float:
    """A tenth of a step for weights from neighbour to neighbour: all mixings of a step run at the same time."""
    return 0.1 if call == "exchange" and size_bytes > 8 else 0.0


def _add(sums: dict[str, float], metrics: dict[str, float], cell: Cell) -> None:
    for name, value in metrics.items():
        sums[name] = sums.get(name, 0.0) + value / cell.steps


def _row(cell: Cell, frames: Frames, weights: Tensor, sums: dict[str, float], began: tuple[float, float]) -> Row:
    """The cell with its test accuracy in %, the metrics' means over steps, and the seconds it took."""
    test, labels = (of[: cell.test_copies].flatten(0, 1) for of in (frames.test, frames.test_labels))
    accuracy = 100 * stacked_lstm.accuracy(weights, test, labels)
    return asdict(cell) | {
        "steps": cell.steps,
        "accuracy": round(accuracy, 3),
        "metrics": {name: round(value, 6) for name, value in sorted(sums.items())},
        "cpu_s": round(time.process_time() - began[1], 1),
        "wall_s": round(time.monotonic() - began[0], 1),
    }


def results(
    cells: Sequence[Cell], path: Path, folder: Path, minutes: float, run: Callable[[Cell, Frames], Row]
) -> tuple[list[Row], list[Cell]]:
    """The rows of `cells` in `path`, after those not there yet have been run and added, and the cells still missing.

    No cell is begun after `minutes`. `folder` holds the Free Spoken Digit Dataset.
    """
    began_s = time.monotonic()
    missing = _rows_of(cells, path)[1]
    frames = load(folder) if missing and minutes > 0 else None
    stacked_lstm.check_kernel()
    for cell in missing:
        if frames is None or time.monotonic() - began_s > 60 * minutes:
            break
        row = run(cell, frames)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(f"{cell.table}: {cell.name}, N = {cell.workers}, batch {cell.workers * cell.chunks}, seed {cell.seed}: "
              f"{row['accuracy']:.2f} %, {row['cpu_s']:.0f} CPU seconds", flush=True)  # fmt: skip
    return _rows_of(cells, path)


def _rows_of(cells: Sequence[Cell], path: Path) -> tuple[list[Row], list[Cell]]:
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    rows = [json.loads(line) for line in lines]
    done = {json.dumps({k: row[k] for k in asdict(cells[0])}, sort_keys=True): row for row in rows}
    return [done[c.key] for c in cells if c.key in done], [c for c in cells if c.key not in done]
