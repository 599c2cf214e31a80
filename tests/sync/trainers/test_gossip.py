"""Gossip on rings: what is conserved, who waits for whom, and what happens when a worker is lost."""

from __future__ import annotations

import copy
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo import run_workers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore
from trainings import until

from megahour.core.errors import ConfigError
from megahour.sync import gossip
from megahour.sync.group import virtual
from megahour.sync.group.base import WorkerLostError
from megahour.sync.group.torch_group import TorchGroup
from megahour.sync.group.virtual import VirtualGroup
from megahour.sync.trainers.gossip import Gossip
from megahour.sync.trainers.gossip_ring import difference

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def network_s(seconds: float) -> Callable[[str, int, int], float]:
    """Weights take `seconds` from worker to worker, words (of 8 bytes) and everything else no time."""
    return lambda call, size_bytes, workers: seconds if call == "exchange" and size_bytes != 8 else 0.0


def vector_model(values: Sequence[float] | Tensor) -> nn.Module:
    model = nn.Module()
    model.w = nn.Parameter(torch.as_tensor(values, dtype=torch.float32).clone())
    return model


def start(group: VirtualGroup, values: Sequence[float], lr: float = 1.0, **options: Any) -> tuple[nn.Module, Gossip]:
    """A worker whose weights are `values`, and not those of rank 0 as in training."""
    model = vector_model(values)
    worker = gossip(model, torch.optim.SGD(model.parameters(), lr=lr), group=group, **options)
    worker.restore([{"weights": torch.as_tensor(values, dtype=torch.float32), "steps": torch.zeros(1)}] * group.size)
    return model, worker


@given(st.lists(st.tuples(floats, floats), min_size=1, max_size=40))
def test_partners_add_the_same_with_opposite_signs(pairs: list[tuple[float, float]]) -> None:
    mine, theirs = torch.tensor(pairs).T.contiguous()
    here, there = theirs.clone(), mine.clone()
    distance = difference(mine, here)
    assert distance == difference(theirs, there)
    assert torch.equal(here, -there)
    assert torch.equal(here, theirs - mine)
    exact = float(here.double().norm())
    assert distance == pytest.approx(exact, rel=1e-5, abs=1e-18) or exact > 1e18  # whose square float32 does not hold


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_distance_to_what_is_not_finite_is_not_finite(value: float) -> None:
    for own, other in ((value, 1.0), (1.0, value), (value, value)):
        assert not math.isfinite(difference(torch.tensor([0.0, own]), torch.tensor([2.0, other])))


@pytest.mark.parametrize("order", ["atc", "cta"])
@pytest.mark.parametrize("workers", [2, 3, 4, 5, 8])
def test_rings_even_and_odd_agree_on_the_mean_without_deadlock(workers: int, order: str) -> None:
    def play(group: VirtualGroup) -> tuple[Tensor, Gossip]:
        model, worker = start(group, [float(group.rank), -8.0 * group.rank**2, 1.0], lr=0.0, order=order)
        for _ in range(80):
            group.compute(1.0)
            worker.step()
        before = model.w.detach().clone()
        worker.finish()
        return before, worker

    expected = torch.tensor([[float(r), -8.0 * r**2, 1.0] for r in range(workers)]).mean(0)
    for before, worker in virtual.run(play, workers, cost=network_s(0.25)):
        torch.testing.assert_close(before, expected, atol=1e-2, rtol=1e-2)
        torch.testing.assert_close(worker.flat.weights(), expected)
        assert worker.ring is not None
        assert not worker.ring.counts.lost  # virtual workers in a deadlock are told that the others are lost


@settings(max_examples=40)
@given(
    seconds=st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=2, max_size=6),
    wire_s=st.sampled_from([0.0, 0.3, 2.0]),
    steps=st.integers(1, 8),
    order=st.sampled_from(["atc", "cta"]),
    every=st.integers(1, 2),
    max_lag=st.integers(1, 3),
    max_staleness=st.integers(2, 4),
)
def test_the_sum_of_weights_is_conserved_by_all_mixings(
    seconds: list[float], wire_s: float, steps: int, max_staleness: int, **options: Any
) -> None:
    """Workers of all speeds, which also step: the sum moves by what they add, up to the rounding of the additions."""

    def play(group: VirtualGroup) -> tuple[Tensor, Tensor, float]:
        generator = torch.Generator().manual_seed(group.rank)
        first = torch.randn(5, generator=generator)
        model, worker = start(group, first, max_staleness=max_staleness, **options)
        added, stale = torch.zeros(5, dtype=torch.float64), 0.0
        for _ in range(steps):
            group.compute(seconds[group.rank])
            model.w.grad = torch.randint(-8, 8, (5,), generator=generator) / 8.0
            added -= model.w.grad.double()
            worker.step()
            stale = max(stale, worker.metrics["staleness"])
        found = worker.state()["weights"].double()
        worker.finish()
        return first.double() + added, found, stale

    found = virtual.run(play, len(seconds), cost=network_s(wire_s))
    expected, total = (torch.stack([f[i] for f in found]).sum(0) for i in (0, 1))  # type: ignore[misc]
    additions = 3 * steps * len(seconds)  # an optimiser's and two partners' a step
    torch.testing.assert_close(total, expected, atol=additions * 8 * 2.0**-24, rtol=0)
    assert max(f[2] for f in found) <= max_staleness


