"""Both forms of GTC, dense averaging and PowerSGD on a small transformer: held-out loss after 600 and 2,400 steps.

    python benchmarks/gtc_transformer.py TEXT [--tune] [--workers N …] [--optimisers O …] [--names NAME …]
                                              [--minutes M] [--write]

TEXT is a text file, plain or .gz, of three million characters. A causal transformer of two layers (106,816 weights,
tied embedding) predicts the next character of pieces of 32; a worker's batch is 8 pieces, clipping is at 1. All
trainers get the same samples, a learning rate that rises over a tenth of the run and falls to zero as a cosine, and one
tuned for each of them with `--tune`, on another seed than those published. Everything is the package's own trainers:
on virtual workers, and PowerSGD, which is torch's, on N processes over gloo, or with `--one-process` on one with the
batches of all (see `in_one_process`). One thread a process.

Every cell's result is appended to gtc_transformer.jsonl and not computed again; `--write` makes the page of what is
there and names what is missing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import operator
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import gtc_transformer_page
import torch
import torch.distributed as dist
from page import publish
from torch import Tensor, nn
from torch.nn import functional

from megahour import sync
from megahour.sync.group import virtual

RESULTS = Path(__file__).with_suffix(".jsonl")
CHARACTERS, HELD_OUT = 3_000_000, 200_000
SYMBOLS, WIDTH, LAYERS, HEADS, PIECE, BATCH = 96, 64, 2, 2, 32, 8
SEEDS, TUNING_SEED = (0, 1, 2), 100
STEPS = (600, 2400)
DECAY = {"adamw": 0.1, "sgd": 0.0}
DENSITY, WARMUP_SHARE = 0.01, 0.1
NAMES = ("dense", "GTC, update", "PowerSGD", "GTC, gradient")
RANKS = {2: (1,), 4: (1,), 8: (1, 3)}  # of PowerSGD; rank 1 has the fewest bytes, of eight workers those of GTC
RATES: dict[str, dict[str, dict[int, float]]] = {
    "adamw": {
        "dense": {600: 0.006, 2400: 0.006},
        "GTC, update": {600: 0.01, 2400: 0.006},
        "PowerSGD": {600: 0.006, 2400: 0.006},
        "GTC, gradient": {600: 0.003, 2400: 0.003},
    },
    "sgd": {
        "dense": {600: 0.4, 2400: 0.4},
        "GTC, update": {600: 0.1, 2400: 0.2},
        "PowerSGD": {600: 0.4, 2400: 0.4},
        "GTC, gradient": {600: 0.1, 2400: 0.1},
    },
}
RATES_OF_EIGHT: dict[tuple[str, str, int], float] = {
    ("adamw", "dense", 2400): 0.01,
    ("adamw", "GTC, update", 2400): 0.03,
    ("adamw", "PowerSGD", 2400): 0.01,
    ("sgd", "dense", 2400): 0.6,
    ("sgd", "GTC, update", 2400): 0.8,
    ("sgd", "PowerSGD", 2400): 0.6,
}
"""By optimiser, trainer and steps, where eight workers have a rate of their own."""
TRIED: list[tuple[int, str, str, int, Sequence[float]]] = [
    (4, "adamw", "dense", 600, (0.006, 0.01, 0.015)),
    (4, "adamw", "dense", 2400, (0.01,)),
    (4, "adamw", "GTC, update", 600, (0.006, 0.01)),
    (4, "adamw", "GTC, update", 2400, (0.006,)),
    (4, "sgd", "dense", 600, (0.1, 0.2, 0.4)),
    (4, "sgd", "dense", 2400, (0.2,)),
    (4, "sgd", "GTC, update", 600, (0.1, 0.2, 0.3)),
    (4, "sgd", "GTC, update", 2400, (0.2,)),
    (8, "adamw", "dense", 2400, (0.006, 0.01, 0.015)),
    (8, "adamw", "GTC, update", 2400, (0.006, 0.01, 0.015, 0.02, 0.03, 0.04)),
    (8, "sgd", "dense", 2400, (0.4, 0.6, 0.8)),
    (8, "sgd", "GTC, update", 2400, (0.3, 0.4, 0.6, 0.8, 1.0, 1.2)),
]
"""With the seed for tuning: workers, optimiser, trainer, steps, rates."""
MASKED = {"mask_momentum": True}  # of GTC with AdamW, for 600 steps
Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One training run."""

    name: str
    optimiser: str
    workers: int
    steps: int
    seed: int
    learning_rate: float
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def cell(
    name: str,
    optimiser: str,
    workers: int,
    steps: int,
    seed: int,
    rate: float | None = None,
    *,
    masked: bool = False,
    rank: int = 1,
) -> Cell:
    """The run of a trainer, at its tuned rate unless another is given."""
    options: dict[str, Any] = {}
    if name.startswith("GTC"):
        options = {"density": DENSITY, "warmup_steps": round(WARMUP_SHARE * steps), "form": name.split(", ")[1]}
    if masked:
        options |= MASKED
    if name == "PowerSGD":
        options = {"rank": rank}
    tuned = RATES[optimiser][name][steps]
    if workers == 8:
        tuned = RATES_OF_EIGHT.get((optimiser, name, steps), tuned)
    return Cell(name, optimiser, workers, steps, seed, rate or tuned, options)


