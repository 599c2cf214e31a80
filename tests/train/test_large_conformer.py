"""A large Conformer trains on workers that have memory for a part of it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gloo import run_workers
from trained_in_parts import made

from megahour.batches.loader import Batch
from megahour.learn.params import TrainParams
from megahour.parallel.sharded import ShardedTrainer
from megahour.sync.group.torch_group import TorchGroup

MODEL = {"kind": "conformer", "inputs": 80, "outputs": 500, "units": 512, "dropout": 0.1}


def resident_bytes(*, again: bool = False) -> int:
    """The most that was resident since the start, or since it was asked for `again`, without the pages of libraries:
    how many of these a process maps depends on what other processes have read."""
    if again:
        Path("/proc/self/clear_refs").write_text("5", "ascii")
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("ascii").splitlines())
    return 1024 * (int(status["VmHWM"].split()[0]) - int(status["RssFile"].split()[0]))


def takes_steps(layers: int) -> tuple[int, list[float], int, int]:
    """Parameters held here, loss of each of two steps, and resident bytes when the model was made and in the end."""
    group = TorchGroup()
    settings: dict[str, Any] = {"kind": "conformer", "criterion": "ctc", "stack": 1, "offsets": [0], "workers": 4}
    settings |= {"parallel": {"shard": 4}, "recompute": True, "precision": "bf16", "threads": 1}
    p = TrainParams(**settings)
    targets = {"tokens": np.array([[1 + group.rank]]), "token_lengths": np.array([1])}
    features = np.random.default_rng(group.rank).normal(size=(1, 8, 80)).astype(np.float32)
    batch = Batch(features, np.array([8]), [0], targets)
    before = resident_bytes(again=True)
    with ShardedTrainer(p, MODEL | {"layers": layers}, partial(made, p), group) as own:
        start, losses = resident_bytes() - before, []
        for step in range(2):
            gradients = own.backward([batch], [step])
            own.apply(gradients, 1e-4, step)
            assert gradients is not None
            losses.append(float(gradients.loss) / gradients.weight)
        return sum(q.numel() for q in own.parameters), losses, start, resident_bytes() - before


@pytest.mark.parametrize(
    ("layers", "millions"), [(2, 13), pytest.param(16, 98, marks=pytest.mark.faults, id="100 million parameters")]
)
def test_steps_in_bf16_with_recomputed_layers_on_four_workers(layers: int, millions: float) -> None:
    """A worker has at most 0.4 of the weights, gradients and optimiser state of the whole, and what libraries need."""
    found = run_workers(takes_steps, 4, layers)
    whole = sum(held for held, *_ in found)
    assert whole / 1e6 == pytest.approx(millions, abs=1)
    for held, losses, start, most in found:
        assert held < 0.26 * whole
        assert losses[1] < losses[0]
        assert start < 4 * whole * 0.75, "the whole model was never made"
        assert most < 16 * whole * 0.4 + 60e6