def test_two_workers_mix_once_a_step_and_hold_the_mean() -> None:
    def play(group: VirtualGroup) -> tuple[float, int]:
        _, worker = start(group, [8.0 * group.rank, 2.0], lr=0.0)
        for _ in range(4):
            group.compute(1.0)
            worker.step()
        assert worker.ring is not None
        found = float(worker.state()["weights"][0]), worker.ring.counts.mixed
        worker.finish()
        return found

    assert virtual.run(play, 2, cost=network_s(0.1)) == [(4.0, 4), (4.0, 4)]


def test_the_sum_of_two_workers_is_conserved_bit_for_bit() -> None:
    """With a = 1/2 nothing is rounded where weights are multiples of 1/1024 below 64."""

    def play(group: VirtualGroup) -> list[Tensor]:
        _, worker = start(group, [float(7 - 50 * group.rank), 3.5 * group.rank], lr=0.0)
        states = []
        for _ in range(2):
            worker.step()
            states.append(worker.state()["weights"])
        return states

    for one, other in zip(*virtual.run(play, 2), strict=True):
        assert (one + other).tolist() == [-36.0, 3.5]


@pytest.mark.parametrize("wire_s", [0.05, 0.0])
@pytest.mark.parametrize("order", ["atc", "cta"])
@pytest.mark.parametrize("workers", [3, 4, 7])
def test_equal_workers_follow_the_recursion_of_the_ring(order: str, workers: int, wire_s: float) -> None:
    """ATC x ← T (x - α g(x)) and CTA, IBM's, x ← T x - α g(x), on quadratics with a minimum for each worker."""
    minima = torch.arange(workers, dtype=torch.float64) ** 2
    t = sum(torch.roll(torch.eye(workers, dtype=torch.float64), shift, 0) for shift in (-1, 0, 1)) / 3
    x = seen = torch.zeros(workers, dtype=torch.float64)
    for _ in range(5):
        if order == "atc":
            x = t @ (x - 0.3 * (x - minima))
        else:  # what the gradient is taken at has not been mixed
            x, seen = t @ x, x
            x = x - 0.3 * (seen - minima)

    def play(group: VirtualGroup) -> float:
        model, worker = start(group, [0.0], lr=0.3, order=order)
        for _ in range(5):
            group.compute(1.0)
            model.w.grad = (model.w.detach() - minima[group.rank]).float()
            worker.step()
            if wire_s:
                group.compute(0.1)  # what is under way arrives before the next weights are looked at, for "atc"
                if order == "atc":
                    model.w.data.copy_(worker.weights)
        if not wire_s:
            assert order == "cta" or torch.equal(model.w, worker.weights), "nothing is on its way behind a step"
        return (worker.weights if order == "atc" else model.w).item()

    found = virtual.run(play, workers, cost=network_s(wire_s) if wire_s else None)
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), x, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("order", ["atc", "cta"])
def test_a_straggler_slows_only_itself(order: str) -> None:
    def play(group: VirtualGroup) -> tuple[float, float, float]:
        _, worker = start(group, [float(group.rank)], lr=0.0, order=order, max_staleness=4)
        stale = 0.0
        for _ in range(40):
            group.compute(20.0 if group.rank == 2 else 1.0)
            worker.step()
            stale = max(stale, worker.metrics["staleness"])
        ended_s = group.now_s
        worker.finish()
        return ended_s, stale, worker.metrics["refused_mixings"]

    found = virtual.run(play, 5, cost=network_s(0.1))
    assert found[2][0] >= 800
    assert all(found[r][0] <= 40 * 1.1 + 0.2 for r in (0, 1, 3, 4))
    assert max(stale for _, stale, _ in found) <= 4
    assert found[1][2] > 0  # the straggler's gradient would have become too old
    assert found[3][2] == 0


