"""GTC with form `update`: its equations with each worker's own optimiser, its state, and the warnings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gloo import run_workers
from torch import Tensor, nn

from megahour import sync
from megahour.core.errors import ConfigError
from megahour.sync import gtc
from megahour.sync.compress.largest_sum import BLOCK, pieces_of
from megahour.sync.group import virtual
from megahour.sync.group.base import Group
from megahour.sync.group.torch_group import TorchGroup
from megahour.sync.trainers.base import Synchroniser

RATE, DECAY, MOMENTUM, BETAS = 0.02, 0.1, 0.9, (0.8, 0.95)
EPS = 1e-2  # with a small one all of Adam's first updates are of one size, and rounding chooses the largest
OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY),
    "sgd": lambda p: torch.optim.SGD(p, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY),
}


def network(seed: int = 0) -> nn.Module:
    """Matrices of 240 and 288 elements, which are compressed, and small parameters, which are not."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(10, 24), nn.LayerNorm(24), nn.Tanh(), nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 1))


def loss_of(model: nn.Module, worker: int, step: int) -> Tensor:
    x = torch.randn(8, 10, generator=torch.Generator().manual_seed(1000 * step + worker))
    loss: Tensor = (model(x).squeeze(1) - x[:, :3].sum(1)).square().mean()
    return loss


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def go_on(worker: Synchroniser, model: nn.Module, rank: int, steps: range, weight: float = 1.0) -> None:
    for step in steps:
        model.zero_grad()
        loss_of(model, rank, step).backward()
        worker.step(weight=weight)


def train(group: Group, steps: int, optimiser: str = "adamw", **options: Any) -> tuple[Tensor, dict[str, Any]]:
    model = network(seed=group.rank)
    worker = gtc(
        model, OPTIMISERS[optimiser](model.parameters()), group=group, **({"form": "update", "density": 0.05} | options)
    )
    go_on(worker, model, group.rank, range(steps))
    worker.finish()
    return weights(model), worker.metrics


class ByHand:
    """One worker of the module's equations, parameter by parameter, written without torch's optimisers."""

    def __init__(self, optimiser: str, shapes: list[torch.Size], masks: bool) -> None:
        self.optimiser, self.t, self.masks = optimiser, 0, masks
        self.m, self.v, self.r = ([torch.zeros(s, dtype=torch.float64) for s in shapes] for _ in range(3))

    def update(self, gradients: list[Tensor]) -> list[Tensor]:
        """The change that its own optimiser makes to the weights."""
        self.t += 1
        updates = []
        for m, v, g in zip(self.m, self.v, gradients, strict=True):
            if self.optimiser == "sgd":
                m.mul_(MOMENTUM).add_(g)
                updates.append(-RATE * m)
                continue
            m.mul_(BETAS[0]).add_((1 - BETAS[0]) * g)
            v.mul_(BETAS[1]).add_((1 - BETAS[1]) * g * g)
            mean, square = m / (1 - BETAS[0] ** self.t), v / (1 - BETAS[1] ** self.t)
            updates.append(-RATE * mean / (square.sqrt() + EPS))
        return updates

    def send(self, updates: list[Tensor], share: float, density: float) -> list[Tensor]:
        """Its message to the others, element by element."""
        sent = []
        for m, r, u in zip(self.m, self.r, updates, strict=True):
            r += share * u
            q = torch.zeros_like(r)
            if r.dim() < 2 or r.numel() <= 128:
                q += r
            else:
                k = max(1, round(density * r.numel()))
                chosen = sorted(range(r.numel()), key=lambda i: -abs(float(r.view(-1)[i])))[:k]
                scale = sum(abs(float(r.view(-1)[i])) for i in chosen) / k
                for i in chosen:
                    q.view(-1)[i] = scale if r.view(-1)[i] > 0 else -scale
                    if self.masks:
                        m.view(-1)[i] = 0
            r -= q
            sent.append(q)
        return sent


