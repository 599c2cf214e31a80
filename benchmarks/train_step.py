"""What `precision`, `compile`, `recompute` and `accumulate` do to the time of a training step on this machine.

    python benchmarks/train_step.py [--rounds 15] [--write benchmarks/train_step.md]

Steps of all variants take turns, so that what else the machine does meets all alike; the median of the ratios to the
plain step of the same round. One thread; batches of random features, 40 utterances of up to 64 stacked frames.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from megahour import sync
from megahour.batches.loader import Batch
from megahour.learn import device
from megahour.learn.params import TrainParams
from megahour.learn.step import Trainer
from megahour.models.build import build
from megahour.sync.group.torch_group import TorchGroup

MODELS = {
    "lstm 3 × 256": {"kind": "lstm", "layers": 3, "units": 256},
    "tdnn 6 × 256": {"kind": "tdnn", "layers": 6, "units": 256},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {"precision": "bf16"},
    "recompute": {"recompute": True},
    "accumulate 2 (a batch)": {"accumulate": 2},
    "compile": {"compile": True},
}
INPUTS, SENONES = 120, 900


def batch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(40, 65, 40)
    lengths[0] = 64
    labels = np.where(np.arange(64) < lengths[:, None], rng.integers(0, SENONES, (40, 64)), -1)
    features = rng.normal(size=(40, 64, INPUTS)).astype(np.float32)
    return Batch(features, lengths, list(range(40)), {"labels": labels})


class Variant:
    """A trainer and the seconds of its first step, where compilation is."""

    def __init__(self, model: dict[str, Any], params: dict[str, Any]) -> None:
        p = TrainParams(threads=1, **params)
        self.batches = p.accumulate
        here = device.choose("auto")
        module = build({**model, "inputs": INPUTS, "outputs": SENONES, "lookahead": 0}, seed=1).to(here)

        def dense(module: torch.nn.Module, optimiser: torch.optim.Optimizer) -> sync.Synchroniser:
            return sync.build("dense", module, optimiser, group=TorchGroup(), clip_norm=1.0)

        self.trainer = Trainer(p, module, dense, here)
        self.first_s = self.step(0) * self.batches

    def step(self, number: int) -> float:
        """Seconds a batch of one step."""
        made = [batch(number + k) for k in range(self.batches)]
        began_s = time.perf_counter()
        self.trainer.apply(self.trainer.gradients(made, range(self.batches)), 1e-3, number)
        if self.trainer.device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began_s) / self.batches


def rows(rounds: int) -> list[str]:
    found = []
    for name, model in MODELS.items():
        variants = {label: Variant(model, params) for label, params in VARIANTS.items()}
        times = [{label: each.step(number) for label, each in variants.items()} for number in range(rounds)]
        for label, each in variants.items():
            ratio = statistics.median(row[label] / row["plain"] for row in times)
            step_ms = 1000 * statistics.median(row[label] for row in times)
            found.append(f"| {name} | {label} | {step_ms:.0f} | {ratio:.2f} | {each.first_s:.1f} |")
            print(found[-1], flush=True)
            each.trainer.__exit__()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    table = [
        f"torch {torch.__version__}, {where}, one thread, {options.rounds} rounds in turns.",
        "",
        "| model | step | ms a batch | of the plain step | first step, s |",
        "|---|---|---|---|---|",
        *rows(options.rounds),
    ]
    if options.write:
        head = (
            "# Time of a training step\n\n`python benchmarks/train_step.py`: no bar, what the options cost or win.\n\n"
        )
        options.write.write_text(head + "\n".join(table) + "\n", "utf-8")


if __name__ == "__main__":
    main()
