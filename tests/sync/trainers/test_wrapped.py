"""Models that torch's own data parallelism has wrapped: with a trainer they would be averaged twice."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo import run_workers
from torch import nn

from megahour import sync
from megahour.core.errors import ConfigError

OPTIONS: dict[str, dict[str, Any]] = {"gtc": {"threshold": 0.01}}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def fsdp_of_torch_1(model: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def fully_sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def in_tensor_parallel(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    return parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), {"0": ColwiseParallel()})


def refusal(model: nn.Module, trainer: str) -> str:
    try:
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        sync.build(trainer, model, optimiser, **OPTIONS.get(trainer, {}))
    except ConfigError as error:
        return str(error)
    return "taken"


def refusals(wrap: Callable[[nn.Module], nn.Module]) -> dict[str, tuple[str, str, str]]:
    """Each trainer's errors for a wrapped model, one with a wrapped part, and a compiled wrapped one."""
    found = {}
    for trainer in sync.TRAINERS:
        part = nn.Sequential(wrap(net()), nn.Linear(2, 2))
        compiled = torch.compile(wrap(net()))
        found[trainer] = refusal(wrap(net()), trainer), refusal(part, trainer), refusal(compiled, trainer)
    return found


def all_refusals() -> dict[str, dict[str, tuple[str, str, str]]]:
    """The errors for each way to wrap, by name."""
    wraps = (ddp, nn.DataParallel, fsdp_of_torch_1, fully_sharded, in_tensor_parallel)
    return {wrap.__name__: refusals(wrap) for wrap in wraps}


@pytest.fixture(scope="module")
def refused() -> list[dict[str, dict[str, tuple[str, str, str]]]]:
    """What each of two workers has found: in one go, since what torch imports for it takes longest."""
    workers = run_workers(all_refusals, 2)
    for found in workers:
        assert not isinstance(found, Exception), found
    return workers


@pytest.mark.parametrize(
    ("wrap", "what", "remedy"),
    [
        (ddp, "wrapped in torch's DistributedDataParallel", "pass its .module, or use sync.ddp"),
        (nn.DataParallel, "wrapped in torch's DataParallel", "pass its .module"),
        (fsdp_of_torch_1, "wrapped in torch's FullyShardedDataParallel", "sync.fsdp"),
        (fully_sharded, "wrapped in torch's fully_shard", "sync.fsdp"),
        (in_tensor_parallel, 'parameter "(0.)?(0.)?(_orig_mod.)?0.weight" is a DTensor', "sync.fsdp"),
    ],
)
def test_every_trainer_refuses_a_model_that_is_wrapped_whole_or_in_part(
    wrap: Callable[[nn.Module], nn.Module],
    what: str,
    remedy: str,
    refused: list[dict[str, dict[str, tuple[str, str, str]]]],
) -> None:
    for worker in refused:
        found = worker[wrap.__name__]
        assert found.keys() == sync.TRAINERS.keys()
        for trainer, messages in found.items():
            for message in messages:
                assert re.search(what, message), (trainer, message)
                assert remedy in message
            if "wrapped" in what:
                assert messages[1].startswith('the model\'s part "0" is'), trainer


def compiled_steps() -> list[float]:
    """Of each trainer, how far a step has moved the first weight of a compiled model."""
    moved = []
    for trainer in ("dense", "gtc", "bmuf", "gossip", "local_sgd"):
        model = torch.compile(net(), backend="eager")
        worker = sync.build(trainer, model, torch.optim.SGD(model.parameters(), lr=0.1), **OPTIONS.get(trainer, {}))
        before = next(iter(model.parameters())).detach().clone()
        model(torch.ones(3, 4)).square().sum().backward()
        worker.step()
        worker.finish()
        moved.append(float((next(iter(model.parameters())) - before).abs().max().detach()))
    return moved


def test_a_compiled_model_is_trained() -> None:
    for moved in run_workers(compiled_steps, 2):
        assert not isinstance(moved, Exception), moved
        assert len(moved) == 5
        assert min(moved) > 0
