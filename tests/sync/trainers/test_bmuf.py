"""BMUF compared with the published recursions and a plain loop, and events of a long run."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest
import torch
from gloo import run_workers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from megahour.core.errors import ConfigError, MegahourError
from megahour.sync import bmuf, diloco
from megahour.sync.group import virtual
from megahour.sync.group.base import Group, WorkerLostError
from megahour.sync.group.torch_group import TorchGroup
from megahour.sync.group.virtual import VirtualGroup
from megahour.sync.trainers import block_momentum as bm
from megahour.sync.trainers.bmuf import Bmuf

eighths = st.integers(-64, 64).map(lambda n: Fraction(n, 8))


def on_paper(form: bm.Form, means: Sequence[Fraction], eta: Fraction, zeta: Fraction) -> tuple[Fraction, Fraction]:
    """W(t) and B(t) by the equations as they are printed, from W(0) = 0; the progress of block t is `means[t]`."""
    w = b = delta = Fraction(0)
    for progress in means:
        mean = b + progress  # the workers began at b
        g = mean - b
        delta = eta * delta + zeta * g
        if form == "literal":
            w = b = b + delta + eta * delta
        else:
            w = w + delta
            b = w + eta * delta if form == "nesterov" else w
    return w, b


@pytest.mark.parametrize("form", bm.FORMS)
@given(
    means=st.lists(eighths, min_size=1, max_size=6),
    eta=st.sampled_from([0.0, 0.5, 0.75]),
    zeta=st.sampled_from([0.5, 1.0]),
)
def test_filters_follow_their_equations(form: bm.Form, means: list[Fraction], eta: float, zeta: float) -> None:
    found = bm.FORMS[form](torch.zeros(1, dtype=torch.float64))
    for progress in means:
        found.advance(found.start + float(progress), eta, eta, zeta)
    w, b = on_paper(form, means, Fraction(eta), Fraction(zeta))
    assert float(found.model) == float(w)  # halves and quarters: nothing is rounded
    assert float(found.start) == float(b)


def test_literal_form_moves_further_by_the_look_ahead() -> None:
    eta, moved = 0.75, {}
    for form in ("nesterov", "literal"):
        found = bm.FORMS[form](torch.zeros(1, dtype=torch.float64))
        for _ in range(200):
            before = found.model.clone()
            found.advance(found.start + 1.0, eta, eta, 1.0)
        moved[form] = float(found.model - before)
    assert moved["nesterov"] == pytest.approx(1 / (1 - eta))
    assert moved["literal"] == pytest.approx((1 + eta) / (1 - eta))


def test_momentum_of_equation_6() -> None:
    assert bm.block_momentum(1) == 0
    assert bm.block_momentum(8) == 1 - 1 / 8
    for workers, zeta, constant in ((8, 1.0, 1.0), (64, 0.5, 2.0), (128, 1.0, 1.5)):
        eta = bm.block_momentum(workers, zeta, constant)
        assert zeta / (workers * (1 - eta)) == pytest.approx(constant)
    for workers, zeta, constant in ((8, 1.0, 0.5), (2, 3.0, 1.0), (2, 0.0, 1.0)):
        with pytest.raises(ConfigError):
            bm.block_momentum(workers, zeta, constant)


def make_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(5, 3, generator=generator)
    return x, (x[:, 0] + 0.3 * torch.randn(5, generator=generator) > 0).long()


def backward(model: nn.Module, step: int, rank: int) -> None:
    x, y = batch(step, rank)
    model.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).clone()


OPTIMISERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
}


def train(group: Group, steps: int, optimiser: str = "sgd", **options: object) -> tuple[Tensor, Bmuf]:
    model = make_model()
    worker = bmuf(model, OPTIMISERS[optimiser](model), group=group, **options)  # type: ignore[arg-type]
    for step in range(steps):
        backward(model, step, group.rank)
        worker.step()
    worker.finish()
    return weights(model), worker


@pytest.mark.parametrize("form", bm.FORMS)
def test_workers_follow_the_recursion_of_their_models(form: bm.Form) -> None:
    """Four workers, three blocks of two steps and a half-filled fourth, against plain models and the equations."""
    workers, block, steps, eta = 4, 2, 7, 0.6
    models = [make_model() for _ in range(workers)]
    optimisers = [OPTIMISERS["sgd"](model) for model in models]
    w = b = weights(models[0]).double()
    delta = torch.zeros_like(w)
    for step in range(steps):
        for rank, model in enumerate(models):
            backward(model, step, rank)
            optimisers[rank].step()
        if (step + 1) % block == 0 or step + 1 == steps:
            mean = torch.stack([weights(model) for model in models]).double().mean(0)
            delta = eta * delta + (mean - b)
            w = (b if form == "literal" else w) + delta * (1 + eta if form == "literal" else 1)
            b = w + eta * delta if form == "nesterov" else w
            for model in models:
                nn.utils.vector_to_parameters(b.float(), model.parameters())
    found = virtual.run(lambda group: train(group, steps, block_steps=block, eta=eta, form=form)[0], workers)
    assert all(torch.equal(other, found[0]) for other in found)
    torch.testing.assert_close(found[0].double(), w, atol=2e-6, rtol=0)


def test_diloco_is_torchs_nesterov_sgd_on_what_workers_moved() -> None:
    """Douillard et al., algorithm 1: outer momentum 0.9, rate 0.7. The end is its model without the look-ahead."""
    workers, block, steps = 3, 2, 6
    models = [make_model() for _ in range(workers)]
    optimisers = [OPTIMISERS["sgd"](model) for model in models]
    outer = nn.Parameter(weights(models[0]).double())
    sgd = torch.optim.SGD([outer], lr=0.7, momentum=0.9, nesterov=True)
    for step in range(steps):
        for rank, model in enumerate(models):
            backward(model, step, rank)
            optimisers[rank].step()
        if (step + 1) % block == 0:
            outer.grad = outer.detach() - torch.stack([weights(model) for model in models]).double().mean(0)
            sgd.step()
            for model in models:
                nn.utils.vector_to_parameters(outer.detach().float(), model.parameters())
    expected = outer.detach() + 0.9 * 0.7 * sgd.state[outer]["momentum_buffer"]

    def one(group: VirtualGroup) -> Tensor:
        model = make_model()
        optimiser = OPTIMISERS["sgd"](model)
        worker = diloco(model, optimiser, group=group, block_steps=block)
        for step in range(steps):
            backward(model, step, group.rank)
            worker.step()
        worker.finish()
        return weights(model)

    for found in virtual.run(one, workers):
        torch.testing.assert_close(found.double(), expected, atol=2e-6, rtol=0)


def test_paper_form_trains_better_than_the_literal_one() -> None:
    """Both with η = 1 - 1/N: mean loss over fresh batches at the end of the same steps."""
    losses = {}
    for form in ("nesterov", "literal"):
        found = virtual.run(lambda group, form=form: train(group, 200, block_steps=5, form=form)[0], 8)[0]
        model = make_model()
        nn.utils.vector_to_parameters(found, model.parameters())
        fresh = [batch(10_000 + i, 0) for i in range(400)]
        with torch.no_grad():
            losses[form] = sum(float(nn.functional.cross_entropy(model(x), y)) for x, y in fresh) / len(fresh)
    assert losses["nesterov"] < losses["literal"]


def test_finish_leaves_the_global_model_not_the_look_ahead() -> None:
    def play(group: VirtualGroup) -> tuple[Tensor, Tensor, Tensor]:
        found, worker = train(group, 10, block_steps=5)
        return found, worker.filter.model, worker.filter.start

    for found, model, start in virtual.run(play, 4):
        assert torch.equal(found, model)
        assert not torch.equal(found, start)


def test_steady_weights_are_a_plain_mean_and_frames_weigh() -> None:
    def play(group: VirtualGroup, frames: Sequence[float]) -> Tensor:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        worker = bmuf(model, torch.optim.SGD(model.parameters(), lr=1.0), group=group, block_steps=2, eta=0.0)
        for _ in range(2):
            model.weight.grad = torch.full((1, 1), -float(group.rank + 1))
            worker.step(weight=frames[group.rank])
        return weights(model)

    for frames, expected in (([1, 1, 1, 1], 5.0), ([1, 1, 2, 0], 4.5), ([0, 0, 0, 7], 8.0), ([0, 0, 0, 0], 0.0)):
        found = virtual.run(lambda group, frames=frames: play(group, frames), 4)
        assert [float(w) for w in found] == [expected] * 4


def test_warm_up_is_synchronous_averaging_without_momentum() -> None:
    models = [make_model() for _ in range(3)]
    for step in range(6):
        for rank, model in enumerate(models):
            backward(model, step, rank)
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        mean = torch.stack([weights(model) for model in models]).mean(0)
        for model in models:
            nn.utils.vector_to_parameters(mean.clone(), model.parameters())
    found = virtual.run(lambda group: train(group, 6, warmup_steps=6, block_steps=50)[0], 3)[0]
    torch.testing.assert_close(found, mean)


def test_a_momentum_too_long_for_the_run_is_capped_or_named(caplog: pytest.LogCaptureFixture) -> None:
    def eta(workers: int, **options: object) -> float:
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            return virtual.run(lambda group: train(group, 0, block_steps=5, **options)[1].eta, workers)[0]

    assert eta(128, total_steps=3125) == pytest.approx(1 - 20 / 625)  # "auto"
    assert not caplog.text
    assert eta(128, total_steps=3125, eta_cap=None) == 1 - 1 / 128
    assert "R = 4.9" in caplog.text
    assert "0.9680" in caplog.text  # what would do
    assert eta(128, total_steps=3125, eta_cap=0.96) == 0.96
    assert not caplog.text
    assert eta(8, total_steps=3125, eta_cap=None) == 1 - 1 / 8
    assert not caplog.text
    assert eta(2, total_steps=100, eta=0.9) == 0.9  # as it was asked for
    assert "R = 2.0" in caplog.text


def test_a_run_whose_length_nobody_told_warns_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        virtual.run(lambda group: train(group, 20, block_steps=5), 8)
    assert "R = 0.5" in caplog.text


@pytest.mark.parametrize("at", [0, 7, 10])
def test_resuming_gives_the_same_bits(at: int) -> None:
    """Stopped in the middle of a block and at its edge: model, optimiser and state are what a checkpoint holds."""

    def play(group: VirtualGroup, resumed: bool) -> Tensor:
        model = make_model()
        optimiser = OPTIMISERS["momentum"](model)
        worker = bmuf(model, optimiser, group=group, block_steps=5)
        for step in range(16):
            if resumed and step == at:
                states = [
                    {k: v.clone() for k, v in s.items()}
                    for s in group.together(lambda all_: [all_] * group.size, worker.state())
                ]
                kept = copy.deepcopy(optimiser.state_dict())
                model = make_model(seed=5)
                optimiser = OPTIMISERS["momentum"](model)
                optimiser.load_state_dict(kept)
                worker = bmuf(model, optimiser, group=group, block_steps=5)
                worker.restore(states)
            backward(model, step, group.rank)
            worker.step()
        worker.finish()
        return weights(model)

    plain, resumed = (virtual.run(lambda group, r=r: play(group, r), 3) for r in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(plain, resumed, strict=True))


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 3), (3, 1)])
def test_another_number_of_workers_goes_on_from_the_mean(before: int, after: int) -> None:
    def first(group: VirtualGroup) -> dict[str, Tensor]:
        model = make_model()
        worker = bmuf(model, OPTIMISERS["sgd"](model), group=group, block_steps=5)
        for step in range(7):  # two steps into the second block
            backward(model, step, group.rank)
            worker.step()
        return worker.state()

    states = virtual.run(first, before)

    def second(group: VirtualGroup) -> tuple[Tensor, Bmuf]:
        model = make_model(seed=3)
        worker = bmuf(model, OPTIMISERS["sgd"](model), group=group, block_steps=5)
        worker.restore(states)
        return weights(model), worker

    mean = torch.stack([state["weights"] for state in states]).mean(0)
    for found, worker in virtual.run(second, after):
        torch.testing.assert_close(found, mean)
        assert worker.eta == 1 - 1 / after
        assert torch.equal(worker.filter.model, states[0]["memory"])
        assert worker.state()["position"].tolist() == [7, 2, 1]


def test_a_worker_that_diverged_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    def play(group: VirtualGroup, bad: Sequence[int]) -> Tensor:
        model = make_model()
        worker = bmuf(model, OPTIMISERS["sgd"](model), group=group, block_steps=2)
        for step in range(4):
            backward(model, step, group.rank)
            if step == 1 and group.rank in bad:
                model[0].weight.grad[0, 0] = math.nan
            worker.step()
        worker.finish()
        return weights(model)

    found = virtual.run(lambda group: play(group, [2]), 3)
    assert all(torch.equal(other, found[0]) for other in found)
    assert found[0].isfinite().all()
    assert "rank 2: weights are not finite after step 2" in caplog.text
    with pytest.raises(MegahourError, match="no worker has finite weights after step 2"):
        virtual.run(lambda group: play(group, [0, 1, 2]), 3)


@pytest.mark.parametrize("inner", ["keep", "reset", "mean"])
def test_a_worker_that_diverged_once_is_left_out_once(inner: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its moments are NaN too, and would corrupt its new weights, or the others' moments."""

    def play(group: VirtualGroup) -> bool:
        model = make_model()
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
        worker = bmuf(model, optimiser, group=group, block_steps=2, inner=inner)  # type: ignore[arg-type]
        for step in range(6):
            backward(model, step, group.rank)
            if step == 1 and group.rank == 2:
                model[0].weight.grad[0, 0] = math.nan
            worker.step()
        return all(bool(tensor.isfinite().all()) for state in optimiser.state.values() for tensor in state.values())

    assert all(virtual.run(play, 3))
    assert caplog.text.count("weights are not finite") == 1


