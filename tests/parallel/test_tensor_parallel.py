"""Workers that share out every layer of a Conformer learn what one process learns."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from gloo import run_workers
from trained_in_parts import NO_CLIP, Case, config, learn_as_one, made

from megahour.core.errors import ConfigError
from megahour.learn.params import TrainParams
from megahour.parallel.tensor_parallel import TensorTrainer
from megahour.sync.group.torch_group import TorchGroup

CONFORMER = {"kind": "conformer", "criterion": "ctc", "stack": 1, "offsets": [0]}


def tensor(workers: int, units: int, layers: int = 1, **settings: Any) -> Case:
    parallel = {"shard": workers, "mode": "tensor"}
    model = config("conformer", layers=layers, units=units, dropout=settings.pop("dropout", 0.0))
    return model, CONFORMER | {"parallel": parallel} | settings, "ctc"


CASES: dict[int, list[Case]] = {
    2: [tensor(2, 128, layers=2, recompute=True, dropout=0.2)],
    4: [tensor(4, 256, optimiser="sgd"), tensor(2, 128, clip=NO_CLIP)],
}


def refused(model: dict[str, Any]) -> str:
    p = TrainParams(workers=2, layers=4, **CONFORMER, parallel={"shard": 2, "mode": "tensor"})
    with pytest.raises(ConfigError) as error:
        TensorTrainer(p, model, partial(made, p), TorchGroup())
    return error.value.message


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (config("conformer", units=192), "parallel.mode tensor: 3 heads of attention for 2 workers"),
        (config("tdnn"), "parallel.mode tensor supports only a Conformer, a voice or a vocoder, not Tdnn"),
    ],
)
def test_what_does_not_share_out_is_named(model: dict[str, Any], message: str) -> None:
    assert run_workers(refused, 2, model) == [message] * 2


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.faults)])
def test_losses_are_those_of_one_process(workers: int) -> None:
    """With dropout and drawn contexts; the 5 outputs do not share out evenly. The last case is two groups."""
    for shard, held, alone in learn_as_one(CASES[workers], workers):
        assert max(held) < alone * (1 / shard + 0.1)
