"""Frame accuracy of trainers at 8 to 128 workers, and over global batch sizes, on frames of spoken digits.

    python benchmarks/sync_convergence.py FOLDER [--tables bmuf gossip …] [--quick] [--minutes M] [--write]

FOLDER holds the Free Spoken Digit Dataset. An LSTM of 32 units (8,649 weights) classifies chunks of ten frames into 41
classes (`sync_frames`). N virtual workers run the real synchronisers (`megahour.sync`); only the gradients of all are
computed at once, as batched products (`stacked_lstm`). All trainers get the same samples in the same order; learning
rates are constant for half of the run and then fall exponentially to 5 %. One process, one thread.

Every cell's result is appended to sync_convergence.jsonl and not computed again; `--write` makes the page of what is
there and names what is missing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import stacked_lstm
import sync_report
import torch
from stacked_lstm import Weights
from sync_frames import CHUNK, Frames, load
from torch import Tensor

from megahour import sync
from megahour.sync import virtual

RESULTS = Path(__file__).with_suffix(".jsonl")
LAST_RATE = 0.05  # of the first learning rate, at the end


@dataclass(frozen=True)
class Cell:
    """One training run. `frames` is the number of all workers' frames together; `chunks` those of a worker's step."""

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

    @property
    def steps(self) -> int:
        return round(self.frames / (self.workers * self.chunks * CHUNK))

    def rate(self, step: int) -> float:
        """Learning rate: up over `warm_up` of the run, constant to its half, then down exponentially."""
        done = step / self.steps
        up = min(1.0, (step + 1) / (self.warm_up * self.steps)) if self.warm_up else 1.0
        return self.learning_rate * up * LAST_RATE ** max(0.0, 2 * done - 1)


def train(group: virtual.VirtualGroup, cell: Cell, frames: Frames) -> tuple[Tensor, dict[str, float]]:
    """One worker's run: the final weights (D,), and means over steps of the synchroniser's metrics."""
    model = Weights(cell.seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    options = {"clip_norm": cell.clip_norm} | cell.options
    if cell.trainer == "bmuf":
        options |= {"total_steps": cell.steps}
    worker = sync.build(cell.trainer, model, optimiser, group=group, **options)
    sums: dict[str, float] = {}
    for step in range(cell.steps):
        optimiser.param_groups[0]["lr"] = cell.rate(step)
        compute = partial(gradients, frames, cell, step)
        model.vector.grad = group.together(compute, model.vector.detach())
        if cell.trainer == "gossip":
            group.compute(1.0)
        worker.step()
        for name, value in worker.metrics.items():
            sums[name] = sums.get(name, 0.0) + value / cell.steps
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


def run(cell: Cell, frames: Frames) -> dict[str, Any]:
    """The cell with its test accuracy in %, the metrics' means and the seconds it took."""
    began_s, cpu_s = time.monotonic(), time.process_time()
    found = virtual.run(partial(train, cell=cell, frames=frames), cell.workers, seed=cell.seed, cost=gossip_seconds)
    weights, metrics = found[0]
    accuracy = 100 * stacked_lstm.accuracy(weights, frames.test, frames.test_labels)
    return asdict(cell) | {
        "steps": cell.steps,
        "accuracy": round(accuracy, 3),
        "metrics": {name: round(value, 6) for name, value in sorted(metrics.items())},
        "cpu_s": round(time.process_time() - cpu_s, 1),
        "wall_s": round(time.monotonic() - began_s, 1),
    }