@pytest.mark.parametrize("inner", ["keep", "reset", "mean"])
def test_the_optimisers_own_momentum_at_an_edge(inner: str) -> None:
    def play(group: VirtualGroup) -> tuple[Tensor | None, Tensor]:
        model = nn.Linear(1, 1, bias=False)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        worker = bmuf(model, optimiser, group=group, block_steps=1, inner=inner)  # type: ignore[arg-type]
        model.weight.grad = torch.full((1, 1), float(group.rank))
        worker.step()
        return optimiser.state.get(model.weight, {}).get("momentum_buffer"), weights(model)

    found = [buffer for buffer, _ in virtual.run(play, 4)]
    if inner == "reset":
        assert found == [None] * 4
    else:
        assert [float(b) for b in found if b is not None] == ([0, 1, 2, 3] if inner == "keep" else [1.5] * 4)


def test_running_means_of_the_final_model_are_the_workers_mean() -> None:
    def play(group: VirtualGroup) -> Tensor:
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=1.0))
        worker = bmuf(model, torch.optim.SGD(model.parameters(), lr=0.0), group=group)
        model[1].running_mean.fill_(float(group.rank))
        worker.finish()
        return model[1].running_mean.clone()

    assert all(torch.equal(found, torch.full((2,), 1.5)) for found in virtual.run(play, 4))


