"""Virtual workers: turns, virtual time, and how a play ends."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megahour.core.errors import ConfigError, MegahourError
from megahour.sync.group import virtual, wire
from megahour.sync.group.base import WorkerLostError
from megahour.sync.group.virtual import VirtualGroup


def test_every_worker_has_a_random_state_of_its_own_and_the_caller_keeps_its() -> None:
    def draw(group: VirtualGroup) -> list[float]:
        drawn = []
        for _ in range(3):
            drawn.append(torch.rand(1).item())
            group.all_reduce(torch.zeros(1)).wait()  # lets others run between two draws
        return drawn

    before = torch.get_rng_state()
    one, other = virtual.run(draw, 2, seed=3)
    assert one == other == virtual.run(draw, 1, seed=3)[0]
    assert one != virtual.run(draw, 1, seed=4)[0]
    assert torch.equal(before, torch.get_rng_state())


def test_the_same_program_gives_the_same_course_of_events_every_time() -> None:
    def course(workers: int) -> list[tuple[int, int]]:
        events: list[tuple[int, int]] = []

        def work(group: VirtualGroup) -> None:
            for step in range(5):
                group.compute(1.0 + 0.3 * group.rank)
                events.append((group.rank, step))
                group.exchange(torch.ones(1), (group.rank + 2) % 4).wait()

        virtual.run(work, workers)
        return events

    assert course(4) == course(4)


def test_events_happen_in_the_order_of_virtual_time() -> None:
    seen: list[tuple[float, int]] = []

    def work(group: VirtualGroup) -> None:
        for _ in range(4):
            group.compute(3.0 - group.rank)
            seen.append((group.now_s, group.rank))

    virtual.run(work, 3)
    assert seen == sorted(seen)
    assert seen[0] == (1.0, 2)


def test_a_straggler_is_waited_for_in_a_sum_and_not_in_the_exchange_of_others() -> None:
    def work(group: VirtualGroup) -> tuple[float, float]:
        group.compute(10.0 if group.rank == 3 else 1.0)
        group.exchange(torch.ones(1), group.rank ^ 1).wait()
        met_s = group.now_s
        group.all_reduce(torch.ones(1)).wait()
        return met_s, group.now_s

    assert virtual.run(work, 4) == [(1.0, 10.0), (1.0, 10.0), (10.0, 10.0), (10.0, 10.0)]


def test_calls_cost_what_is_said_and_what_is_computed_meanwhile_is_hidden() -> None:
    def cost(call: str, size_bytes: int, size: int) -> float:
        return {"all_reduce": 2.0, "exchange": 0.5}[call] + size_bytes * 0.25 * size

    def work(group: VirtualGroup) -> tuple[float, float, float]:
        reduced = group.all_reduce(torch.ones(1))  # 2 + 4 · 0.25 · 2 = 4 s
        assert not reduced.ready()
        group.compute(3.0)
        reduced.wait()
        assert reduced.ready()
        assert float(reduced.wait()) == 2.0
        return group.now_s, group.traffic.exposed_s, group.traffic.hidden_s

    assert virtual.run(work, 2, cost=cost) == [(4.0, 1.0, 3.0)] * 2


def test_an_exchange_hands_over_what_the_tensor_was_when_it_was_called() -> None:
    def work(group: VirtualGroup) -> list[float]:
        tensor = torch.full((2,), float(group.rank))
        first, second = group.exchange(tensor, 1 - group.rank), group.exchange(tensor + 10, 1 - group.rank)
        tensor += 5
        return [float(first.wait()[0]), float(second.wait()[0])]

    assert virtual.run(work, 2) == [[1.0, 11.0], [0.0, 10.0]]


def test_a_fork_runs_beside_its_worker_at_a_time_of_its_own() -> None:
    def work(group: VirtualGroup) -> tuple[str, float, list[float]]:
        seen: list[float] = []

        def beside() -> str:
            for _ in range(3):
                group.compute(1.0)
                seen.append(group.now_s)
            return "done"

        fork = group.fork(beside)
        group.compute(1.5)
        group.wait_until(lambda: len(seen) >= 2, "the second event")
        assert group.now_s == 2.0
        assert not fork.ready()
        return fork.wait(), group.now_s, seen

    assert virtual.run(work, 2) == [("done", 3.0, [1.0, 2.0, 3.0])] * 2


def test_together_computes_once_for_all() -> None:
    calls: list[list[int]] = []

    def squares(ranks: list[int]) -> list[int]:
        calls.append(ranks)
        return [rank**2 for rank in ranks]

    assert virtual.run(lambda group: group.together(squares, group.rank), 5) == [0, 1, 4, 9, 16]
    assert calls == [[0, 1, 2, 3, 4]]


def test_an_error_ends_all_and_names_the_worker() -> None:
    ended = []

    def work(group: VirtualGroup) -> None:
        try:
            group.all_reduce(torch.ones(1)).wait()
            if group.rank == 2:
                raise ValueError("a bad batch")
            group.all_reduce(torch.ones(1)).wait()
        finally:
            ended.append(group.rank)

    with pytest.raises(ValueError, match="a bad batch") as caught:
        virtual.run(work, 4)
    assert caught.value.__notes__ == ["in virtual worker 2"]
    assert sorted(ended) == [0, 1, 2, 3]


def test_who_waits_for_one_that_has_ended_hears_of_it() -> None:
    def work(group: VirtualGroup) -> str:
        if group.rank == 1:
            return "ended"
        try:
            group.all_reduce(torch.ones(1)).wait()
        except WorkerLostError as error:
            return str(error)
        raise AssertionError("a sum without rank 1")

    zero, one, two = virtual.run(work, 3)
    assert one == "ended"
    assert zero.startswith("rank 0: all_reduce cannot end: ranks [1] have ended")
    assert two.startswith("rank 2: all_reduce cannot end: ranks [1] have ended")


def test_workers_that_wait_for_each_other_are_told_so() -> None:
    with pytest.raises(WorkerLostError, match="rank 0 waits in exchange of ranks 0 and 1"):
        virtual.run(lambda group: group.exchange(torch.ones(1), (group.rank + 1) % 3).wait(), 3)


def test_different_calls_or_shapes_are_an_error() -> None:
    def other_call(group: VirtualGroup) -> None:
        call = group.all_reduce if group.rank else group.all_gather
        call(torch.ones(1)).wait()

    def other_shape(group: VirtualGroup) -> None:
        group.all_reduce(torch.ones(1 + group.rank)).wait()

    with pytest.raises(MegahourError, match=r"rank 1 calls all_reduce .* where another calls all_gather"):
        virtual.run(other_call, 2)
    with pytest.raises(MegahourError, match=r"of \(2,\) float32 where another calls all_reduce of \(1,\) float32"):
        virtual.run(other_shape, 2)
    with pytest.raises(ConfigError, match="0 workers"):
        virtual.run(other_call, 0)


def test_256_workers_sum_as_one_loop_would() -> None:
    def work(group: VirtualGroup) -> torch.Tensor:
        vector = torch.randn(1000, generator=torch.Generator().manual_seed(group.rank))
        return group.all_reduce(vector).wait()

    expected = torch.zeros(1000)
    for rank in range(256):
        expected += torch.randn(1000, generator=torch.Generator().manual_seed(rank))
    results = virtual.run(work, 256)
    assert all(torch.equal(result, results[0]) for result in results)
    assert torch.equal(results[0], expected)


@settings(max_examples=60)
@given(st.integers(0, 50), st.integers(1, 9), st.data())
def test_a_sum_in_chunks_by_any_rank_has_the_order_of_ranks(numel: int, size: int, data: st.DataObject) -> None:
    parts = [torch.randn(numel) * 10.0**rank for rank in range(size)]
    expected = parts[0].clone()
    for part in parts[1:]:
        expected += part
    bounds = wire.chunk_bounds(numel, size)
    assert bounds[0] == 0
    assert bounds[-1] == numel
    assert max(b - a for a, b in pairwise(bounds)) - numel // size <= 1
    spare = data.draw(st.integers(-1, size - 1))
    total = torch.empty(numel) if spare < 0 else parts[spare]
    wire.sum_in_order(parts, total, spare)
    assert torch.equal(total, expected)