def test_ibms_order_hides_the_wire_behind_the_gradient() -> None:
    def play(group: VirtualGroup, order: str) -> tuple[float, float]:
        _, worker = start(group, [1.0], order=order)
        for _ in range(10):
            group.compute(1.0)
            worker.step()
        return group.now_s, group.traffic.exposed_s

    for order, expected_s in (("atc", 15.0), ("cta", 10.0)):
        for ended_s, exposed_s in virtual.run(lambda group, o=order: play(group, o), 4, cost=network_s(0.5)):
            assert ended_s == pytest.approx(expected_s)
            assert ended_s - 10.0 <= exposed_s + 1e-9


def test_a_slow_wire_is_waited_for_only_beyond_the_lag() -> None:
    """Mixings of 2.5 s beside gradients of 1 s: with a lag of 3 steps nothing is waited for."""

    def play(group: VirtualGroup, max_lag: int) -> float:
        _, worker = start(group, [1.0], order="cta", max_lag=max_lag)
        for _ in range(13):
            group.compute(1.0)
            worker.step()
        return group.now_s

    for max_lag, expected_s in ((3, 13.0), (1, 1 + 12 * 2.5)):
        found = virtual.run(lambda group, lag=max_lag: play(group, lag), 4, cost=network_s(2.5))
        assert found == [pytest.approx(expected_s)] * 4


def make_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def backward(model: nn.Module, step: int, ranks: Sequence[int]) -> None:
    """The gradient of the mean loss over the batches of `ranks`."""
    x = torch.cat([torch.randn(5, 3, generator=torch.Generator().manual_seed(1000 * step + r)) for r in ranks])
    model.zero_grad()
    nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()


def parameters(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).clone()


def train(group: VirtualGroup, steps: int, ranks: Sequence[int] | None = None, **options: Any) -> list[Tensor]:
    model = make_model()
    worker = gossip(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), group=group, **options)
    seen = []
    for step in range(steps):
        group.compute(1.0)
        backward(model, step, [group.rank] if ranks is None else [ranks[i] for i in _part(group, ranks)])
        worker.step()
        seen.append(parameters(model))
    worker.finish()
    return [*seen, parameters(model)]


def _part(group: VirtualGroup, ranks: Sequence[int]) -> range:
    share = len(ranks) // group.size
    return range(group.rank * share, (group.rank + 1) * share)


@pytest.mark.parametrize(("workers", "node_size"), [(4, 2), (6, 3), (6, 2), (4, 4)])
def test_a_node_is_one_worker_with_the_batches_of_all(workers: int, node_size: int) -> None:

    def wire(call: str, size_bytes: int, workers: int) -> float:
        return 0.1 if call == "exchange" else 0.0  # also words, so that all nodes have stepped before any mixes

    nodes = virtual.run(lambda group: train(group, 6, node_size=node_size, order="cta"), workers, cost=wire)
    large = virtual.run(
        lambda group: train(group, 6, ranks=range(workers), order="cta"), workers // node_size, cost=wire
    )
    for rank, seen in enumerate(nodes):
        same = nodes[rank - rank % node_size]
        for step, (mine, first, one) in enumerate(zip(seen, same, large[rank // node_size], strict=True)):
            assert torch.equal(mine, first), (rank, step)
            torch.testing.assert_close(mine, one, atol=1e-5, rtol=1e-4)


def test_workers_without_a_batch_mix_and_do_not_step() -> None:
    def play(group: VirtualGroup) -> Tensor:
        model, worker = start(group, [0.0])
        for _ in range(3):
            model.w.grad = torch.ones(1)
            worker.step(weight=float(group.rank == 0))
        worker.finish()
        return model.w.detach().clone()

    for found in virtual.run(play, 3):
        torch.testing.assert_close(found, torch.full((1,), -1.0))  # three steps of one worker of three


@pytest.mark.parametrize("options", [{}, {"order": "cta"}, {"order": "cta", "max_lag": 3}, {"node_size": 2}])
def test_resuming_gives_the_same_bits(options: dict[str, Any]) -> None:
    def play(group: VirtualGroup, resumed: bool) -> Tensor:
        model = make_model()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        worker = gossip(model, optimiser, group=group, **options)
        for step in range(10):
            if step == 5:
                states = group.together(lambda all_: [all_] * group.size, worker.state())
                if resumed:
                    kept = copy.deepcopy(optimiser.state_dict())
                    worker.finish()  # ends the threads
                    model = make_model(seed=4)
                    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
                    optimiser.load_state_dict(kept)
                    worker = gossip(model, optimiser, group=group, **options)
                    worker.restore(states)
            group.compute(1.0 + 0.3 * group.rank)
            backward(model, step, [group.rank])
            worker.step()
        worker.finish()
        return parameters(model)

    plain, resumed = (virtual.run(lambda group, r=r: play(group, r), 4, cost=network_s(0.2)) for r in (False, True))
    assert all(torch.equal(a, b) for a, b in zip(plain, resumed, strict=True))


def test_a_worker_alone_has_the_state_of_its_model() -> None:
    def play(group: VirtualGroup) -> tuple[Tensor, Tensor]:
        model, worker = start(group, [3.0])
        model.w.grad = torch.ones(1)
        worker.step()
        return worker.state()["weights"], parameters(model)

    [(found, expected)] = virtual.run(play, 1)
    assert found.tolist() == expected.tolist() == [2.0]


@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 3), (4, 1)])
def test_another_number_of_workers_goes_on_from_the_mean(before: int, after: int) -> None:
    states = virtual.run(lambda group: start(group, [float(group.rank), 1.0])[1].state(), before)

    def play(group: VirtualGroup) -> Tensor:
        model = vector_model([9.0, 9.0])
        worker = gossip(model, torch.optim.SGD(model.parameters(), lr=0.1), group=group)
        worker.restore(states)
        return parameters(model)

    for found in virtual.run(play, after):
        assert found.tolist() == [(before - 1) / 2, 1.0]