def cells() -> list[Cell]:
    """All that is published; first what matters most."""
    found = []
    for workers in (4, 2, 8):
        for optimiser in RATES:
            for seed in SEEDS:
                for steps in STEPS:
                    for name in NAMES:
                        masked = (name, optimiser, steps) == ("GTC, update", "adamw", 600)
                        ranks = RANKS[workers] if name == "PowerSGD" else (1,)
                        given = (name, optimiser, workers, steps, seed)
                        found += [cell(*given, masked=masked, rank=rank) for rank in ranks]
    pair = {"dense", "GTC, update"}
    return sorted(found, key=lambda one: (one.workers != 4, one.seed, one.workers, one.name not in pair))


def tuning_cells() -> list[Cell]:
    """Rates of the trainers, and GTC with Adam's momentum masked."""
    found = [
        cell(name, optimiser, workers, steps, TUNING_SEED, rate)
        for workers, optimiser, name, steps, rates in TRIED
        for rate in rates
    ]
    masked = [
        cell("GTC, update", "adamw", 4, steps, TUNING_SEED, rate, masked=True)
        for steps, rate in ((600, 0.01), (600, 0.015), (2400, 0.006), (2400, 0.015))
    ]
    return [*found, *masked]


class Block(nn.Module):
    """Attention and two linear layers, each behind a norm and beside an identity."""

    def __init__(self) -> None:
        super().__init__()
        linear = partial(nn.Linear, bias=False)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH, bias=False) for _ in range(2)])
        self.asked, self.answered = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH)
        self.wide, self.narrow = linear(WIDTH, 4 * WIDTH), linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.asked(self.norms[0](x)).chunk(3, 2)
        heads = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2)
        x = x + self.answered(seen.reshape(batch, length, WIDTH))
        out: Tensor = x + self.narrow(functional.gelu(self.wide(self.norms[1](x))))
        return out


class Transformer(nn.Module):
    """Characters (batch, length) to the mean cross-entropy of those that follow, in nats."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.symbols, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(PIECE, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.02)

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        x = self.symbols(before) + self.places(torch.arange(before.shape[1]))
        logits = self.norm(self.blocks(x)) @ self.symbols.weight.T
        return functional.cross_entropy(logits.flatten(0, 1), after.flatten())


def symbols_of(path: Path) -> Tensor:
    """The text as numbers of its characters, the first 96 in their order; others count as the first."""
    with fsspec.open(str(path), "rt", compression="infer") as file:
        text: str = file.read(CHARACTERS)
    known = {character: number for number, character in enumerate(sorted(set(text))[:SYMBOLS])}
    return torch.tensor([known.get(character, 0) for character in text])


def pieces(text: Tensor, seed: int, count: int = BATCH) -> tuple[Tensor, Tensor]:
    """(count, 32) characters from random places, and those that follow each."""
    at = torch.randint(len(text) - PIECE - 1, (count,), generator=torch.Generator().manual_seed(seed))
    found = text[at[:, None] + torch.arange(PIECE + 1)]
    return found[:, :-1], found[:, 1:]


def batch(text: Tensor, one: Cell, step: int, ranks: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The pieces of these workers, one after the other."""
    seeds = [step * one.workers + rank + one.seed * 10**6 for rank in ranks]
    before, after = zip(*(pieces(text[:-HELD_OUT], seed) for seed in seeds), strict=True)
    return torch.cat(before), torch.cat(after)


def play(group: sync.Group, one: Cell, text: Tensor, ranks: Sequence[int] = ()) -> Row:
    """One worker's run, with the batches of `ranks` (none: its own)."""
    ranks = ranks or [group.rank]
    model = Transformer(one.seed)
    rate, decay = one.learning_rate, DECAY[one.optimiser]
    optimiser: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=decay)
    if one.optimiser == "adamw":
        optimiser = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, rate, total_steps=one.steps, pct_start=0.1, cycle_momentum=False
    )
    trainer = {"dense": "dense", "PowerSGD": "ddp_powersgd"}.get(one.name, "gtc")
    worker = sync.build(trainer, model, optimiser, group=group, clip_norm=1.0, **one.options)
    group.size = one.workers  # by which bytes are counted, also in one process
    elements = 0.0
    for step in range(one.steps):
        model.zero_grad()
        model(*batch(text, one, step, ranks)).backward()
        worker.step()
        elements += float(worker.metrics.get("density", 1.0)) / one.steps
        if step + 1 < one.steps:
            schedule.step()
    sent = group.traffic.sent_bytes / one.steps
    worker.finish()
    if one.name == "PowerSGD":
        elements = sent / (8 * (1 - 1 / group.size)) / sum(p.numel() for p in model.parameters())
    loss = held_out_loss(model, text) if group.rank == 0 else 0.0
    row = {"loss": round(loss, 4), "elements": round(elements, 5), "sent_bytes": round(sent)}
    return row | {"backlog": round(float(worker.metrics.get("backlog", 0.0)), 1)}


