"""Streaming DiLoCo against its algorithm on plain models, against DiLoCo, and over a stop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gloo import run_workers
from torch import Tensor, nn

from megahour import sync
from megahour.core.errors import ConfigError, MegahourError
from megahour.sync.group import virtual
from megahour.sync.group.base import Group
from megahour.sync.group.torch_group import TorchGroup

WORKERS = 3


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def backward(model: nn.Module, step: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(5, 3, generator=generator)
    model.zero_grad()
    nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()


def vector(model: nn.Module) -> Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def make(group: Group, trainer: str = "streaming_diloco", **options: Any) -> tuple[nn.Module, sync.Synchroniser]:
    model = make_model()
    return model, sync.build(trainer, model, torch.optim.AdamW(model.parameters(), lr=0.01), group=group, **options)


def train(group: Group, steps: int, trainer: str = "streaming_diloco", **options: Any) -> Tensor:
    model, worker = make(group, trainer, **options)
    for step in range(steps):
        backward(model, step, group.rank)
        worker.step()
    worker.finish()
    return vector(model)


def by_the_paper(steps: int, every: int, fragments: int, overlap: int, mix: float) -> Tensor:
    """Algorithm 2 with torch's own outer SGD, one for each fragment; the end is the models' without look-ahead."""
    models = [make_model() for _ in range(WORKERS)]
    inner = [torch.optim.AdamW(model.parameters(), lr=0.01) for model in models]
    total = vector(models[0]).numel()
    cuts = [slice(p * total // fragments, (p + 1) * total // fragments) for p in range(fragments)]
    outer = [nn.Parameter(vector(models[0])[cut].double()) for cut in cuts]
    sgd = [torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=True) for weights in outer]
    sent: dict[int, tuple[int, Tensor]] = {}
    last = dict.fromkeys(range(fragments), 0)

    def send(p: int) -> Tensor:
        return torch.stack([vector(model)[cuts[p]] for model in models]).double().mean(0)

    def use(p: int, mean: Tensor, share: float) -> None:
        outer[p].grad = outer[p].detach() - mean
        sgd[p].step()
        for model in models:
            weights = vector(model)
            weights[cuts[p]] = (share * weights[cuts[p]].double() + (1 - share) * outer[p].detach()).float()
            nn.utils.vector_to_parameters(weights, model.parameters())

    for step in range(1, steps + 1):
        for rank, model in enumerate(models):
            backward(model, step - 1, rank)
            inner[rank].step()
        if step % (every // fragments) == 0:
            p = (step // (every // fragments) - 1) % fragments
            sent[step + overlap], last[p] = (p, send(p)), step
        if step in sent:
            use(*sent.pop(step), mix)
    for p, mean in sent.values():
        use(p, mean, mix)
    for p in range(fragments):
        if last[p] < steps:  # nothing is new in one that has just been sent
            use(p, send(p), 0.0)
    ends = [weights + 0.9 * 0.7 * sgd[p].state[weights]["momentum_buffer"] for p, weights in enumerate(outer)]
    return torch.cat(ends).detach()


@pytest.mark.parametrize(("fragments", "overlap", "mix"), [(1, 0, 0.0), (1, 3, 0.5), (2, 1, 0.5), (4, 0, 0.25)])
def test_workers_follow_the_paper(fragments: int, overlap: int, mix: float) -> None:
    options = {"block_steps": 4, "fragments": fragments, "overlap_steps": overlap, "mix": mix}
    expected = by_the_paper(14, 4, fragments, overlap, mix)
    for found in virtual.run(lambda group: train(group, 14, **options), WORKERS):
        torch.testing.assert_close(found.double(), expected, atol=2e-6, rtol=0)


def test_one_fragment_that_is_waited_for_is_diloco_bit_for_bit() -> None:
    options = {"block_steps": 3, "fragments": 1, "overlap_steps": 0, "mix": 0.0}
    streamed = virtual.run(lambda group: train(group, 11, **options), WORKERS)
    whole = virtual.run(lambda group: train(group, 11, "diloco", block_steps=3), WORKERS)
    assert all(torch.equal(one, other) for one, other in zip(streamed, whole, strict=True))


@pytest.mark.parametrize("stop", range(1, 9))
def test_a_stop_at_any_step_changes_no_bit(stop: int) -> None:
    """Also while a fragment is in transit."""
    options = {"block_steps": 4, "fragments": 2, "overlap_steps": 1}

    def stopped(group: virtual.VirtualGroup) -> tuple[dict[str, Tensor], dict[str, Any]]:
        model, worker = make(group, **options)
        for step in range(stop):
            backward(model, step, group.rank)
            worker.step()
        return worker.state(), worker._optimiser.state_dict()  # type: ignore[attr-defined]

    saved = virtual.run(stopped, WORKERS)

    def goes_on(group: virtual.VirtualGroup) -> Tensor:
        model, worker = make(group, **options)
        worker.restore([state for state, _ in saved])
        worker._optimiser.load_state_dict(saved[group.rank][1])  # type: ignore[attr-defined]
        for step in range(stop, 9):
            backward(model, step, group.rank)
            worker.step()
        worker.finish()
        return vector(model)

    whole = virtual.run(lambda group: train(group, 9, **options), WORKERS)
    resumed = virtual.run(goes_on, WORKERS)
    assert all(torch.equal(one, other) for one, other in zip(whole, resumed, strict=True))


def test_fewer_workers_go_on_from_the_mean() -> None:
    def stopped(group: virtual.VirtualGroup) -> dict[str, Tensor]:
        model, worker = make(group, block_steps=4, fragments=2)
        for step in range(5):
            backward(model, step, group.rank)
            worker.step()
        return worker.state()

    saved = virtual.run(stopped, WORKERS)

    def goes_on(group: virtual.VirtualGroup) -> Tensor:
        model, worker = make(group, block_steps=4, fragments=2)
        worker.restore(saved)
        return vector(model)

    mean = torch.stack([state["weights"] for state in saved]).mean(0)
    assert all(torch.equal(found, mean) for found in virtual.run(goes_on, 2))


def test_a_worker_with_nan_takes_the_others_model_and_all_with_nan_are_an_error() -> None:
    def play(group: virtual.VirtualGroup, broken: tuple[int, ...]) -> Tensor:
        model, worker = make(group, block_steps=2, fragments=2, overlap_steps=0)
        backward(model, 0, group.rank)
        if group.rank in broken:
            nn.utils.vector_to_parameters(vector(model) * float("nan"), model.parameters())
        for _ in range(2):
            worker.step()
        return vector(model)

    assert all(bool(found.isfinite().all()) for found in virtual.run(lambda group: play(group, (1,)), WORKERS))
    with pytest.raises(MegahourError, match="no worker has finite weights after step 1"):
        virtual.run(lambda group: play(group, (0, 1, 2)), WORKERS)


@pytest.mark.parametrize("overlap", [0, 1])
def test_a_worker_with_nan_starts_again_and_counts_again(overlap: int, caplog: pytest.LogCaptureFixture) -> None:
    """One fragment of the others' alone would be spoilt by its own others, and by Adam's moments."""

    def play(group: virtual.VirtualGroup) -> bool:
        model, worker = make(group, block_steps=6, fragments=3, overlap_steps=overlap)
        for step in range(12):
            backward(model, step, group.rank)
            if step == 2 and group.rank == 1:
                next(model.parameters()).grad.mul_(float("nan"))  # type: ignore[union-attr]
            worker.step()
        return bool(vector(model).isfinite().all())

    assert all(virtual.run(play, WORKERS))
    assert caplog.text.count("rank 1: weights are not finite") == 1


def over_gloo() -> tuple[Tensor, float]:
    group = TorchGroup(timeout_s=30)
    return train(group, 9, block_steps=4, fragments=2, overlap_steps=1), group.traffic.sent_bytes


def test_processes_give_the_bits_of_threads() -> None:
    expected = virtual.run(lambda group: train(group, 9, block_steps=4, fragments=2, overlap_steps=1), 2)
    for (found, _), wanted in zip(run_workers(over_gloo, 2), expected, strict=True):
        assert torch.equal(found, wanted)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a multiple of fragments 4"):
        sync.from_config({"trainer": "streaming_diloco", "block_steps": 10})
    with pytest.raises(ConfigError, match="must be below block_steps / fragments = 5"):
        sync.from_config({"trainer": "streaming_diloco", "block_steps": 10, "fragments": 2, "overlap_steps": 5})
    with pytest.raises(ConfigError, match="100 fragments for a model of 26 weights"):
        virtual.run(lambda group: train(group, 1, fragments=100, block_steps=100, overlap_steps=0), 1)
