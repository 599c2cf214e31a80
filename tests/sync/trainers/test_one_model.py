"""A training ends with one model on all workers, or with an error on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from megahour.core.errors import MegahourError
from megahour.sync import build
from megahour.sync.group import virtual

TRAINERS: dict[str, dict[str, Any]] = {
    "dense": {},
    "gtc": {"threshold": 0.01},
    "bmuf": {"block_steps": 2},
    "local_sgd": {"period_steps": 2},
    "streaming_diloco": {"block_steps": 2, "fragments": 2, "overlap_steps": 0},
    "gossip": {},
}
WORKERS = 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.out = nn.Linear(4, 2)
        self.register_buffer("running", torch.zeros(2))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("known", torch.tensor([-(2**63), 2**53 + 1, -1, 2**63 - 1]))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("turns", torch.polar(torch.ones(2), torch.tensor([0.3, 2.0])))

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return self.out(self.frozen(frames))  # type: ignore[no-any-return]


def trained(trainer: str, change: Callable[[Net], None]) -> list[object]:
    """The workers' models, or their errors; worker 1 calls `change` before the end."""

    def train(group: virtual.VirtualGroup) -> object:
        model = Net()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        worker = build(trainer, model, optimiser, group=group, **TRAINERS[trainer])
        for step in range(4):
            generator = torch.Generator().manual_seed(10 * step + group.rank)
            optimiser.zero_grad()
            model(torch.randn(8, 4, generator=generator)).square().mean().backward()
            worker.step()
            model.running += group.rank
            model.seen += group.rank
        if group.rank == 1:
            with torch.no_grad():
                change(model)
        try:
            worker.finish()
        except MegahourError as error:
            return error
        return model

    return virtual.run(train, WORKERS)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_all_workers_have_the_same_model(trainer: str) -> None:
    """Buffers of whole numbers, such as counts of batches, become their rounded mean; constants keep all their bits."""
    models = trained(trainer, lambda model: model.seen.add_(1))  # type: ignore[operator]
    assert all(isinstance(model, Net) for model in models)
    first, *others = (dict(model.state_dict()) for model in models)  # type: ignore[attr-defined]
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)
    assert int(first["seen"]) == 4, "of 0, 5 and 8"
    assert all(torch.equal(first[name], getattr(Net(), name)) for name in ("known", "mask", "turns"))


@pytest.mark.parametrize("trainer", [name for name in TRAINERS if name != "gossip"])
def test_a_worker_that_has_another_model_is_named_to_all(trainer: str) -> None:
    """It differs by a bit, in a tensor that no step changes."""
    errors = trained(trainer, lambda model: model.frozen.weight[0, 0].nextafter_(torch.tensor(9.0)))
    assert [str(error).partition("\n")[0] for error in errors] == [
        f"rank {rank}: workers 1 end with another model than worker 0: frozen.weight differs" for rank in range(WORKERS)
    ]


@pytest.mark.parametrize("trainer", ["dense", "gtc", "local_sgd"])
def test_weights_that_left_the_others_are_noticed(trainer: str) -> None:
    errors = trained(trainer, lambda model: model.out.bias.add_(1.0))
    assert all("out.bias differs" in str(error) for error in errors)


def test_a_worker_alone_ends_as_it_is() -> None:
    model = Net()
    build("dense", model, torch.optim.SGD(model.parameters(), lr=0.1)).finish()