@torch.no_grad()
def held_out_loss(model: nn.Module, text: Tensor) -> float:
    """Of 960 pieces, the same for all."""
    return float(torch.stack([model(*pieces(text[-HELD_OUT:], 10**8 + k, 16)) for k in range(60)]).mean())


def run(one: Cell, text: Tensor, *, one_process: bool) -> Row:
    """The cell with its result."""
    began_s = time.monotonic()
    if one.name == "PowerSGD" and one_process:
        found = in_one_process(one, text)
    elif one.name == "PowerSGD":
        found = on_processes(one, text)
    else:
        found = virtual.run(partial(play, one=one, text=text), one.workers)[0]
    load = round(os.getloadavg()[0], 1)
    return asdict(one) | found | {"wall_s": round(time.monotonic() - began_s), "load": load}


def in_one_process(one: Cell, text: Tensor) -> Row:
    """PowerSGD's result with a worker that has the batches of all, for a fraction of the time.

    What workers send is linear in their matrices, P = mean(M_i) Q and Q = mean(M_i)ᵀ P, and so is what they keep,
    E_i = M_i - P Qᵀ: the mean of the errors is the error of the mean. So N workers take the steps of one with the mean
    gradient, but for rounding.
    """
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        found = play(sync.TorchGroup(), one, text, range(one.workers))
        dist.destroy_process_group()
    return found | {"one_process": True}


def on_processes(one: Cell, text: Tensor) -> Row:
    """Rank 0's result of N processes over gloo."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        result = context.SimpleQueue()
        started = [context.Process(target=work, args=(r, folder, one, text, result)) for r in range(one.workers)]
        for process in started:
            process.start()
        for process in started:
            process.join()
        if any(process.exitcode for process in started):
            raise SystemExit(f"a worker of {one} failed")
        found: Row = result.get()
        return found


def work(rank: int, folder: str, one: Cell, text: Tensor, result: Any) -> None:
    """One process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=one.workers)
    row = play(sync.TorchGroup(), one, text)
    if rank == 0:
        result.put(row)
    dist.destroy_process_group()


def results(
    wanted: Sequence[Cell], text: Callable[[], Tensor], minutes: float, *, one_process: bool = False
) -> list[Row]:
    """All rows of the file, after those of `wanted` not there yet have been run. No cell is begun after `minutes`."""
    began_s = time.monotonic()
    missing = [one for one in wanted if one.key not in {key_of(row) for row in rows()}]
    symbols = text() if missing and minutes > 0 else None
    for one in missing:
        if symbols is None or time.monotonic() - began_s > 60 * minutes:
            break
        row = run(one, symbols, one_process=one_process)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
    return rows()


def rows() -> list[Row]:
    return [json.loads(line) for line in RESULTS.read_text("utf-8").splitlines()] if RESULTS.exists() else []


def key_of(row: Row) -> str:
    """That of the row's cell."""
    return json.dumps({name: row[name] for name in Cell.__dataclass_fields__}, sort_keys=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="a text of three million characters, plain or .gz")
    parser.add_argument("--tune", action="store_true", help="run the learning rates of seed 100 instead")
    parser.add_argument(
        "--workers", type=int, nargs="*", default=[4, 2, 8], help="only cells with these numbers of workers"
    )
    parser.add_argument("--optimisers", nargs="*", choices=RATES, default=list(RATES))
    parser.add_argument("--names", nargs="*", choices=NAMES, default=list(NAMES), help="cells of these trainers only")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after this many minutes")
    parser.add_argument("--one-process", action="store_true", help="PowerSGD's workers in one process")
    parser.add_argument("--write", action="store_true", help="write gtc_transformer.md beside this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    wanted = tuning_cells() if options.tune else cells()
    chosen = (options.workers, options.optimisers, options.names)
    wanted = [c for c in wanted if all(map(operator.contains, chosen, (c.workers, c.optimiser, c.name)))]
    found = results(wanted, partial(symbols_of, options.text), options.minutes, one_process=options.one_process)
    done = {key_of(row): row for row in found}
    published, tuning = ([done.get(one.key, asdict(one)) for one in of] for of in (cells(), tuning_cells()))
    publish(__file__, gtc_transformer_page.page(published, tuning), write=options.write)


if __name__ == "__main__":
    main()
