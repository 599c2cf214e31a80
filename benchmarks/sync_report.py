"""The page of `sync_convergence.py`: tables of what its rows say."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]
INTRODUCTION = """# Convergence with many workers

`python benchmarks/sync_convergence.py FOLDER{quick} --write` with the four speakers of the Free Spoken Digit Dataset
that were at hand: 1,800 files to train with, eight noisy copies, gains drawn in every step; 200 files to test. An LSTM
of 8,649 weights, 41 classes, chunks of ten frames. Test accuracy of frames in %: the mean over seeds, and the lowest
and highest; the same samples in the same order. The tables of gossip are of the real synchronisers on virtual workers;
BMUF and its synchronous SGD are rows of a matrix, each run checked against the real synchronisers in its first 13
steps. Runs from before the gradient was compiled (all of gossip, a few of BMUF) had torch's, the same up to rounding.
Rows with everything about each run: sync_convergence.jsonl.
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
            place, of = "N =", _workers
        else:
            place, of = "batch", _batch
        places = sorted({of(row) for row in own})
        gaps = [f"{place} {n} (seeds {', '.join(str(r['seed']) for r in own if of(r) == n)})" for n in places]
        lines.append(f"- {table}: {name}: {', '.join(gaps)}")
    return lines


def _batch(row: Row) -> int:
    """Chunks of all workers in a step."""
    return int(row["workers"] * row["chunks"])


def _workers(row: Row) -> int:
    return int(row["workers"])


def bmuf(rows: Sequence[Row]) -> str:
    """By number of workers; what more workers, momentum without a cap and with it cost."""
    blocks = {row["workers"]: row["steps"] / row["options"]["block_steps"] for row in rows if row["trainer"] == "bmuf"}
    length = next(row["options"]["block_steps"] for row in rows if row["trainer"] == "bmuf")
    ratios = ", ".join(f"{blocks[n] / n:,.1f} at {n}" for n in sorted(blocks))
    notes = [
        f"{rows[0]['frames'] / 1e6:g} M frames, four chunks a step of each worker, blocks of {length} steps, ζ = 1, "
        f"η = 1 - 1/N (capped: 1 - 20/blocks), learning rate 1 where no other is said. R = blocks / N: {ratios}; where "
        "it is 20 or more the cap changes nothing. Rates of synchronous SGD: "
        + ", ".join(f"{row['learning_rate']:g} at {row['workers']}" for row in _first(rows, "synchronous SGD"))
        + "; not tuned for each N.",
        *_compared(rows),
    ]
    return "\n".join([*_table("BMUF", "N", rows, _workers, str), "", "\n".join(f"- {note}" for note in notes), ""])


def _first(rows: Sequence[Row], name: str) -> list[Row]:
    """One row of that name for each number of workers."""
    found = {row["workers"]: row for row in rows if row["name"] == name}
    return [found[workers] for workers in sorted(found)]


def _compared(rows: Sequence[Row]) -> list[str]:
    """One line for each pair of runs that a claim compares, over the seeds that both have."""
    counts = sorted({row["workers"] for row in rows})
    sgd = "synchronous SGD"
    families = (
        ("Learning rate 1", "BMUF-NBM", "BMUF-NBM, η capped"),
        (
            "Rates of synchronous SGD times 1 - η",
            "BMUF-NBM, rates of synchronous SGD / N",
            "BMUF-NBM, η capped, rate of synchronous SGD (1 - η)",
        ),
    )
    pairs = {}
    for rates, plain, capped in families:
        pairs |= {
            f"{rates}, BMUF-NBM against N = 8": [((plain, n), (plain, 8)) for n in counts if n != 8],
            f"{rates}, BMUF-NBM against synchronous SGD": [((plain, n), (sgd, n)) for n in counts],
            f"{rates}, η capped, against synchronous SGD": [((capped, n), (sgd, n)) for n in counts],
            f"{rates}, η capped, against BMUF-NBM at N = 8": [((capped, n), (plain, 8)) for n in counts],
        }
    printed = "BMUF, equation 5 as printed"
    pairs["Equation 5 as printed against BMUF-NBM"] = [((printed, n), ("BMUF-NBM", n)) for n in counts]
    lines = []
    for what, both in pairs.items():
        found = [f"{own[1]}: {change}" for own, other in both if (change := _change(rows, own, other, _workers))]
        lines += [f"{what}: {'; '.join(found)}."] if found else []
    published = "Published, relative to one GPU: -0.27 % at 8, -0.06, -0.10, -0.13, and -2.46 % at 128."
    return [*lines, published]


def _change(rows: Sequence[Row], own: tuple[str, int], other: tuple[str, int], of: Callable[[Row], int]) -> str:
    """How far the mean of one trainer at some N or batch is from another's; "" where they have no seed in common."""
    first, second = (
        {row["seed"]: row["accuracy"] for row in rows if (row["name"], of(row)) == which} for which in (own, other)
    )
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return ""
    means = [statistics.mean(found[seed] for seed in seeds) for found in (first, second)]
    each = f" ({', '.join(_relative(first[seed], second[seed]) for seed in seeds)})" if len(seeds) > 1 else ""
    return f"{_relative(*means)} %{each}"


def gossip(title: str, rows: Sequence[Row]) -> str:
    """One row a trainer, one column a global batch."""
    rates = {_batch(row): row["learning_rate"] for row in rows}
    table = _table(title, "batch in chunks", rows, _batch, lambda batch: f"{batch} (rate {rates[batch]:.3g})")
    changes = [(b, _change(rows, ("ADPSGD", b), ("synchronous SGD", b), _batch)) for b in sorted(rates)]
    notes = [
        f"{rows[0]['frames'] / 1e6:g} M frames, 16 workers, no clipping, the same rates for all trainers.",
        f"ADPSGD against synchronous SGD: {'; '.join(f'{b}: {change}' for b, change in changes if change)}.",
    ]
    return "\n".join([*table, "", *(f"- {note}" for note in notes), ""])


def _table(
    title: str, what: str, rows: Sequence[Row], of: Callable[[Row], int], head: Callable[[int], str]
) -> list[str]:
    """One row a trainer, one column for each number `of` a row; the mean over seeds, and lowest to highest."""
    columns = sorted({of(row) for row in rows})
    heads = " | ".join([what, *map(head, columns)])
    lines = [f"## {title}", "", f"| {heads} |", "|---" * (len(columns) + 1) + "|"]
    for name in dict.fromkeys(row["name"] for row in rows):
        cells = []
        for column in columns:
            values = [row["accuracy"] for row in rows if (row["name"], of(row)) == (name, column)]
            spread = f" ({min(values):.2f} to {max(values):.2f}, {len(values)} seeds)" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.2f}{spread}" if values else "–")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _relative(value: float, reference: float) -> str:
    return f"{100 * (value / reference - 1):+.2f}"


SECTIONS: dict[str, Callable[[Sequence[Row]], str]] = {
    "bmuf": bmuf,
    "gossip": lambda rows: gossip("ADPSGD and synchronous SGD as the batch grows", rows),
    "gossip, warm-up": lambda rows: gossip("The same with a warm-up of a fifth of the run", rows),
}
