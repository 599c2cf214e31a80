"""Models and optimisers of users' scripts: odd layouts and dtypes, frozen parts, losses with weights, copies."""

import copy
import io
import re
import threading
import warnings
from typing import Any

import pytest
import torch
from gloo import run_workers
from torch import Tensor, nn

from megahour.core.errors import ConfigError
from megahour.sync import build, dense, local_sgd, zero
from megahour.sync.group import virtual
from megahour.sync.group.torch_group import TorchGroup
from megahour.sync.trainers.base import Synchroniser

OURS: dict[str, dict[str, Any]] = {
    "dense": {},
    "gtc": {"threshold": 0.01},
    "bmuf": {"block_steps": 2, "eta": 0.0},
    "gossip": {},
    "local_sgd": {"period_steps": 2},
}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(1000 * step + rank))


def take_steps(
    worker: Synchroniser, model: nn.Module, optimiser: torch.optim.Optimizer, steps: range, rank: int
) -> None:
    for step in steps:
        model(batch(rank, step)).square().mean().backward()
        worker.step()
        optimiser.zero_grad()


class Strided(nn.Module):
    """Parameters that do not lie in memory as their shapes say, one without elements, and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
        self.transposed = nn.Parameter(torch.randn(4, 3).t())
        self.empty, self.gain = nn.Parameter(torch.zeros(3, 0)), nn.Parameter(torch.tensor(1.5))

    def forward(self, frames: Tensor) -> Tensor:
        seen = self.convolution(frames.view(-1, 1, 2, 2).repeat(1, 2, 1, 1)).flatten(1)
        product: Tensor = seen @ self.transposed
        return product * self.gain + self.empty.sum()


@pytest.mark.parametrize(
    ("trainer", "options"),
    [
        ("dense", {}),
        ("dense", {"backwards": 1}),
        ("gtc", {"threshold": 1.0, "node_size": 3}),
        ("gossip", {"node_size": 3}),
    ],
)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_fused_optimisers_step_as_a_plain_loop_whatever_the_layout_of_parameters(
    trainer: str, options: dict[str, Any], kind: type[torch.optim.Optimizer]
) -> None:
    """They iterate over gradient and parameter in memory order, so both need the same layout."""

    def train(group: virtual.VirtualGroup) -> nn.Module:
        model = Strided()
        optimiser = kind(model.parameters(), lr=0.01, fused=True)  # type: ignore[call-arg]
        worker = build(trainer, model, optimiser, group=group, **options)
        take_steps(worker, model, optimiser, range(5), group.rank)
        return model

    plain = Strided()
    optimiser = kind(plain.parameters(), lr=0.01, fused=True)  # type: ignore[call-arg]
    for step in range(5):
        torch.stack([plain(batch(rank, step)).square().mean() for rank in range(3)]).mean().backward()
        optimiser.step()
        optimiser.zero_grad()
    for model in virtual.run(train, 3):
        for one, other in zip(plain.parameters(), model.parameters(), strict=True):
            assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("trainer", "options"), [("dense", {}), ("gtc", OURS["gtc"]), ("gtc", {"form": "update", "density": 0.1})]
)
def test_what_is_frozen_in_the_middle_stays_where_it_is(trainer: str, options: dict[str, Any]) -> None:
    def train(group: virtual.VirtualGroup) -> list[Tensor]:
        model = net()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        worker = build(trainer, model, optimiser, group=group, **options)
        take_steps(worker, model, optimiser, range(3), group.rank)
        model[0].requires_grad_(False)
        before, other = model[0].weight.detach().clone(), model[2].weight.detach().clone()
        take_steps(worker, model, optimiser, range(3, 6), group.rank)
        assert not torch.equal(other, model[2].weight)
        model[0].requires_grad_(True)
        middle = model[0].weight.detach().clone()
        take_steps(worker, model, optimiser, range(6, 9), group.rank)
        return [before, middle, model[0].weight.detach()]

    before, middle, after = zip(*virtual.run(train, 3), strict=True)
    assert all(map(torch.equal, before, middle))
    assert not torch.equal(middle[0], after[0])
    assert all(torch.equal(after[0], other) for other in after)


@pytest.mark.parametrize("trainer", OURS)
@pytest.mark.parametrize("workers", [1, 3])
def test_parameters_that_workers_do_not_share_are_refused_and_not_trained_apart(trainer: str, workers: int) -> None:
    def unfreeze(group: virtual.VirtualGroup) -> None:
        model = net()
        model[0].requires_grad_(False)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        worker = build(trainer, model, optimiser, group=group, **OURS[trainer])
        take_steps(worker, model, optimiser, range(2), group.rank)
        model[0].requires_grad_(True)
        take_steps(worker, model, optimiser, range(2, 3), group.rank)

    def loss_with_weights(group: virtual.VirtualGroup) -> None:
        model, criterion = net(), nn.Linear(4, 1)
        optimiser = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
        worker = build(trainer, model, optimiser, group=group, **OURS[trainer])
        criterion(model(batch(group.rank, 0))).mean().backward()
        worker.step()

    with pytest.raises(ConfigError, match=r"trains 2 parameters that the workers do not share, of shapes \[\(5, 4\)"):
        virtual.run(unfreeze, workers)
    with pytest.raises(ConfigError, match=r"workers do not share, of shapes \[\(1, 4\), \(1,\)\]"):
        virtual.run(loss_with_weights, workers)


@pytest.mark.parametrize("trainer", OURS)
def test_complex_parameters_are_refused_and_do_not_lose_their_imaginary_part(trainer: str) -> None:
    def train(group: virtual.VirtualGroup) -> None:
        model = net()
        model.register_parameter("filters", nn.Parameter(torch.zeros(3, dtype=torch.complex64)))
        build(trainer, model, torch.optim.SGD(model.parameters(), lr=0.1), group=group, **OURS[trainer])

    with pytest.raises(ConfigError, match=r"1 parameters are complex, of shapes \[\(3,\)\]"):
        virtual.run(train, 2)


def test_constant_buffers_keep_their_bits() -> None:
    def train(group: virtual.VirtualGroup) -> bool:
        model = net()
        model.register_buffer("window", torch.randn(1000))
        model.register_buffer("mask", torch.tensor([0.0, float("-inf"), 1e38]))
        before = [buffer.clone() for buffer in model.buffers()]
        dense(model, torch.optim.SGD(model.parameters(), lr=0.1), group=group).finish()
        return all(map(torch.equal, before, model.buffers()))

    assert all(virtual.run(train, 3))


def test_clipping_does_not_hide_an_infinite_gradient() -> None:
    def train(group: virtual.VirtualGroup) -> Tensor:
        model = nn.Linear(2, 1, bias=False)
        worker = dense(model, torch.optim.SGD(model.parameters(), lr=0.1), group=group, clip_norm=1.0)
        model.weight.grad = torch.tensor([[float("inf") if group.rank == 0 else 1.0, 1.0]])
        worker.step()
        return model.weight.detach()

    assert not any(weight.isfinite().all() for weight in virtual.run(train, 2))


@pytest.mark.parametrize("trainer", OURS)
def test_a_group_of_settings_without_parameters_does_no_harm_to_mixed_precision(trainer: str) -> None:
    def train(group: virtual.VirtualGroup) -> bool:
        model = net()
        before = copy.deepcopy(model)
        optimiser = torch.optim.SGD([{"params": []}, {"params": list(model.parameters())}], lr=0.1)
        worker = build(trainer, model, optimiser, group=group, **OURS[trainer])
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(model(batch(group.rank, 0)).square().mean()).backward()
        worker.step(scaler=scaler)
        worker.finish()
        return torch.equal(model[0].weight, before[0].weight)

    assert virtual.run(train, 2) == [False, False]


def test_the_mean_of_memories_leaves_a_scalars_step_count_alone() -> None:
    def train(group: virtual.VirtualGroup) -> float:
        gain = nn.Module()
        gain.register_parameter("gain", nn.Parameter(torch.tensor(1.0)))
        optimiser = torch.optim.Adam(gain.parameters(), lr=0.1)
        worker = build("bmuf", gain, optimiser, group=group, block_steps=1 + 6, inner="mean", eta=0.0)
        for _ in range(7):
            gain.gain.grad = torch.tensor(float(group.rank))
            worker.step(weight=1.0 + group.rank)
        return float(optimiser.state[gain.gain]["step"])

    assert virtual.run(train, 3) == [7.0] * 3


def of_torchs_trainers(trainer: str) -> dict[str, Any]:
    """What becomes of copies, of compiled models, of a step after `finish`, and of a loss with weights."""
    group = TorchGroup(timeout_s=30)
    found: dict[str, Any] = {}
    for compiled in (False, True):
        model = torch.compile(net(), backend="eager") if compiled else net()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        worker = build(trainer, model, optimiser, group=group)
        take_steps(worker, model, optimiser, range(2), group.rank)
        if not compiled:
            file = io.BytesIO()
            torch.save(model, file)
            copies = [copy.deepcopy(model), torch.optim.swa_utils.AveragedModel(model).module]
            copies.append(torch.load(io.BytesIO(file.getvalue()), weights_only=False))
            with torch.no_grad():
                model[0].weight += 1.0
                found["copies are of their own"] = [
                    torch.equal(one(batch(0, 0)), copies[0](batch(0, 0))) for one in (model, *copies)
                ]
                model[0].weight -= 1.0
        worker.finish()
        found[f"output, compiled: {compiled}"] = model(batch(0, 0)).detach()
        model(batch(group.rank, 2)).square().mean().backward()
        try:
            worker.step()
        except ConfigError as error:
            found["after finish"] = error.message
    model, criterion = net(), nn.Linear(4, 1)
    worker = build(trainer, model, torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1), group=group)
    criterion(model(batch(group.rank, 0))).mean().backward()
    try:
        worker.step()
    except ConfigError as error:
        found["loss with weights"] = error.message
    return found


@pytest.mark.parametrize("trainer", ["ddp", "zero"])
def test_ddps_models_can_be_copied_and_compiled_and_end_with_their_own_forward(trainer: str) -> None:
    for found in run_workers(of_torchs_trainers, 2, trainer):
        assert not isinstance(found, Exception), found
        assert found["copies are of their own"] == [False, True, True, True]
        assert torch.allclose(found["output, compiled: False"], found["output, compiled: True"], atol=1e-5)
        assert found["after finish"] == "a step after finish()"
        assert "trains 2 parameters that the workers do not share" in found["loss with weights"]


def refused_by_fsdp() -> list[str]:
    """Its words to a loss's parameters, to dtypes that differ in one module, and to a scalar; "" to named modules."""
    group, said = TorchGroup(timeout_s=30), []
    strange = nn.Linear(4, 1)
    mixed = [nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2).bfloat16()) for _ in range(2)]
    scalar = nn.Linear(4, 5)
    scalar.gain = nn.Parameter(torch.tensor(1.0))
    for model, others, modules in (
        (net(), strange, ()),
        (mixed[0], None, ()),
        (mixed[1], None, ("1",)),
        (scalar, None, ()),
    ):
        optimiser = torch.optim.SGD([*model.parameters(), *(others.parameters() if others else ())], lr=0.1)
        try:
            build("fsdp", model, optimiser, group=group, modules=modules)
            said.append("")
        except ConfigError as error:
            said.append(str(error))
    return said


