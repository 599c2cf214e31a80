"""Workers with different models or options get an error before they train."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from megahour import sync
from megahour.core.errors import ConfigError
from megahour.sync.group import virtual

OPTIONS: dict[str, dict[str, Any]] = {"gtc": {"threshold": 0.1}}


def model_of(rank: int, odd: str) -> nn.Module:
    """Equal for all ranks but 1, whose model is odd."""
    odd = odd if rank == 1 else ""
    names = ("b", "a") if odd == "order" else ("a", "b")
    parts = {name: nn.Linear(3, 3, bias=odd != "count") for name in names}
    parts["out"] = nn.Linear(3, 4 if odd == "shape" else 2)
    model = nn.Sequential()
    for name, part in parts.items():
        model.add_module(name, part)
    model.register_buffer("window", torch.ones(2, dtype=torch.float64 if odd == "dtype" else torch.float32))
    if odd == "frozen":
        model[1].requires_grad_(False)
    return model


def build(trainer: str, odd: str, group: virtual.VirtualGroup) -> str:
    model = model_of(group.rank, odd)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        sync.build(trainer, model, optimiser, group=group, **OPTIONS.get(trainer, {}))
    except ConfigError as error:
        return error.message
    return ""


@pytest.mark.parametrize("trainer", ["dense", "gtc", "bmuf", "streaming_diloco", "gossip", "local_sgd"])
@pytest.mark.parametrize(
    ("odd", "here", "there"),
    [
        ("shape", "out.weight: float32 (2, 3), trained", "out.weight: float32 (4, 3), trained"),
        ("order", "a.weight: float32 (3, 3), trained", "b.weight: float32 (3, 3), trained"),
        ("frozen", "b.weight: float32 (3, 3), trained", "b.weight: float32 (3, 3), not trained"),
        ("dtype", "window: float32 (2,), not trained", "window: float64 (2,), not trained"),
    ],
)
def test_the_first_tensor_that_differs_is_named_on_all_workers(trainer: str, odd: str, here: str, there: str) -> None:
    said = virtual.run(lambda group: build(trainer, odd, group), 3)
    start = "workers 0 and 1 have other models: the first tensor that differs is here "
    assert said == [start + here, start + there, start + here]


def test_models_of_other_sizes_are_refused() -> None:
    said = virtual.run(lambda group: build("dense", "count", group), 3)
    assert said == ["workers 0 and 1 have other models: they have 7, 5, 7 parameters and buffers"] * 3


def test_options_that_differ_are_shown() -> None:
    def other(group: virtual.VirtualGroup) -> None:
        model = model_of(0, "")
        sync.bmuf(model, torch.optim.SGD(model.parameters(), lr=0.1), group=group, block_steps=2 + group.rank // 2)

    with pytest.raises(
        ConfigError, match=r"workers 0 and 2 have other options; here BmufOptions \{\"block_steps\":\d\}"
    ):
        virtual.run(other, 3)


def test_a_compiled_model_is_the_same_as_one_that_is_not() -> None:
    def some(group: virtual.VirtualGroup) -> None:
        model = model_of(0, "")
        used = torch.compile(model) if group.rank else model
        sync.dense(used, torch.optim.SGD(model.parameters(), lr=0.1), group=group)

    virtual.run(some, 2)
