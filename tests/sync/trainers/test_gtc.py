"""Gradient threshold compression as a trainer: its equations, its state, and the same bits on all workers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from gloo import run_workers
from torch import Tensor, nn

from megahour.core.errors import ConfigError
from megahour.sync import gtc
from megahour.sync.compress.codec import BadGradientError, exact_threshold
from megahour.sync.compress.threshold import GivenThreshold, TargetDensity
from megahour.sync.group import virtual
from megahour.sync.group.base import Group, WorkerLostError
from megahour.sync.group.torch_group import TorchGroup
from megahour.sync.trainers.gtc import Gtc

OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}
BOTH_FORMS = pytest.mark.parametrize(
    "options", [{"threshold": 0.05}, {"form": "update", "density": 0.1}], ids=["gradient", "update"]
)
Options = dict[str, Any]


def network(seed: int = 0) -> nn.Module:
    """249 weights."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 4), nn.Linear(4, 1))


def loss_of(model: nn.Module, worker: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + worker)
    x = torch.randn(8, 10, generator=generator)
    return (model(x).squeeze(1) - x[:, :3].sum(1)).square().mean()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def train(group: Group, steps: int, optimiser: str = "momentum", **options: Any) -> tuple[Tensor, dict[str, float]]:
    model = network(seed=group.rank)
    worker = gtc(model, OPTIMISERS[optimiser](model.parameters()), group=group, **options)
    go_on(worker, model, group.rank, range(steps))
    worker.finish()
    return weights(model), worker.metrics


def go_on(worker: Gtc, model: nn.Module, rank: int, steps: Sequence[int], weight: float = 1.0) -> None:
    for step in steps:
        model.zero_grad()
        loss_of(model, rank, step).backward()
        worker.step(weight=weight)


def by_the_equations(
    workers: int, steps: int, threshold: float, optimiser: str, clip_norm: float, shares: Sequence[float]
) -> Tensor:
    """Weights after the module's recursion, written out worker by worker, with an ordinary optimiser behind it."""
    model = network(0)
    outer = OPTIMISERS[optimiser](model.parameters())
    residuals = [torch.zeros(249) for _ in range(workers)]
    v = exact_threshold(threshold / workers)
    for step in range(steps):
        mean = torch.zeros(249)
        for worker in range(workers):
            model.zero_grad()
            loss_of(model, worker, step).backward()
            g = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            norm = float(torch.linalg.vector_norm(g))
            scale = shares[worker] * (clip_norm / (norm + 1e-6) if norm > clip_norm else 1.0)
            r = residuals[worker]
            r += g * scale
            q = torch.where(r > v, v, torch.where(r < -v, -v, 0.0))
            r -= q
            mean += q
        nn.utils.vector_to_parameters(mean, [p.grad for p in model.parameters()])  # type: ignore[misc]
        outer.step()
    return weights(model)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("section_elements", [1000, 7])
def test_a_step_is_the_equations_with_clipping_before_and_momentum_behind(
    optimiser: str, section_elements: int
) -> None:
    options = {"threshold": 0.3, "clip_norm": 1.5, "capacity": 1.0, "section_elements": section_elements}
    expected = by_the_equations(3, 12, 0.3, optimiser, 1.5, shares=[1 / 3] * 3)
    for found, metrics in virtual.run(lambda group: train(group, 12, optimiser, **options), 3):
        assert torch.equal(found, expected)
        assert metrics["density"] == metrics["beyond"] < 0.2


def test_weights_of_workers_are_shares_of_the_mean() -> None:
    def work(group: Group) -> Tensor:
        model = network()
        worker = gtc(model, OPTIMISERS["adam"](model.parameters()), group=group, threshold=0.3, capacity=1.0)
        go_on(worker, model, group.rank, range(6), weight=[300.0, 100.0, 0.0][group.rank])
        return weights(model)

    expected = by_the_equations(3, 6, 0.3, "adam", float("inf"), shares=[0.75, 0.25, 0.0])
    assert all(torch.equal(found, expected) for found in virtual.run(work, 3))


EVERYWHERE: list[dict[str, Any]] = [
    {"threshold": 0.2},
    {"density": 0.02, "node_size": 2, "section_elements": 50, "warmup_steps": 4},
]


def train_twice(group: Group) -> list[tuple[Tensor, dict[str, float]]]:
    return [train(group, 8, **options) for options in EVERYWHERE]