def test_fsdp_names_what_it_cannot_share_out() -> None:
    """With mixed dtypes torch's own error, in the first forward pass, was an AssertionError without a name."""
    for said in run_workers(refused_by_fsdp, 2):
        strange, mixed, named, scalar = said
        assert "trains 2 parameters" in strange
        assert re.search(r"bfloat16 \(1.weight\) and float32 \(0.weight\) together.*in `modules`", mixed, re.DOTALL)
        assert named == ""
        assert "cannot share out the model: fully_shard doesn't support scalar parameters. Change gain" in scalar


class Rounds(torch.optim.SGD):
    """Has a setting that is not in its `defaults`, as in some hand-written optimisers."""

    def __init__(self, parameters: Any, lr: float = 0.1, rounds: int = 5) -> None:
        super().__init__(parameters, lr=lr)
        self.rounds = rounds


def zero_of_rounds() -> str:
    model = net()
    try:
        zero(model, Rounds(model.parameters(), rounds=9), group=TorchGroup(timeout_s=30))
    except ConfigError as error:
        return error.message
    return ""


def test_zero_does_not_take_a_default_for_a_setting_it_cannot_know() -> None:
    assert run_workers(zero_of_rounds, 2) == ["Rounds has settings that are not in its `defaults`: rounds"] * 2


