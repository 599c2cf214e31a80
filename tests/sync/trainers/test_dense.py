"""Dense averaging and the parts of a step that all trainers share: weights, clipping, accumulation, precision."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gloo import run_workers
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from megahour import sync
from megahour.core.errors import ConfigError
from megahour.sync.group import virtual
from megahour.sync.group.base import Group, WorkerLostError
from megahour.sync.group.torch_group import TorchGroup
from megahour.sync.group.virtual import VirtualGroup


def make_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3))


def batch(rank: int, step: int, size: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(size, 6, generator=generator), torch.randn(size, 3, generator=generator)


def loss(model: nn.Module, rank: int, step: int, size: int = 8) -> Tensor:
    inputs, wanted = batch(rank, step, size)
    return (model(inputs) - wanted).square().mean()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def plain(steps: int, optimiser_class: Any, clip_norm: float | None, accumulate: int, **settings: Any) -> Tensor:
    """An ordinary training loop."""
    model = make_model()
    optimiser = optimiser_class(model.parameters(), **settings)
    for step in range(steps):
        for part in range(accumulate):
            loss(model, 0, accumulate * step + part).backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimiser.step()
        optimiser.zero_grad()
    return weights(model)


OPTIMISERS = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}, None),
    (torch.optim.AdamW, {"lr": 0.01}, 0.2),
]
ALONE = [
    ("dense", {}),
    ("dense", {"clip": "mean", "backwards": 3}),
    ("gtc", {"threshold": 0.1}),
    ("gtc", {"form": "update", "density": 0.05}),
    ("bmuf", {"block_steps": 4, "warmup_steps": 3}),
    ("gossip", {}),
    ("local_sgd", {"period_steps": 4}),
    ("ddp", {"backwards": 3}),
    ("ddp_powersgd", {"backwards": 3}),
    ("ddp_bf16", {"backwards": 3}),
    ("zero", {"backwards": 3}),
    ("fsdp", {}),
]


@pytest.mark.parametrize(("optimiser_class", "settings", "clip_norm"), OPTIMISERS)
@pytest.mark.parametrize(("trainer", "options"), ALONE)
def test_one_worker_takes_the_steps_of_the_plain_loop_bit_for_bit(
    trainer: str, options: dict[str, Any], optimiser_class: Any, settings: dict[str, Any], clip_norm: float | None
) -> None:
    model = make_model()
    optimiser = optimiser_class(model.parameters(), **settings)
    worker = sync.build(trainer, model, optimiser, clip_norm=clip_norm, **options)
    for step in range(10):
        for part in range(3):
            loss(model, 0, 3 * step + part).backward()
        worker.step()
        optimiser.zero_grad()
    worker.finish()
    assert torch.equal(weights(model), plain(10, optimiser_class, clip_norm, 3, **settings))


def train(group: Group, set_to_none: bool = True, **options: Any) -> Tensor:
    """Ten steps of dense with three kinds of worker: others have larger batches, and the last has none at the end."""
    model = make_model(seed=group.rank)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    worker = sync.dense(model, optimiser, group=group, bucket_bytes=2000, **options)
    for step in range(10):
        size = 8 if options.get("backwards") else 4 + 4 * group.rank
        without = step >= 7 and group.rank == group.size - 1
        if not without:
            loss(model, group.rank, step, size).backward()
        full = 1.0 if options.get("backwards") else float(size)
        worker.step(weight=0.0 if without else full)
        optimiser.zero_grad(set_to_none=set_to_none)
    worker.finish()
    return weights(model)


OPTIONS = [
    {},
    {"clip_norm": 0.1},
    {"clip_norm": 0.1, "clip": "mean"},
    {"clip_norm": 0.1, "clip": "mean", "backwards": 1},
    {"backwards": 1, "set_to_none": False},
    {"set_to_none": False},
]


def test_processes_and_virtual_workers_train_the_same_model_bit_for_bit() -> None:
    for size in (2, 4):
        real = run_workers(train_all, size)
        for number, options in enumerate(OPTIONS):
            made_up = virtual.run(lambda group, options=options: train(group, **options), size)  # type: ignore[misc]
            for rank in range(size):
                assert not isinstance(real[rank], Exception), real[rank]
                assert torch.equal(real[rank][number], made_up[0]), (size, rank, options)
                assert torch.equal(made_up[rank], made_up[0])


def train_all() -> list[Tensor]:
    return [train(TorchGroup(timeout_s=30), **options) for options in OPTIONS]


def test_the_step_is_that_of_one_worker_with_all_batches() -> None:
    """Mean losses over 4, 8 and 12 frames, weighted by these, are the mean over the 24 frames."""
    model = make_model()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(10):
        sizes = [4, 8, 12] if step < 7 else [4, 8]
        for rank, size in enumerate(sizes):
            (loss(model, rank, step, size) * size / sum(sizes)).backward()
        optimiser.step()
        optimiser.zero_grad()
    for found in virtual.run(train, 3):
        torch.testing.assert_close(found, weights(model), atol=2e-6, rtol=1e-5)


def test_sums_that_begin_in_backward_give_the_same_bits_and_are_hidden() -> None:
    def cost(call: str, size_bytes: int, size: int) -> float:
        return 1.0

    def work(group: VirtualGroup, backwards: int | None) -> tuple[Tensor, float]:
        model = make_model()
        worker = sync.dense(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            group=group,
            bucket_bytes=2000,
            backwards=backwards,
        )
        before_s = group.traffic.exposed_s
        model[2].register_full_backward_hook(lambda *_: group.compute(2.0))  # what layers before the last take
        loss(model, group.rank, 0).backward()
        worker.step()
        return weights(model), group.traffic.exposed_s - before_s

    for (late, late_s), (early, early_s) in zip(
        virtual.run(lambda group: work(group, None), 2, cost=cost),
        virtual.run(lambda group: work(group, 1), 2, cost=cost),
        strict=True,
    ):
        assert torch.equal(late, early)
        assert late_s == 2.0, "the agreement, then all sums at once"
        assert early_s == 1.0, "the agreement; sums of the last layers have arrived, the others come with it"


def test_accumulation_sends_once_a_step() -> None:
    def work(group: VirtualGroup, backwards: int | None) -> tuple[Tensor, int]:
        model = make_model()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        worker = sync.dense(model, optimiser, group=group, backwards=backwards)
        for step in range(3):
            for part in range(4):
                (loss(model, group.rank, 4 * step + part) / 4).backward()
            worker.step()
            optimiser.zero_grad()
        return weights(model), group.traffic.sent_bytes

    late, early = (virtual.run(lambda group, b=b: work(group, b), 2) for b in (None, 4))  # type: ignore[misc]
    assert all(torch.equal(found, late[0][0]) for found, _ in late + early)
    assert late[0][1] == early[0][1]
    with pytest.raises(ConfigError, match="backward call 3 since the last step"):
        virtual.run(lambda group: work(group, 2), 2)


def test_options_and_weights_that_contradict_each_other_are_errors() -> None:
    model = make_model()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for options, message in [
        ({"clip_norm": 0.0}, '"clip_norm" = 0.0'),
        ({"clip": "both"}, r'"clip" = .both.'),
        ({"backwards": 0}, '"backwards" = 0'),
        ({"backwards": 1, "clip_norm": 1.0}, "of the local gradient"),
    ]:
        with pytest.raises(ConfigError, match=message):
            sync.dense(model, optimiser, **options)
    for weight in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="is not finite and ≥ 0"):
            sync.dense(model, optimiser).step(weight=weight)

    def weigh(group: VirtualGroup) -> None:
        model = make_model()
        worker = sync.dense(model, torch.optim.SGD(model.parameters(), lr=0.1), group=group, backwards=1)
        loss(model, 0, 0).backward()
        worker.step(weight=3.0)

    with pytest.raises(ConfigError, match=r"weight 3\.0 of a gradient that has been sent"):
        virtual.run(weigh, 2)


def test_a_step_in_which_nobody_has_a_batch_changes_nothing() -> None:
    def work(group: VirtualGroup) -> bool:
        model = make_model()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        worker = sync.dense(model, optimiser, group=group)
        for step in range(2):
            loss(model, group.rank, step).backward()
            worker.step(weight=1.0 - step)
            if step == 0:
                before = weights(model)
            optimiser.zero_grad()
        return torch.equal(weights(model), before)

    assert virtual.run(work, 3) == [True] * 3


def scaled(group: Group, early: bool) -> tuple[list[float], Tensor]:
    """Six fp16 steps: worker 1 overflows in the third, has no batch in the first and the fifth."""
    model = make_model()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    options: dict[str, Any] = {"backwards": 1, "clip": "mean"} if early else {}
    worker = sync.dense(model, optimiser, group=group, clip_norm=0.5, **options)
    scaler = GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    scales = []
    for step in range(6):
        has = group.rank != 1 or step not in (0, 4)
        if has:
            value = scaler.scale(loss(model, group.rank, step))
            (value * (float("inf") if step == 2 and group.rank == 1 else 1.0)).backward()
        worker.step(weight=float(has), scaler=scaler)
        optimiser.zero_grad()
        scales.append(scaler.get_scale())
    return scales, weights(model)


@pytest.mark.parametrize("early", [False, True])
def test_all_workers_leave_out_the_step_of_an_overflow_and_keep_one_scale(early: bool) -> None:
    results = virtual.run(lambda group: scaled(group, early), 3)
    for scales, found in results:
        assert scales == [1024, 2048, 1024, 1024, 2048, 2048]
        assert torch.equal(found, results[0][1])
        assert found.isfinite().all()


def test_mixed_precision_alone_is_that_of_the_plain_loop() -> None:
    def run(with_worker: bool) -> tuple[Tensor, float]:
        model = make_model()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        worker = sync.dense(model, optimiser, clip_norm=0.3)
        for step in range(6):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                value = loss(model, 0, step)
            (scaler.scale(value) * (float("nan") if step == 3 else 1.0)).backward()
            if with_worker:
                worker.step(scaler=scaler)
            else:
                scaler.unscale_(optimiser)
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                scaler.step(optimiser)
                scaler.update()
            optimiser.zero_grad()
        return weights(model), scaler.get_scale()

    ours, plains = run(True), run(False)
    assert torch.equal(ours[0], plains[0])
    assert ours[1] == plains[1]


def test_bf16_weights_get_the_mean_of_gradients_summed_in_fp32() -> None:
    def work(group: VirtualGroup) -> Tensor:
        model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
        with torch.no_grad():
            model.weight.zero_()
        worker = sync.dense(model, torch.optim.SGD(model.parameters(), lr=1.0), group=group)
        model.weight.grad = torch.full_like(model.weight, -1.0 if group.rank else -256.0)
        worker.step()
        return weights(model)

    # In bf16, 256 + 1 + … + 1 stays 256.
    assert [float(found) for found in virtual.run(work, 9)] == [pytest.approx(264 / 9, rel=2**-8)] * 9


def test_a_lost_worker_leaves_the_weights_as_they_were() -> None:
    def work(group: VirtualGroup) -> bool:
        model = make_model()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        worker = sync.dense(model, optimiser, group=group)
        for step in range(4):
            if step == 3 and group.rank == 1:
                return True
            before = copy.deepcopy(weights(model))
            loss(model, group.rank, step).backward()
            try:
                worker.step()
            except WorkerLostError:
                return torch.equal(before, weights(model)) and step == 3
            optimiser.zero_grad()
        return False

    assert virtual.run(work, 3) == [True] * 3


def local(group: Group, restore_at: int | None = None, workers: int = 3) -> Tensor:
    model = make_model(group.rank)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    make: Callable[[], sync.Synchroniser] = lambda: sync.local_sgd(  # noqa: E731
        model, optimiser, group=group, period_steps=4, warmup_steps=2, clip_norm=1.0
    )
    worker = make()
    for step in range(11):
        if step == restore_at:
            states = [worker.state()]
            assert isinstance(group, VirtualGroup)
            gathered: list[list[Any]] = group.together(lambda all_: [all_] * len(all_), states[0])
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(float(group.rank))
            worker = make()
            worker.restore(gathered)
        loss(model, group.rank, step).backward()
        worker.step(weight=1.0 + group.rank)
        optimiser.zero_grad()
    worker.finish()
    return weights(model)


def test_local_sgd_ends_with_one_model_also_after_a_restart_and_between_processes() -> None:
    made_up = virtual.run(local, 3)
    assert all(torch.equal(found, made_up[0]) for found in made_up)
    again = virtual.run(lambda group: local(group, restore_at=8), 3)
    assert all(torch.equal(found, made_up[0]) for found in again)
    real = run_workers(local_of_processes, 3)
    assert all(torch.equal(found, made_up[0]) for found in real)


def local_of_processes() -> Tensor:
    return local(TorchGroup(timeout_s=30))


def test_local_sgd_with_a_mean_after_each_step_of_plain_sgd_is_dense() -> None:
    def work(group: VirtualGroup, trainer: str) -> Tensor:
        model = make_model()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"period_steps": 1} if trainer == "local_sgd" else {}
        worker = sync.build(trainer, model, optimiser, group=group, **options)
        for step in range(5):
            loss(model, group.rank, step).backward()
            worker.step(weight=1.0 + group.rank)
            optimiser.zero_grad()
        return weights(model)

    one, other = (virtual.run(lambda group, t=t: work(group, t), 3)[0] for t in ("local_sgd", "dense"))  # type: ignore[misc]
    torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_local_sgd_restores_the_mean_where_workers_have_become_fewer() -> None:
    def save(group: VirtualGroup) -> dict[str, Tensor]:
        model = nn.Linear(1, 1, bias=False)
        worker = sync.local_sgd(model, torch.optim.SGD(model.parameters(), lr=0.1), group=group, period_steps=10)
        with torch.no_grad():
            model.weight.fill_(float(group.rank))
        worker.step(weight=0.0)
        model.weight.grad = torch.zeros(1, 1)
        worker.step(weight=1.0 + group.rank)
        return worker.state()

    states = virtual.run(save, 3)

    def restore(group: VirtualGroup) -> tuple[float, list[float]]:
        model = nn.Linear(1, 1, bias=False)
        worker = sync.local_sgd(model, torch.optim.SGD(model.parameters(), lr=0.1), group=group, period_steps=10)
        worker.restore(states)
        return model.weight.item(), worker.state()["position"].tolist()

    assert virtual.run(restore, 2) == [(pytest.approx((0 * 1 + 1 * 2 + 2 * 3) / 6), [2, 2])] * 2


@pytest.mark.parametrize("options", [{}, {"clip": "mean"}, {"clip": "mean", "backwards": 1}], ids=str)
def test_workers_of_an_accelerator_ask_it_for_nothing(options: dict[str, Any]) -> None:
    """On torch's meta device, which has no values, so any wait of the host raises."""

    def work(group: Group) -> bool:
        model = nn.Linear(3, 2, device="meta")
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        worker = sync.dense(model, optimiser, group=group, clip_norm=1.0, **options)
        for _ in range(2):
            model(torch.zeros(4, 3, device="meta")).sum().backward()
            worker.step()
            optimiser.zero_grad()
        norm = worker.metrics["gradient_norm"]
        return isinstance(norm, Tensor) and norm.is_meta

    assert virtual.run(work, 2) == [True, True]
