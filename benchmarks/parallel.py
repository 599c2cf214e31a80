"""What each worker holds of a model in parts, and that it learns what one process learns.

    python benchmarks/parallel.py [--write benchmarks/parallel.md]

A row is a training of STEPS steps on made batches by 1, 2 or 4 processes over gloo on this machine, of four batches a
step in all. Bytes are counted in the tensors: weights and optimiser state between steps, gradients when the optimiser
takes them, and the most that a worker has of whole weights while layers compute (`come together`).
"""

from __future__ import annotations

import argparse
import platform
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from megahour import sync
from megahour.batches.loader import Batch
from megahour.models.build import build
from megahour.sync.group.base import Group
from megahour.sync.group.torch_group import TorchGroup
from megahour.train.params import TrainParams
from megahour.train.step import Trainer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

NEWLINE = "\n"
STEPS, BATCHES, INPUTS, SENONES = 4, 4, 120, 900
MODEL = {"kind": "tdnn", "layers": 8, "units": 512, "inputs": INPUTS, "outputs": SENONES}
ROWS: list[tuple[str, int, dict[str, Any]]] = [
    ("one process", 1, {}),
    ("2 whole models, dense", 2, {}),
    ("2 parts, fsdp", 2, {"parallel": {"shard": 2}}),
    ("2 parts, zero", 2, {"parallel": {"shard": 2, "mode": "zero"}}),
    ("4 parts, fsdp", 4, {"parallel": {"shard": 4}}),
    ("4 parts, zero", 4, {"parallel": {"shard": 4, "mode": "zero"}}),
    ("2 × 2 parts, dense between", 4, {"parallel": {"shard": 2}}),
]


def batch(number: int) -> Batch:
    rng = np.random.default_rng(number)
    lengths = rng.integers(20, 33, 10)
    labels = np.where(np.arange(32) < lengths[:, None], rng.integers(0, SENONES, (10, 32)), -1)
    return Batch(rng.normal(size=(10, 32, INPUTS)).astype(np.float32), lengths, list(range(10)), {"labels": labels})


def made(p: TrainParams, group: Group) -> Callable[[nn.Module, torch.optim.Optimizer], sync.Synchroniser]:
    return partial(p.synchroniser.make, group=group)


class Whole:
    """The most bytes of whole weights that are on this worker while layers compute."""

    def __init__(self, module: nn.Module) -> None:
        self.most = 0
        warnings.filterwarnings("ignore", message="Full backward hook", category=UserWarning)
        self._module = module
        for part in module.modules():
            part.register_forward_hook(self._look)
            part.register_full_backward_hook(self._look)

    def _look(self, *_: object) -> None:
        whole = [q for q in self._module.parameters() if not hasattr(q, "full_tensor") and q.untyped_storage().size()]
        self.most = max(self.most, sum(map(_bytes, whole)))


def work(settings: dict[str, Any]) -> dict[str, float]:
    """One worker's training."""
    group = TorchGroup()
    p = TrainParams(threads=1, clip=1e9, workers=group.size, accumulate=BATCHES // group.size, **settings)
    module = build(MODEL, seed=1)
    with _trainer(p, module, group) as own:
        watched = Whole(own.module)
        gradients, losses = 0, []
        for step in range(STEPS):
            numbers = range(BATCHES * step + group.rank, BATCHES * (step + 1), group.size)
            found = own.backward([batch(number) for number in numbers], numbers)
            own.apply(found, 1e-3, step)
            assert found is not None
            sums = group.all_gather(torch.tensor([float(found.loss), found.weight], dtype=torch.float64)).wait()
            losses.append(float(sums[:, 0].sum() / sums[:, 1].sum()))
            gradients = max(gradients, sum(_bytes(q.grad) for q in own.parameters if q.grad is not None))
        states = [t for s in own.optimiser.state.values() for t in s.values() if isinstance(t, Tensor) and t.dim()]
        parts = bool(p.parallel.shard > 1)
        return {
            "weights": sum(map(_bytes, own.parameters)),
            "gradients": gradients,
            "state": sum(map(_bytes, states)),
            "together": watched.most if parts else 0,
            "losses": losses,  # type: ignore[dict-item]
        }


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _trainer(p: TrainParams, module: nn.Module, group: Group) -> Trainer:
    if p.parallel.shard == 1:
        return Trainer(p, module, made(p, group))
    from megahour.train.sharded import ShardedTrainer

    return ShardedTrainer(p, module, partial(made, p), group, inputs=INPUTS)


def rows() -> list[str]:
    from gloo import run_workers

    found, reference = [], None
    for name, workers, settings in ROWS:
        results = run_workers(work, workers, settings)
        for result in results:
            if isinstance(result, Exception):
                raise result
        most = {key: max(result[key] for result in results) for key in results[0] if key != "losses"}
        reference = reference or results[0]
        apart = max(abs(a / b - 1) for a, b in zip(results[0]["losses"], reference["losses"], strict=True))
        held = most["weights"] + most["gradients"] + most["state"]
        whole = reference["weights"] + reference["gradients"] + reference["state"]
        cells = [*(f"{most[key] / 1e6:.1f}" for key in ("weights", "gradients", "state")), f"{held / whole:.2f}"]
        cells += [f"{most['together'] / 1e6:.1f}", f"{apart:.0e}"]
        found.append(f"| {name} | {' | '.join(cells)} |")
        print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    table = rows()
    columns = "weights", "gradients", "optimiser state", "of one process", "weights that come together", "losses apart"
    page = f"""# Models in parts: what a worker holds

`python benchmarks/parallel.py`: a TDNN of {MODEL["layers"]} × {MODEL["units"]} with {SENONES} outputs, AdamW, fp32,
seed 1, {STEPS} steps of {BATCHES} batches; processes over gloo on one machine, one thread each. MB of the worker that
has most.
torch {torch.__version__}, {platform.machine()}.

| workers | {" | ".join(columns)} |
|---|{"---:|" * len(columns)}
{NEWLINE.join(table)}

- *of one process*: weights, gradients and optimiser state to those of one process.
- *weights that come together*: the most whole weights that are there at once when a layer has computed, forward or
  backward; they go again, with `fsdp` at once.
- *losses apart*: the largest relative difference of a step's mean loss to one process with the same batches.

Activations are not in it: `recompute` is for those. Times are not either: on one machine there is no network.
"""
    if arguments.write:
        arguments.write.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