def warnings_of_a_schedule() -> list[str]:
    model = net()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = zero(model, optimiser, group=TorchGroup(timeout_s=30))
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, step_size=1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        take_steps(worker, model, optimiser, range(1), 0)
        schedule.step()
    return [str(each.message) for each in seen if "lr_scheduler" in str(each.message)]


def test_a_schedule_knows_that_zero_has_stepped() -> None:
    assert run_workers(warnings_of_a_schedule, 2) == [[], []]


def threads_of_trainers() -> list[str]:
    for _ in range(3):
        model = nn.Linear(400, 400)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        worker = local_sgd(model, optimiser, group=TorchGroup(timeout_s=30), period_steps=1)
        model(torch.ones(1, 400)).sum().backward()
        worker.step()
        worker.finish()
        helpers = [thread for thread in threading.enumerate() if thread.name == "sync-helper"]
        assert len(helpers) == 1, "a sum of this size is helped"
        del worker, optimiser
        helpers[0].join()
    return [thread.name for thread in threading.enumerate() if thread.name == "sync-helper"]


def test_trainers_that_are_gone_leave_no_threads() -> None:
    assert run_workers(threads_of_trainers, 2) == [[], []]


@pytest.mark.parametrize(
    ("trainer", "options", "message"),
    [
        (
            "bmuf",
            {"block_steps": 2.5},
            r'trainer bmuf: "block_steps" = 2.5: .*fractional part\nRemedy: its options',
        ),
        ("gossip", {"node_size": "two"}, r'"node_size" = .two.: .*unable to parse'),
        ("dense", {"clip": "median"}, r'"clip" = .median.: .*.local. or .mean.'),
    ],
)
def test_values_of_another_type_are_named(trainer: str, options: dict[str, Any], message: str) -> None:
    model = net()
    with pytest.raises(ConfigError, match=message):
        build(trainer, model, torch.optim.SGD(model.parameters(), lr=0.1), **options)