def by_the_equations(
    optimiser: str, steps: int, density: float, clip_norm: float, weights_of: list[float], masks: bool
) -> Tensor:
    model = network()
    parameters = list(model.parameters())
    workers = [ByHand(optimiser, [p.shape for p in parameters], masks) for _ in weights_of]
    for step in range(steps):
        total = [torch.zeros(p.shape, dtype=torch.float64) for p in parameters]
        for rank, (worker, weight) in enumerate(zip(workers, weights_of, strict=True)):
            updates = [torch.zeros(p.shape, dtype=torch.float64) for p in parameters]
            if weight:
                found = torch.autograd.grad(loss_of(model, rank, step), parameters)
                norm = torch.cat([g.flatten() for g in found]).norm()
                updates = worker.update([g.double() * min(1.0, clip_norm / (float(norm) + 1e-6)) for g in found])
            for t, q in zip(total, worker.send(updates, weight / sum(weights_of), density), strict=True):
                t += q
        with torch.no_grad():
            for p, t in zip(parameters, total, strict=True):
                p.mul_(1 - RATE * DECAY).add_(t)
    return weights(model)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("mask", [None, True, False])
@pytest.mark.parametrize("shares", [[1.0, 1.0, 1.0], [300.0, 100.0, 0.0]])
def test_a_step_is_the_equations_with_clipping_before_and_decay_behind(
    optimiser: str, mask: bool | None, shares: list[float]
) -> None:
    expected = by_the_equations(optimiser, 12, 0.05, 1.5, shares, optimiser == "sgd" if mask is None else mask)

    def work(group: Group) -> Tensor:
        model = network()
        options: dict[str, Any] = {"form": "update", "density": 0.05, "clip_norm": 1.5, "group": group}
        options["mask_momentum"] = mask
        worker = gtc(model, OPTIMISERS[optimiser](model.parameters()), **options)
        go_on(worker, model, group.rank, range(12), weight=shares[group.rank])
        assert worker.metrics["density"] == (12 + 14 + 3 * 24 + 12 + 12 + 1) / 625
        return weights(model)

    found = virtual.run(work, 3)
    assert torch.allclose(found[0], expected, atol=2e-6)
    assert all(torch.equal(found[0], other) for other in found)


def test_density_falls_over_the_warm_up() -> None:
    def work(group: Group) -> list[Any]:
        model = network()
        options: dict[str, Any] = {"form": "update", "density": 0.02, "warmup_steps": 2, "group": group}
        worker, seen = gtc(model, OPTIMISERS["adamw"](model.parameters()), **options), []
        for step in range(4):
            go_on(worker, model, group.rank, range(step, step + 1))
            seen.append(worker.metrics["density"])
        return seen

    densities = [0.2, 0.02 * 10**0.5, 0.02, 0.02]
    whole = 3 * 24 + 12 + 12 + 1
    assert virtual.run(work, 2)[0] == [(round(240 * d) + round(288 * d) + whole) / 625 for d in densities]


EVERYWHERE: list[dict[str, Any]] = [
    {"density": 0.05},
    {"density": 0.02, "node_size": 2, "warmup_steps": 4, "optimiser": "sgd", "clip_norm": 1.0},
]


def train_twice(group: Group) -> list[tuple[Tensor, dict[str, Any]]]:
    return [train(group, 8, **options) for options in EVERYWHERE]


def train_as_process() -> list[tuple[Tensor, dict[str, Any]]]:
    return train_twice(TorchGroup(timeout_s=60))