def bmuf_cells(quick: bool) -> list[Cell]:
    """Block momentum of equation 6 (C = 1) at 8 to 128 workers; capped at 128; the literal form; synchronous SGD.

    Most informative first. Quick runs have fewer frames and shorter blocks, and so as many blocks as full ones.
    """
    make = partial(Cell, table="bmuf", chunks=4, frames=6.4e6 if quick else 16e6)
    blocks = {"block_steps": 2 if quick else 5, "eta_cap": None}

    def nesterov(workers: int) -> Cell:
        return make(name="BMUF-NBM", trainer="bmuf", workers=workers, learning_rate=1.0, options=blocks)

    def synchronous(workers: int, rate: float) -> Cell:
        return make(name="synchronous SGD", trainer="dense", workers=workers, learning_rate=rate)

    capped = blocks | {"eta_cap": "auto"}
    literal = blocks | {"form": "literal"}
    return [
        nesterov(128),
        make(name="BMUF-NBM, η capped", trainer="bmuf", workers=128, learning_rate=1.0, options=capped),
        synchronous(128, 12.0),
        nesterov(64),
        nesterov(8),
        make(name="BMUF, equation 5 as printed", trainer="bmuf", workers=64, learning_rate=1.0, options=literal),
        nesterov(32),
        nesterov(16),
        synchronous(64, 8.0),
        synchronous(8, 2.0),
        make(name="BMUF-NBM, η capped", trainer="bmuf", workers=64, learning_rate=1.0, options=capped),
        make(name="BMUF, equation 5 as printed", trainer="bmuf", workers=8, learning_rate=1.0, options=literal),
    ]


def gossip_cells(quick: bool) -> list[Cell]:
    """16 workers, batches of 256 to 4096 chunks, learning rate in proportion to √batch; without and with warm-up."""
    kinds = [("synchronous SGD", "dense", {}), ("ADPSGD", "gossip", {})]
    ibm = ("ADPSGD, IBM's order", "gossip", {"order": "cta"})
    cells = []
    for seed in range(3):
        for batch in (4096, 256, 1024, 2048, 512):
            for warm_up in (0.0, 0.2) if batch >= 2048 else (0.0,):
                for name, trainer, options in [*kinds, ibm] if seed == 0 and not warm_up else kinds:
                    table = "gossip, warm-up" if warm_up else "gossip"
                    rate = 4.0 * (batch / 256) ** 0.5
                    frames = 4e6 if quick else 8e6
                    cells.append(
                        Cell(table, name, trainer, 16, batch // 16, frames, rate, seed, warm_up, None, options)
                    )
    return cells


TABLES: dict[str, Callable[[bool], list[Cell]]] = {"bmuf": bmuf_cells, "gossip": gossip_cells}


def rows_of(cells: list[Cell], rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Cell]]:
    """What is there of `cells`, and the cells that are missing."""
    done = {json.dumps({k: row[k] for k in asdict(cells[0])}, sort_keys=True): row for row in rows}
    keys = [json.dumps(asdict(cell), sort_keys=True) for cell in cells]
    return [done[key] for key in keys if key in done], [
        c for c, key in zip(cells, keys, strict=True) if key not in done
    ]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the Free Spoken Digit Dataset")
    parser.add_argument("--tables", nargs="*", choices=TABLES, default=list(TABLES))
    parser.add_argument("--quick", action="store_true", help="cells of about a minute instead of several")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after so many")
    parser.add_argument("--write", action="store_true", help="write sync_convergence.md beside this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began_s = time.monotonic()
    cells = [cell for table in options.tables for cell in TABLES[table](options.quick)]
    _, missing = rows_of(cells, read(RESULTS))
    frames = load(options.folder) if missing and options.minutes > 0 else None
    for cell in missing:
        if frames is None or time.monotonic() - began_s > 60 * options.minutes:
            break
        row = run(cell, frames)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(f"{cell.table}: {cell.name}, N = {cell.workers}, batch {cell.workers * cell.chunks}, seed {cell.seed}: "
              f"{row['accuracy']:.2f} % in {row['wall_s']:.0f} s", flush=True)  # fmt: skip
    rows, missing = rows_of(cells, read(RESULTS))
    text = sync_report.page(rows, [asdict(cell) for cell in missing], options.quick)
    print(text)
    if options.write:
        Path(__file__).with_suffix(".md").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