def test_yamls_numbers_without_a_point_are_numbers() -> None:
    """YAML 1.1 reads `1e-3` as a string."""
    model = net()
    worker = build("gtc", model, torch.optim.SGD(model.parameters(), lr=0.1), threshold="1e-3", warmup_steps="10")
    assert float(worker.state()["threshold"][1]) == 1e-3


def sparse(trainer: str, **options: Any) -> list[float]:
    """Sums of an embedding's weights after two steps of two workers with sparse gradients."""

    def train(group: virtual.VirtualGroup) -> float:
        torch.manual_seed(0)
        model = nn.Embedding(5, 2, sparse=True)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        worker = build(trainer, model, optimiser, group=group, **options)
        for step in range(2):
            model(torch.tensor([group.rank, step])).square().sum().backward()
            worker.step()
            optimiser.zero_grad()
        worker.finish()
        return float(model.weight.detach().sum())

    return virtual.run(train, 2)


@pytest.mark.parametrize(
    ("trainer", "options"),
    [
        ("dense", {"clip_norm": 1.0}),
        ("gtc", {"threshold": 0.01}),
        ("gtc", {"form": "update", "density": 0.1}),
        ("bmuf", {"clip_norm": 1.0}),
    ],
)
def test_sparse_gradients_that_need_a_norm_or_a_vector_are_named(trainer: str, options: dict[str, Any]) -> None:
    """torch had "Could not run 'aten::linalg_vector_norm' with arguments from the 'SparseCPU' backend"."""
    with pytest.raises(ConfigError, match=r"gradient is sparse(.|\n)*sparse=False"):
        sparse(trainer, **options)


@pytest.mark.parametrize("trainer", ["bmuf", "gossip", "local_sgd"])
def test_trainers_that_move_weights_take_sparse_gradients(trainer: str) -> None:
    one, other = sparse(trainer)
    assert one == other
