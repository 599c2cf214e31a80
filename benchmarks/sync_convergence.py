"""Frame accuracy of trainers at 8 to 128 workers, and over global batch sizes, on frames of spoken digits.

    python benchmarks/sync_convergence.py FOLDER [--tables bmuf gossip …] [--quick] [--minutes M] [--write]

FOLDER holds the Free Spoken Digit Dataset. An LSTM of 32 units (8,649 weights) classifies chunks of ten frames into 41
classes (`sync_frames`). Gossip runs are the real synchroniser (`megahour.sync`) on virtual workers, whose gradients are
computed at once, as batched products (`stacked_lstm`). BMUF and synchronous SGD, whose workers are in step, are rows of
a matrix, checked against the real synchronisers at the start of every run (`convergence`). All trainers get the same
samples in the same order; learning rates are constant for half of the run and then fall exponentially to 5 %. One
process, one thread.

Every cell's result is appended to sync_convergence.jsonl and not computed again; `--write` makes the page of what is
there and names what is missing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import sync_report
import torch
from convergence import Cell, Row, results, run_stacked, run_virtual
from page import publish
from sync_frames import Frames

from megahour.sync.trainers.block_momentum import cap

RESULTS = Path(__file__).with_suffix(".jsonl")
COUNTS = (128, 64, 8, 32, 16)  # those of the claims first
RATES = {8: 2.0, 16: 3.0, 32: 5.0, 64: 8.0, 128: 12.0}  # of synchronous SGD; not tuned for each N
SEEDS = 3


def bmuf_cells(quick: bool) -> list[Cell]:
    """Block momentum of equation 6 (C = 1) at 8 to 128 workers; capped at 128; the literal form; synchronous SGD.

    With the learning rate 1 at every N, as the prototype had, and with that of synchronous SGD times 1 - η: as far in
    the long run. Quick runs have fewer frames and shorter blocks, and so as many blocks as full ones.
    """
    make = partial(Cell, "bmuf", chunks=4, frames=6.4e6 if quick else 16e6)
    blocks = {"block_steps": 2 if quick else 5, "eta_cap": None}
    capped, literal = blocks | {"eta_cap": "auto"}, blocks | {"form": "literal"}

    def block_momentum(name: str, workers: int, rate: float, seed: int, options: dict[str, Any]) -> Cell:
        return make(name, "bmuf", workers, learning_rate=rate, seed=seed, options=options)

    blocks_128 = make("", "", 128, learning_rate=0).steps / blocks["block_steps"]
    capped_rate = round(RATES[128] * (1 - cap(blocks_128, 1 - 1 / 128)), 4)
    cells = []
    for seed in range(SEEDS):
        for n in COUNTS:
            cells.append(block_momentum("BMUF-NBM, rates of synchronous SGD / N", n, RATES[n] / n, seed, blocks))
        name = "BMUF-NBM, η capped, rate of synchronous SGD (1 - η)"
        cells.append(block_momentum(name, 128, capped_rate, seed, capped))
        for n in COUNTS:
            cells.append(make("synchronous SGD", "dense", n, learning_rate=RATES[n], seed=seed))
        cells += [block_momentum("BMUF-NBM", n, 1.0, seed, blocks) for n in COUNTS]
        cells.append(block_momentum("BMUF-NBM, η capped", 128, 1.0, seed, capped))
    cells.append(block_momentum("BMUF, equation 5 as printed", 64, 1.0, 0, literal))
    return cells


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


def run(cell: Cell, frames: Frames) -> Row:
    """The cell with its result."""
    return (run_stacked if cell.table == "bmuf" else run_virtual)(cell, frames)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the Free Spoken Digit Dataset")
    parser.add_argument("--tables", nargs="*", choices=TABLES, default=list(TABLES))
    parser.add_argument("--quick", action="store_true", help="cells of about a minute instead of several")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no cell after so many")
    parser.add_argument("--write", action="store_true", help="write sync_convergence.md beside this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cells = [cell for table in options.tables for cell in TABLES[table](options.quick)]
    rows, missing = results(cells, RESULTS, options.folder, options.minutes, run)
    text = sync_report.page(rows, [asdict(cell) for cell in missing], options.quick)
    publish(__file__, text, write=options.write)


if __name__ == "__main__":
    main()