def test_an_infinity_under_mixed_precision_costs_one_worker_one_step() -> None:
    def play(group: VirtualGroup) -> tuple[Tensor, float]:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        worker = bmuf(model, torch.optim.SGD(model.parameters(), lr=1.0), group=group, block_steps=1, eta=0.0)
        scaler.scale(model(torch.ones(1, 1)).sum()).backward()
        if group.rank == 0:
            model.weight.grad.fill_(math.inf)
        worker.step(scaler=scaler)
        return weights(model), scaler.get_scale()

    found = virtual.run(play, 2)
    assert [float(w) for w, _ in found] == [-0.5, -0.5]  # rank 1 moved by -1, rank 0 not at all
    assert [scale for _, scale in found] == [2.0, 4.0]


def test_a_lost_worker_is_noticed_at_the_edge() -> None:
    def play(group: VirtualGroup) -> None:
        model = make_model()
        worker = bmuf(model, OPTIMISERS["sgd"](model), group=group, block_steps=4)
        for step in range(8 if group.rank else 2):
            backward(model, step, group.rank)
            worker.step()

    with pytest.raises(WorkerLostError):
        virtual.run(play, 3)


@pytest.mark.parametrize(
    "options",
    [
        {"block_steps": 0},
        {"warmup_steps": -1},
        {"eta": 1.0},
        {"eta_cap": -0.1},
        {"eta_cap": "automatic"},
        {"total_steps": 0},
        {"form": "nestorov"},
        {"inner": "lose"},
    ],
)
def test_options_without_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        virtual.run(lambda group: train(group, 1, **options), 2)


@settings(max_examples=20)
@given(workers=st.integers(1, 6), block=st.integers(1, 4), steps=st.integers(0, 9))
def test_all_workers_end_with_the_same_bits(workers: int, block: int, steps: int) -> None:
    found = virtual.run(lambda group: train(group, steps, block_steps=block)[0], workers)
    assert all(torch.equal(other, found[0]) for other in found)


def train_in_process() -> Tensor:
    return train(TorchGroup(timeout_s=30), 12, "momentum", block_steps=5, inner="mean", clip_norm=0.5)[0]


def test_processes_and_virtual_workers_give_the_same_bits() -> None:
    real = run_workers(train_in_process, 3)
    made_up = virtual.run(lambda group: train(group, 12, "momentum", block_steps=5, inner="mean", clip_norm=0.5)[0], 3)
    for one, other in zip(real, made_up, strict=True):
        assert not isinstance(one, Exception), one
        assert torch.equal(one, other)