def test_states_of_another_model_are_refused_before_anything_is_changed() -> None:
    def play(group: VirtualGroup) -> list[float]:
        model, worker = start(group, [3.0, 4.0])
        with pytest.raises(ConfigError, match="for 2 trainable weights"):
            worker.restore([{"weights": torch.zeros(3), "steps": torch.zeros(1)}] * 2)
        worker.finish()
        return model.w.tolist()

    assert virtual.run(play, 2) == [[3.0, 4.0]] * 2


def test_a_node_refuses_what_its_workers_do_not_share() -> None:
    def play(group: VirtualGroup) -> None:
        model = make_model()
        loss = nn.Linear(2, 2)
        optimiser = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
        worker = gossip(model, optimiser, group=group, node_size=2)
        backward(model, 0, [group.rank])
        with pytest.raises(ConfigError, match="do not share"):
            worker.step()

    virtual.run(play, 2)


def test_weights_that_are_not_finite_stay_where_they_are(caplog: pytest.LogCaptureFixture) -> None:
    def play(group: VirtualGroup) -> Tensor:
        model, worker = start(group, [float(group.rank)], lr=0.0)
        if group.rank == 1:
            model.w.data.fill_(math.nan)  # as after a step with such a gradient
        for _ in range(4):
            worker.step()
        return model.w.detach().clone()

    found = virtual.run(play, 4)
    assert [bool(w.isfinite()) for w in found] == [True, False, True, True]
    assert "rank 0 and rank 1: weights are not finite; not mixed" in caplog.text


def test_weights_of_few_bits_do_not_lose_what_is_mixed() -> None:
    """bf16 weights, 64 and 64.125 (between two bf16 numbers): the mean is kept in fp32."""

    def play(group: VirtualGroup) -> float:
        model = vector_model([0.0]).to(torch.bfloat16)
        worker = gossip(model, torch.optim.SGD(model.parameters(), lr=0.0), group=group)
        worker.weights.fill_(64 + 0.125 * group.rank)
        for _ in range(12):
            group.compute(1.0)
            model.w.grad = torch.zeros_like(model.w)
            worker.step()
        return float(worker.weights)

    assert virtual.run(play, 2) == [pytest.approx(64.0625, abs=1e-4)] * 2


class Mortal:
    """A virtual group whose workers can die: then calls with them fail, also those under way, as connections close."""

    def __init__(self, group: VirtualGroup, dead: set[int]) -> None:
        self._group, self._dead = group, dead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def exchange(self, tensor: Tensor, peer: int, tag: int = 0, out: Tensor | None = None) -> Any:
        work = self._group.exchange(tensor, peer, tag, out)
        return MortalWork(self._group, work, self._dead, {self._group.rank, peer})

    def all_reduce(self, tensor: Tensor) -> Any:
        if self._dead:
            raise WorkerLostError(f"all_reduce failed: ranks {self._dead}")
        return self._group.all_reduce(tensor)