def test_processes_and_virtual_workers_take_the_same_steps_and_hold_one_model() -> None:
    real = run_workers(train_as_process, 4)
    together = virtual.run(train_twice, 4)
    for ours, theirs in zip(real, together, strict=True):
        assert not isinstance(ours, Exception), ours
        for one, other, first in zip(ours, theirs, together[0], strict=True):
            assert torch.equal(one[0], other[0])
            assert one[1] == other[1]
            assert torch.equal(other[0], first[0])


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_a_run_goes_on_with_the_same_bytes_from_every_workers_own_moments_and_residual(optimiser: str) -> None:
    def make(group: Group, seed: int) -> tuple[nn.Module, torch.optim.Optimizer, Synchroniser]:
        model = network(seed)
        stepped = OPTIMISERS[optimiser](model.parameters())
        options: dict[str, Any] = {"form": "update", "density": 0.03, "warmup_steps": 10, "group": group}
        return model, stepped, gtc(model, stepped, **options)

    def interrupted(group: Group) -> dict[str, Tensor]:
        model, stepped, worker = make(group, 0)
        go_on(worker, model, group.rank, range(7))
        saved = copy.deepcopy(model.state_dict()), copy.deepcopy(stepped.state_dict())
        whole = {name: group.all_gather(tensor).wait() for name, tensor in worker.state().items()}
        states = [{name: tensors[rank] for name, tensors in whole.items()} for rank in range(group.size)]
        go_on(worker, model, group.rank, range(7, 14))
        straight, residual = weights(model), worker.state()["rows"]

        model, stepped, worker = make(group, 5)
        model.load_state_dict(saved[0])
        stepped.load_state_dict(saved[1])
        worker.restore(states)
        go_on(worker, model, group.rank, range(7, 14))
        assert torch.equal(weights(model), straight)
        assert torch.equal(worker.state()["rows"], residual)
        momentum = "exp_avg" if optimiser == "adamw" else "momentum_buffer"
        return {"weights": straight, "rows": residual, "momentum": stepped.state[next(model.parameters())][momentum]}

    one, other, _ = virtual.run(interrupted, 3)
    assert torch.equal(one["weights"], other["weights"])
    assert not torch.equal(one["rows"], other["rows"])
    assert not torch.equal(one["momentum"], other["momentum"])


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_fused_optimisers_make_the_same_updates_whatever_the_layout_of_parameters(kind: Any) -> None:
    """They iterate over weights, gradient and moments in memory order."""

    class Strided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.convolution = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.transposed, self.empty = nn.Parameter(torch.randn(30, 12).t()), nn.Parameter(torch.zeros(3, 0))

        def forward(self, x: Tensor) -> Tensor:
            seen: Tensor = self.convolution(x.view(-1, 1, 3, 3).repeat(1, 2, 1, 1)).flatten(1) @ self.transposed
            return seen + self.empty.sum()

    def work(group: Group, fused: bool) -> Tensor:
        model = Strided()
        eps = {"eps": EPS} if kind is torch.optim.AdamW else {}
        optimiser = kind(model.parameters(), lr=0.01, weight_decay=0.1, fused=fused, **eps)
        worker = gtc(model, optimiser, form="update", density=0.05, group=group)
        for step in range(5):
            model.zero_grad()
            x = torch.randn(6, 9, generator=torch.Generator().manual_seed(10 * step + group.rank))
            model(x).square().mean().backward()
            worker.step()
        return weights(model)

    fused, plain = (virtual.run(lambda group: work(group, fused), 3) for fused in (True, False))  # noqa: B023
    assert torch.allclose(fused[0], plain[0], atol=1e-5)
    assert torch.equal(fused[0], fused[2])