def train_as_process() -> list[tuple[Tensor, dict[str, float]]]:
    return train_twice(TorchGroup(timeout_s=60))


def test_processes_and_virtual_workers_take_the_same_steps() -> None:
    real = run_workers(train_as_process, 4)
    for ours, theirs in zip(real, virtual.run(train_twice, 4), strict=True):
        assert not isinstance(ours, Exception), ours
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one[0], other[0])
            assert one[1] == other[1]


class Grid(nn.Module):
    """Its gradient is what it is called with: numbers on a grid on which float32 adds without rounding."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(elements))

    def forward(self, worker: int, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(100 * step + worker)
        c = torch.randint(-500, 500, self.w.shape, generator=generator) / 256
        return (self.w * c).sum()


class Ledger(torch.optim.SGD):
    """Adds up the gradients it is given, as real numbers."""

    applied = Fraction()

    def step(self, closure: Any = None) -> Any:
        self.applied += exact_sum(self.param_groups[0]["params"][0].grad)
        return super().step(closure)


def exact_sum(tensor: Tensor) -> Fraction:
    return sum(map(Fraction, tensor.flatten().tolist()), Fraction())


def on_the_grid(group: Group, steps: range, states: list[dict[str, Tensor]] | None, node_size: int) -> Any:
    """Σ applied, Σ of this worker's gradients, its state."""
    model = Grid(101)
    ledger = Ledger(model.parameters(), lr=0.0)
    options = {"threshold": 1.5, "capacity": 0.2, "section_elements": 30, "node_size": node_size}
    worker = gtc(model, ledger, group=group, **options)
    if states is not None:
        worker.restore(states)
    given = Fraction()
    for step in steps:
        model.zero_grad()
        model(group.rank, step).backward()
        assert model.w.grad is not None
        given += exact_sum(model.w.grad)
        worker.step()
    return ledger.applied, given, worker.state()


def test_what_was_applied_and_what_waits_is_the_sum_of_all_gradients_also_when_workers_come_and_go() -> None:
    """1, 2, 4, 8 workers, flat and in nodes, one after the other: not a bit is lost on the way."""
    applied = given = Fraction()
    states: list[dict[str, Tensor]] | None = None
    topologies = [(4, 1), (8, 1), (2, 1), (8, 2), (8, 4), (4, 2), (8, 1), (1, 1), (4, 4), (2, 1)]
    for phase, (workers, node_size) in enumerate(topologies):
        steps = range(10 * phase, 10 * phase + 4)
        results = virtual.run(lambda group: on_the_grid(group, steps, states, node_size), workers)  # noqa: B023
        states = [result[2] for result in results]
        given += sum(result[1] for result in results) / workers
        applied += results[0][0]
        waiting = sum((exact_sum(state["rows"]) for state in states), Fraction())
        assert applied + waiting == given, (workers, node_size)


def test_state_and_restore_go_on_with_the_same_bits() -> None:
    def interrupted(group: Group) -> Tensor:
        options: dict[str, Any] = {"density": 0.05, "capacity": 0.1, "section_elements": 60, "group": group}
        model = network()
        optimiser = OPTIMISERS["adam"](model.parameters())
        worker = gtc(model, optimiser, **options)
        go_on(worker, model, group.rank, range(7))
        saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimiser.state_dict())
        states = gather(group, worker.state())
        go_on(worker, model, group.rank, range(7, 14))
        straight = weights(model)

        model = network(5)
        optimiser = OPTIMISERS["adam"](model.parameters())
        worker = gtc(model, optimiser, **options)
        model.load_state_dict(saved[0])
        optimiser.load_state_dict(saved[1])
        worker.restore(states)
        go_on(worker, model, group.rank, range(7, 14))
        assert torch.equal(weights(model), straight)
        return straight

    assert len(virtual.run(interrupted, 3)) == 3