class MortalWork:
    def __init__(self, group: VirtualGroup, work: Any, dead: set[int], partners: set[int]) -> None:
        self._group, self._work, self._dead, self._partners = group, work, dead, partners

    def wait(self) -> Tensor:
        self._group.wait_until(lambda: self._work.ready() or bool(self._dead & self._partners), "an exchange")
        if not self._work.ready():
            raise WorkerLostError(f"exchange of {self._partners} failed")
        return self._work.wait()


@pytest.mark.parametrize(("workers", "lost"), [(4, [2]), (5, [0]), (5, [1, 2]), (3, [1]), (2, [1]), (6, [0, 3, 5])])
def test_the_ring_closes_around_lost_workers(workers: int, lost: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """They die in their sixth step; the others agree on the mean of their weights then."""
    dead: set[int] = set()

    def play(group: VirtualGroup) -> tuple[Tensor, Tensor] | None:
        model, worker = start(Mortal(group, dead), [float(group.rank)], lr=0.0)  # type: ignore[arg-type]
        for step in range(60):
            group.compute(1.0)
            if step == 5 and group.rank in lost:
                dead.add(group.rank)
                return None
            worker.step()
        mixed = model.w.detach().clone()
        worker.finish()
        return mixed, model.w.detach().clone()

    with caplog.at_level(logging.WARNING):
        found = [w for w in virtual.run(play, workers) if w is not None]
    assert all(torch.equal(final, found[0][1]) for _, final in found)
    for mixed, final in found:
        torch.testing.assert_close(mixed, final, atol=1e-3, rtol=1e-3)
    for rank in lost:
        assert f"rank {rank} is lost, skipped" in caplog.text


@pytest.mark.parametrize(
    "options",
    [{"order": "act"}, {"every": 0}, {"max_lag": 0}, {"max_staleness": 1}, {"node_size": 3}, {"node_size": 0}],
)
def test_options_without_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        virtual.run(lambda group: start(group, [0.0], **options), 4)


def steps_of_process(straggler: int, killed: int, steps: int, order: str) -> tuple[Tensor, set[int], float]:
    """The final weights, who was lost, and the largest staleness.

    The straggler begins a step when each of the others has made five more.
    """
    group = TorchGroup(timeout_s=100, grace_s=1.0)
    store = PrefixStore("made", dist.distributed_c10d._get_default_store())
    others = [rank for rank in range(group.size) if rank != straggler]
    model = vector_model(torch.arange(1000.0))
    worker = gossip(model, torch.optim.SGD(model.parameters(), lr=0.01), group=group, order=order)  # type: ignore[arg-type]
    stale = 0.0
    for step in range(steps * (1 if group.rank == straggler else 5)):
        if group.rank == killed and step == steps:
            os.kill(os.getpid(), signal.SIGKILL)
        if group.rank == straggler:
            until(lambda due=5 * (step + 1): all(store.add(f"{rank}", 0) >= due for rank in others), 100.0)
        time.sleep(0.02)
        model.w.grad = torch.full((1000,), float(group.rank))
        worker.step()
        store.add(f"{group.rank}", 1)
        stale = max(stale, worker.metrics["staleness"])
    worker.finish()
    assert worker.ring is not None
    return model.w.detach().clone(), worker.ring.counts.lost, stale


@pytest.mark.parametrize("order", ["atc", "cta"])
def test_processes_do_not_wait_for_a_straggler_and_end_with_the_same_bits(order: str) -> None:
    found = run_workers(steps_of_process, 3, 1, -1, 6, order)
    for result in found:
        assert not isinstance(result, Exception), result
    (first, _, _), (second, _, _), (third, _, _) = found
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    assert all(stale <= 8 and not lost for _, lost, stale in found)
    moved = torch.arange(1000.0) - first  # Σ of all steps over three workers: 30 of gradient 0, 6 of 1, 30 of 2
    torch.testing.assert_close(moved, torch.full((1000,), 0.01 * (6 + 60) / 3), atol=1e-3, rtol=0)


def test_processes_go_on_without_one_that_was_killed() -> None:
    found = run_workers(steps_of_process, 4, -1, 2, 4, "atc")
    assert found[2] is None
    left = [result for rank, result in enumerate(found) if rank != 2]
    for result in left:
        assert not isinstance(result, Exception), result
        assert torch.equal(result[0], left[0][0])
    assert left[0][1] | left[1][1] | left[2][1] == {2}
