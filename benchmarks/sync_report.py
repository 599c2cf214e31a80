"""The page of `sync_convergence.py`: tables of what its rows say."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Row = dict[str, Any]
INTRODUCTION = """# Convergence with many workers

`python benchmarks/sync_convergence.py FOLDER{quick} --write` with the four speakers of the Free Spoken Digit Dataset
that were at hand: 1,800 files to train with, eight noisy copies, gains drawn in every step; 200 files to test. An LSTM
of 8,649 weights, 41 classes, chunks of ten frames. Test accuracy of frames in %; virtual workers, the real
synchronisers, the same samples in the same order. Rows with everything about each run: sync_convergence.jsonl.
"""


def page(rows: Sequence[Row], missing: Sequence[Row], quick: bool) -> str:
    """The whole page; `missing` are cells without results."""
    parts = [INTRODUCTION.format(quick=" --quick" if quick else "")]
    for table in dict.fromkeys(row["table"] for row in rows):
        parts.append(SECTIONS[table]([row for row in rows if row["table"] == table]))
    if missing:
        parts.append("## Not run\n\n" + "\n".join(_gaps(missing)) + "\n")
    cpu_s = sum(row["cpu_s"] for row in rows)
    parts.append(f"{len(rows)} runs, {cpu_s / 60:.0f} CPU minutes.\n")
    return "\n".join(parts)


def _gaps(missing: Sequence[Row]) -> list[str]:
    """One line for each trainer of each table: which numbers of workers, or batches and seeds, have no result."""
    lines = []
    for table, name in dict.fromkeys((row["table"], row["name"]) for row in missing):
        own = [row for row in missing if (row["table"], row["name"]) == (table, name)]
        if table == "bmuf":
            gaps = [f"N = {row['workers']}" for row in sorted(own, key=lambda row: row["workers"])]
        else:
            batches = sorted({_batch(row) for row in own})
            gaps = [f"batch {b} (seeds {', '.join(str(r['seed']) for r in own if _batch(r) == b)})" for b in batches]
        lines.append(f"- {table}: {name}: {', '.join(gaps)}")
    return lines


def _batch(row: Row) -> int:
    """Chunks of all workers in a step."""
    return int(row["workers"] * row["chunks"])


def by_workers(title: str, rows: Sequence[Row], note: str) -> str:
    """One row a trainer, one column for each number of workers; accuracy, and its mean over seeds."""
    counts = sorted({row["workers"] for row in rows})
    lines = [f"## {title}", "", "| N | " + " | ".join(map(str, counts)) + " |", "|---|" + "---|" * len(counts)]
    for name in dict.fromkeys(row["name"] for row in rows):
        cells = [_mean([row["accuracy"] for row in rows if (row["name"], row["workers"]) == (name, n)]) for n in counts]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", note, ""])


def bmuf(rows: Sequence[Row]) -> str:
    """By number of workers, and what the fall at 128 and the capped momentum are relative to."""
    found = {(row["name"], row["workers"]): row["accuracy"] for row in rows}
    nesterov = {n: accuracy for (name, n), accuracy in found.items() if name == "BMUF-NBM"}
    steps = next(row["options"]["block_steps"] for row in rows if row["trainer"] == "bmuf")
    notes = [
        f"{rows[0]['frames'] / 1e6:g} M frames, four chunks a step of each worker, blocks of {steps} steps, ζ = 1, "
        "η = 1 - 1/N (capped: 1 - 20/blocks)."
    ]
    if 8 in nesterov and len(nesterov) > 1:
        changes = [f"{n}: {_relative(nesterov[n], nesterov[8])}" for n in sorted(nesterov) if n != 8]
        notes.append(f"BMUF-NBM relative to N = 8: {', '.join(changes)}.")
        notes.append("Published, relative to one GPU: -0.27 % at 8, -0.06, -0.10, -0.13, and -2.46 % at 128.")
    for workers in (64, 128):
        plain, capped, synchronous = (
            found.get((name, workers)) for name in ("BMUF-NBM", "BMUF-NBM, η capped", "synchronous SGD")
        )
        if plain and capped:
            notes.append(f"N = {workers}: capped against not capped {_relative(capped, plain)}.")
        if capped and synchronous:
            notes.append(f"N = {workers}: capped against synchronous SGD {_relative(capped, synchronous)}.")
    return by_workers("BMUF", rows, " ".join(notes))


def gossip(title: str, rows: Sequence[Row]) -> str:
    """One row a trainer, one column a global batch: mean over seeds, and lowest to highest."""
    batches = sorted({_batch(row) for row in rows})
    lines = [f"## {title}", ""]
    rates = {_batch(row): row["learning_rate"] for row in rows}
    heads = [f"{batch} (rate {rates[batch]:.3g})" for batch in batches]
    lines += ["| batch in chunks | " + " | ".join(heads) + " |", "|---|" + "---|" * len(batches)]
    for name in dict.fromkeys(row["name"] for row in rows):
        cells = []
        for batch in batches:
            values = [r["accuracy"] for r in rows if (r["name"], _batch(r)) == (name, batch)]
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