def gather(group: Group, state: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """All workers' states, as a checkpoint has them."""
    whole = {name: group.all_gather(tensor).wait() for name, tensor in state.items()}
    return [{name: tensors[rank] for name, tensors in whole.items()} for rank in range(group.size)]


def test_one_node_is_dense_averaging_and_leaves_the_threshold_alone() -> None:
    found = virtual.run(lambda group: train(group, 5, node_size=4, density=0.01), 4)
    model = network()
    optimiser = OPTIMISERS["momentum"](model.parameters())
    for step in range(5):
        optimiser.zero_grad()
        torch.stack([loss_of(model, worker, step) for worker in range(4)]).mean().backward()
        optimiser.step()
    for one, metrics in found:
        torch.testing.assert_close(one, weights(model))
        assert metrics["density"] == 1


def test_nodes_send_what_their_workers_sum() -> None:
    """Four workers in two nodes take the steps of two workers with both workers' batches each."""

    def pair(group: Group) -> Tensor:
        model = network()
        worker = gtc(model, OPTIMISERS["momentum"](model.parameters()), group=group, threshold=0.25, capacity=1.0)
        for step in range(4):
            model.zero_grad()
            for member in range(2):
                (loss_of(model, 2 * group.rank + member, step) / 2).backward()
            worker.step()
        return weights(model)

    expected = virtual.run(pair, 2)[0]
    for one, _ in virtual.run(lambda group: train(group, 4, threshold=0.25, node_size=2, capacity=1.0), 4):
        torch.testing.assert_close(one, expected)


@BOTH_FORMS
def test_what_is_no_number_stops_all_workers_before_it_spreads(options: Options) -> None:
    def work(group: Group) -> float:
        model = network()
        worker = gtc(model, OPTIMISERS["adam"](model.parameters()), group=group, **options)
        go_on(worker, model, group.rank, range(2))
        loss_of(model, group.rank, 3).backward()
        if group.rank == 1:
            next(model.parameters()).grad[0, 0] = float("nan")  # type: ignore[index]
        before = worker.state()
        with pytest.raises(BadGradientError, match="infinity or NaN"):
            worker.step()
        assert all(torch.equal(before[name], tensor) for name, tensor in worker.state().items())
        return float(weights(model).sum())

    assert len(set(virtual.run(work, 3))) == 1


@BOTH_FORMS
def test_what_a_worker_without_a_batch_has_for_a_gradient_does_not_matter(options: Options) -> None:
    def work(group: Group, junk: float) -> Tensor:
        model = network()
        worker = gtc(model, OPTIMISERS["adam"](model.parameters()), group=group, **options)
        for step in range(3):
            go_on(worker, model, group.rank, [step])
            if group.rank == 0:
                loss_of(model, 0, step).backward()
            else:
                for p in model.parameters():
                    p.grad = torch.full_like(p, junk)
            worker.step(weight=float(group.rank == 0))
        return weights(model)

    zero, nan = (virtual.run(lambda group: work(group, junk), 2) for junk in (0.0, float("nan")))  # noqa: B023
    assert torch.equal(zero[0], nan[1])


@BOTH_FORMS
def test_at_the_end_workers_share_their_means_of_running_statistics(options: Options) -> None:
    def work(group: Group) -> dict[str, Tensor]:
        model = nn.Sequential(nn.BatchNorm1d(10), nn.Linear(10, 1))
        worker = gtc(model, OPTIMISERS["adam"](model.parameters()), group=group, **options)
        go_on(worker, model, group.rank, range(3))
        before = model[0].running_mean.clone()  # type: ignore[union-attr, operator]
        worker.finish()
        return model.state_dict() | {"before": before}

    one, other = virtual.run(work, 2)
    assert not torch.equal(one["before"], other["before"])
    assert all(torch.equal(one[name], other[name]) for name in one if name != "before")


@BOTH_FORMS
def test_with_a_scaler_a_step_with_an_infinity_is_left_out_by_all(options: Options) -> None:
    def work(group: Group) -> tuple[float, float]:
        model = network()
        worker = gtc(model, OPTIMISERS["adam"](model.parameters()), group=group, clip_norm=1.0, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(3):
            model.zero_grad()
            scaler.scale(loss_of(model, group.rank, step)).backward()
            before = weights(model)
            if (group.rank, step) == (0, 1):
                next(model.parameters()).grad[0, 0] = float("inf")  # type: ignore[index]
            worker.step(scaler=scaler)
            assert torch.equal(before, weights(model)) == (step == 1)
        return float(weights(model).sum()), scaler.get_scale()

    results = virtual.run(work, 3)
    assert len(set(results)) == 1
    assert results[0][1] == 512


def test_density_is_met() -> None:
    """Gradients of noise alone, whose residuals walk for hundreds of steps between messages."""

    def work(group: Group) -> float:
        model, seen = Grid(4000), 0.0
        worker = gtc(model, torch.optim.SGD(model.parameters(), lr=0.0), group=group, density=0.005)
        for step in range(900):
            model.zero_grad()
            model(group.rank, step).backward()
            worker.step()
            seen += worker.metrics["density"] if step >= 300 else 0.0
        return seen / 600

    assert virtual.run(work, 2)[0] == pytest.approx(0.005, rel=0.15)


def test_threshold_warms_up() -> None:
    def work(group: Group) -> list[float]:
        model, seen = network(), []
        options = {"threshold": 1.0, "warmup_steps": 2, "warmup_from": 0.25, "group": group}
        worker = gtc(model, OPTIMISERS["adam"](model.parameters()), **options)
        for step in range(4):
            go_on(worker, model, group.rank, [step])
            seen.append(worker.metrics["threshold"])
        return seen

    assert virtual.run(work, 2)[1] == [0.25, 0.5, 1.0, 1.0]


def test_a_density_warms_up_and_goes_on_where_it_was() -> None:
    """Its target falls from four times the density, also through steps of dense averaging."""
    first, found = TargetDensity(0.01, warmup_steps=4, warmup_from=0.25), []
    assert first.now(lambda density: 2 * density) == 0.08
    for beyond in (None, 0.5, None, 0.0, 0.01, 0.01):
        found.append(first.target())
        first.step(beyond)
    assert found == pytest.approx([0.04, 0.02 * 2**0.5, 0.02, 0.01 * 2**0.5, 0.01, 0.01])
    assert first.threshold == pytest.approx(0.08), "up and down by the most that a step moves it, and then held"
    again = TargetDensity(0.01, warmup_steps=8)
    again.restore(first.state())
    assert (again.steps, again.threshold) == (6, first.threshold)
    given = GivenThreshold(3.0)
    given.restore(first.state())
    assert (given.steps, given.threshold) == (6, 3.0), "the option counts, which may have changed"


@BOTH_FORMS
def test_a_model_in_bfloat16_keeps_its_residual_in_float32(options: Options) -> None:
    def work(group: Group) -> Tensor:
        model = network().to(torch.bfloat16)
        worker = gtc(model, torch.optim.SGD(model.parameters(), lr=0.1), group=group, **options)
        for step in range(3):
            x = torch.randn(8, 10, generator=torch.Generator().manual_seed(step + 10 * group.rank)).bfloat16()
            model(x).square().mean().backward()
            worker.step()
        assert worker.state()["rows"].dtype == torch.float32
        assert worker.state()["rows"].any()
        return weights(model)

    one, other = virtual.run(work, 2)
    assert one.dtype == torch.bfloat16
    assert torch.equal(one, other)


@BOTH_FORMS
def test_a_lost_worker_is_an_error_of_the_others(options: Options) -> None:
    def work(group: Group) -> str:
        model = network()
        worker = gtc(model, OPTIMISERS["adam"](model.parameters()), group=group, **options)
        go_on(worker, model, group.rank, range(2))
        if group.rank == 1:
            return ""
        with pytest.raises(WorkerLostError) as error:
            go_on(worker, model, group.rank, [2])
        return str(error.value)

    messages = virtual.run(work, 3)
    assert all("ranks [1] have ended" in messages[rank] for rank in (0, 2))


def test_wrong_options_are_refused() -> None:
    model = network()
    optimiser = OPTIMISERS["adam"](model.parameters())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "threshold and density"),
        ({"threshold": 1.0, "density": 0.1}, "threshold and density"),
        ({"threshold": -1.0}, '"threshold" = -1'),
        ({"density": 0.9}, '"density" = 0.9'),
        ({"threshold": 1.0, "warmup_from": 0.0}, '"warmup_from" = 0'),
        ({"threshold": 1.0, "node_size": 2}, "nodes of 2"),
        ({"threshold": 1.0, "capacity": 0.0}, '"capacity" = 0'),
        ({"threshold": 1.0, "clip_norm": 0.0}, '"clip_norm" = 0'),
    ]
    for options, message in wrong:
        with pytest.raises(ConfigError, match=message):
            gtc(model, optimiser, **options)
    state = gtc(Grid(5), optimiser, threshold=1.0).state()
    with pytest.raises(ConfigError, match="of 5 weights, this one has 249"):
        gtc(model, optimiser, threshold=1.0).restore([state])
    with pytest.raises(ConfigError, match="no state"):
        gtc(model, optimiser, threshold=1.0).restore([])
