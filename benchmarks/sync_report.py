"""The page of `sync_convergence.py`: tables of what its rows say."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Row = dict[str, Any]
INTRODUCTION = """# Convergence with many workers

`python benchmarks/sync_convergence.py FOLDER --write` with the four speakers of the Free Spoken Digit Dataset that were
at hand: 1,800 files to train with, eight noisy copies, gains drawn in every step; 200 files to test. An LSTM of 8,649
weights, 41 classes, chunks of ten frames. Test accuracy of frames in %; virtual workers, the real synchronisers, the
same samples in the same order. Rows with everything about each run: sync_convergence.jsonl.
"""


def page(rows: Sequence[Row], missing: Sequence[tuple[str, str, int, int, int]]) -> str:
    """The whole page; `missing` cells are (table, name, workers, batch in chunks, seed)."""
    parts = [INTRODUCTION]
    for table in dict.fromkeys(row["table"] for row in rows):
        parts.append(SECTIONS[table]([row for row in rows if row["table"] == table]))
    if missing:
        names = [f"{table}: {name}, N = {n}, batch {batch}, seed {seed}" for table, name, n, batch, seed in missing]
        parts.append("## Not run\n\n" + "\n".join(f"- {name}" for name in names) + "\n")
    cpu_s = sum(row["cpu_s"] for row in rows)
    parts.append(f"{len(rows)} runs, {cpu_s / 60:.0f} CPU minutes.\n")
    return "\n".join(parts)


def by_workers(title: str, rows: Sequence[Row], note: str) -> str:
    """One row a trainer, one column for each number of workers; accuracy, and its mean over seeds."""
    counts = sorted({row["workers"] for row in rows})
    lines = [f"## {title}", "", "| N | " + " | ".join(map(str, counts)) + " |", "|---|" + "---|" * len(counts)]
    for name in dict.fromkeys(row["name"] for row in rows):
        cells = [_mean([row["accuracy"] for row in rows if (row["name"], row["workers"]) == (name, n)]) for n in counts]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", note, ""])


def bmuf(rows: Sequence[Row]) -> str:
    frames = rows[0]["frames"] / 1e6
    found = {(row["name"], row["workers"]): row["accuracy"] for row in rows}
    nesterov = {n: accuracy for (name, n), accuracy in found.items() if name == "BMUF-NBM"}
    notes = [f"{frames:g} M frames, four chunks a step of each worker, blocks of five steps, η = 1 - 1/N, ζ = 1."]
    if 8 in nesterov:
        changes = [f"{n}: {_relative(nesterov[n], nesterov[8])}" for n in sorted(nesterov) if n != 8]
        notes.append("BMUF-NBM relative to N = 8: " + ", ".join(changes) + " (paper, to one GPU: -0.27 % at 8, -0.06, "
                     "-0.10, -0.13, and -2.46 % at 128).")  # fmt: skip
    capped, synchronous = found.get(("BMUF-NBM, η capped", 128)), found.get(("synchronous SGD", 128))
    if capped and synchronous:
        eta = next(
            r["metrics"]["block_momentum"] for r in rows if (r["name"], r["workers"]) == ("BMUF-NBM, η capped", 128)
        )
        notes.append(f"With η capped at 1 - 20/blocks ({eta / 0.2:.3f} …) 128 workers are "
                     f"{_relative(capped, synchronous)} of synchronous SGD.")  # fmt: skip
    return by_workers("BMUF", rows, " ".join(notes))


def gossip(title: str, rows: Sequence[Row]) -> str:
    """One row a trainer, one column a global batch: mean over seeds, and lowest to highest."""
    batches = sorted({row["workers"] * row["chunks"] for row in rows})
    lines = [f"## {title}", ""]
    rates = {row["workers"] * row["chunks"]: row["learning_rate"] for row in rows}
    heads = [f"{batch} (rate {rates[batch]:.3g})" for batch in batches]
    lines += ["| batch in chunks | " + " | ".join(heads) + " |", "|---|" + "---|" * len(batches)]
    for name in dict.fromkeys(row["name"] for row in rows):
        cells = []
        for batch in batches:
            values = [r["accuracy"] for r in rows if (r["name"], r["workers"] * r["chunks"]) == (name, batch)]
            spread = f" ({min(values):.2f} to {max(values):.2f}, {len(values)} seeds)" if len(values) > 1 else ""
            cells.append(_mean(values) + spread)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    note = f"{rows[0]['frames'] / 1e6:g} M frames, 16 workers, no clipping, the same rates for all trainers."
    return "\n".join([*lines, "", note, ""])


def _mean(values: Iterable[float]) -> str:
    found = list(values)
    return f"{statistics.mean(found):.2f}" if found else "–"


def _relative(value: float, reference: float) -> str:
    return f"{100 * (value / reference - 1):+.2f} %"


SECTIONS: dict[str, Callable[[Sequence[Row]], str]] = {
    "bmuf": bmuf,
    "gossip": lambda rows: gossip("ADPSGD and synchronous SGD as the batch grows", rows),
    "gossip, warm-up": lambda rows: gossip("The same with a warm-up of a fifth of the run", rows),
}