class Constant(nn.Module):
    """Its gradient is what it is called with; one parameter in blocks, of two lengths, and one that travels whole."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.zeros(3, BLOCK // 2)), nn.Parameter(torch.zeros(7))

    def forward(self, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shapes = (self.w.shape, self.b.shape)
        c, d = (torch.randint(-500, 500, shape, generator=generator) / 256 for shape in shapes)
        return (self.w * c).sum() + (self.b * d).sum()


def test_what_was_applied_and_what_waits_is_the_sum_of_all_updates_also_when_workers_come_and_go() -> None:
    def work(group: Group, phase: int, states: list[dict[str, Tensor]], node_size: int) -> Any:
        model = Constant()
        options: dict[str, Any] = {"form": "update", "density": 0.01, "node_size": node_size, "group": group}
        worker = gtc(model, torch.optim.SGD(model.parameters(), lr=1.0), **options)
        if states:
            worker.restore(states)
        given = torch.zeros(sum(p.numel() for p in model.parameters()))
        for step in range(3):
            model.zero_grad()
            model(100 * phase + 10 * step + group.rank).backward()
            given -= torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]) / group.size
            worker.step()
        return weights(model), given, worker.state()

    applied = given = torch.zeros(3 * BLOCK // 2 + 7)
    states: list[dict[str, Tensor]] = []
    for phase, (workers, nodes) in enumerate([(4, 1), (2, 1), (4, 2), (1, 1), (6, 3)]):
        found = virtual.run(lambda group: work(group, phase, states, nodes), workers)  # noqa: B023
        states = [state for _, _, state in found]
        applied, given = applied + found[0][0], given + sum(one for _, one, _ in found)
        waiting = torch.zeros_like(applied)
        for state in states:
            _, _, begin, end, _ = state["lane"].tolist()
            waiting[begin:end] += state["rows"].sum(0)
        assert torch.allclose(applied + waiting, given, atol=1e-4), (workers, nodes)


def test_blocks_are_of_one_parameter_each_and_small_parameters_travel_whole() -> None:
    shapes = [torch.Size(s) for s in ([2, BLOCK], [5], [70_000], [11, 12], [8, 16], [0, 3])]
    pieces = pieces_of(shapes, 0, sum(shape.numel() for shape in shapes))
    assert [(p.blocks, p.length, p.whole) for p in pieces] == [
        *((2, BLOCK, False), (1, 5, True), (2, BLOCK, False), (1, 70_000 - 2 * BLOCK, False)),
        *((1, 132, False), (1, 128, True)),
    ]
    assert [p.begin for p in pieces] == [0, 65536, 65541, 131077, 135541, 135673]
    halves = [*pieces_of(shapes, 0, 40_000), *pieces_of(shapes, 40_000, 135_801)]
    assert sum(p.blocks * p.length for p in halves) == 135_801
    assert pieces[0].sends(0.0001) == 3
    assert pieces[4].sends(0.0001) == 1


def test_wrong_options_are_refused() -> None:
    model = network()
    optimiser = OPTIMISERS["adamw"](model.parameters())
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"form": "updates", "density": 0.1}, 'did you mean "?update'),
        ({"form": "update", "threshold": 1.0}, "threshold with form=update, which does not have it"),
        ({"form": "update", "density": 0.1, "capacity": 0.5}, "capacity with form=update"),
        ({"form": "gradient", "density": 0.1, "mask_momentum": False}, "mask_momentum with form=gradient"),
        ({"form": "update"}, "threshold and density"),
    ]
    for options, message in wrong:
        with pytest.raises(ConfigError, match=message):
            gtc(model, optimiser, **options)
    scaled = torch.optim.Adafactor(model.parameters())
    with pytest.raises(ConfigError, match="Adafactor's step depends on the weights"):
        gtc(model, scaled, form="update", density=0.1)
    of_gradients = gtc(model, optimiser, density=0.1).state()
    with pytest.raises(ConfigError, match='not one of gtc of form "update"'):
        gtc(model, optimiser, form="update", density=0.1).restore([of_gradients])


@pytest.mark.parametrize(
    ("options", "short", "backlog"),
    [({"threshold": 0.01}, 1000, 19_000), ({"form": "update", "density": 0.01}, 150, 50)],
    ids=["gradient", "update"],
)
def test_a_run_too_short_for_what_waits_is_metered_and_warned_of(
    options: dict[str, Any], short: int, backlog: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Gradients are the same in all steps, of up to 1.95: τ of 0.01 keeps back all but a 195th of the largest."""

    def work(group: Group, total_steps: int) -> float:
        model = Constant()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        worker = gtc(model, optimiser, group=group, total_steps=total_steps, **options)
        for _ in range(101):
            model.zero_grad()
            model(0).backward()
            worker.step()
        return float(worker.metrics["backlog"])

    long = 1_000_000
    assert virtual.run(lambda group: work(group, long), 2)[0] == pytest.approx(backlog, rel=0.3)
    assert not caplog.records
    virtual.run(lambda group: work(group, short), 2)
    assert f"of the run's {short} steps are needed to send what waits" in caplog.text


@pytest.mark.parametrize("form", ["gradient", "update"])
def test_a_run_too_short_for_its_density_is_warned_of_at_its_start(form: str, caplog: pytest.LogCaptureFixture) -> None:
    def make(group: Group, total_steps: int) -> None:
        model = network()
        options: dict[str, Any] = {"form": form, "density": 0.01, "total_steps": total_steps, "group": group}
        gtc(model, OPTIMISERS["sgd"](model.parameters()), **options)

    virtual.run(lambda group: make(group, 1000), 2)
    virtual.run(lambda group: make(group, 900), 1)
    assert not caplog.records
    virtual.run(lambda group: make(group, 900), 2)
    assert caplog.text.count("900 steps at density 0.01 send an element 9 times") == 1
    assert sync.from_config({"trainer": "gtc", "density": 0.01}).for_run(900).model_dump()["total_steps"] == 900
