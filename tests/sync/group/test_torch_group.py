"""A group of processes: what its calls give, and what happens when a worker is lost."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo import run_workers
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from megahour.core.errors import ConfigError
from megahour.sync.group import native, virtual
from megahour.sync.group.base import Group, WorkerLostError
from megahour.sync.group.survivors import lost_ranks
from megahour.sync.group.torch_group import TorchGroup

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8)


def vector(rank: int, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values of many magnitudes, so that another order of the sum would give other bits."""
    generator = torch.Generator().manual_seed(rank)
    values = torch.randn(numel, generator=generator) * 10.0 ** torch.randint(-3, 3, (numel,), generator=generator)
    return values.to(dtype) if dtype.is_floating_point else values.abs().mul(100).remainder(20).to(dtype)


def all_calls(group: Group) -> dict[str, Any]:
    """Results of every call, also of several under way at once, and the bytes they took."""
    size, rank = group.size, group.rank
    found: dict[str, Any] = {}
    works = []
    for numel in (0, 1, 7, 5000, 100_003):
        for dtype in DTYPES:
            works.append((f"sum {numel} {dtype}", group.all_reduce(vector(rank, numel, dtype))))
            works.append((f"gather {numel} {dtype}", group.all_gather(vector(rank, numel, dtype))))
    found |= {name: work.wait().clone() for name, work in reversed(works)}
    for source in range(size):
        for numel in (1, 10_001):
            tensor = vector(rank, numel).view(1, -1)
            group.broadcast(tensor, source)
            found[f"broadcast {source} {numel}"] = tensor
    strided = vector(rank, 6000).view(2, 3000).t()
    found["strided"] = group.all_reduce(strided).wait()
    assert found["strided"] is strided
    for peer in range(size):
        if peer != rank:
            works = [group.exchange(vector(rank, 10 + tag), peer, tag) for tag in (0, 1)]
            found[f"peer {peer}"] = [work.wait() for work in reversed(works)]
    found["bytes"] = (group.traffic.sent_bytes, group.traffic.received_bytes)
    return found


def test_processes_and_virtual_workers_give_the_same_bits_and_count_the_same_bytes() -> None:
    for size in (2, 3):
        real = run_workers(calls_of_processes, size)
        made_up = virtual.run(all_calls, size)
        for rank in range(size):
            assert not isinstance(real[rank], Exception), real[rank]
            assert real[rank].keys() == made_up[rank].keys()
            for name, value in made_up[rank].items():
                assert equal(real[rank][name], value), (size, rank, name)


def calls_of_processes() -> dict[str, Any]:
    return all_calls(TorchGroup(timeout_s=30))


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    return all(map(equal, one, other)) if isinstance(one, list) else one == other


def test_groups_within_a_group_do_not_hear_each_other() -> None:
    assert run_workers(talk_in_parts, 4) == virtual.run(in_parts, 4)


def talk_in_parts() -> Any:
    return in_parts(TorchGroup(timeout_s=30))


def in_parts(group: Group) -> Any:
    pairs = group.split([[0, 1], [3, 2]])
    leaders = group.split([[0, 3]])
    assert pairs is not None
    works = [part.all_gather(torch.tensor([group.rank])) for part in (pairs, leaders, group) if part is not None]
    swapped = pairs.exchange(torch.tensor([group.rank]), 1 - pairs.rank, tag=5).wait()
    return [work.wait().flatten().tolist() for work in reversed(works)], pairs.rank, swapped.item()


def test_a_worker_alone_needs_no_process_group() -> None:
    group = TorchGroup()
    tensor = torch.arange(3.0)
    assert group.all_reduce(tensor).wait() is tensor
    assert torch.equal(group.all_gather(tensor).wait(), tensor.unsqueeze(0))
    group.broadcast(tensor)
    assert group.traffic.sent_bytes == 0
    part = group.split([[0]])
    assert part is not None
    assert (part.rank, part.size) == (0, 1)
    with pytest.raises(ConfigError, match="cannot exchange with rank 0 of 1"):
        group.exchange(tensor, 0)
    with pytest.raises(ConfigError, match="not disjoint parts"):
        group.split([[0, 0]])


def test_collectives_of_the_process_group_do_the_same_as_messages() -> None:
    """The calls that NCCL would serve, on gloo."""
    for rank, (found, error) in enumerate(run_workers(native_calls, 2)):
        assert found["all_reduce"].tolist() == [3.0, 3.0]
        assert found["all_gather"].tolist() == [[1.0, 1.0], [2.0, 2.0]]
        assert found["broadcast"].tolist() == [2.0, 2.0]
        assert found["exchange"].tolist() == [2.0 - rank] * 2
        assert bool(error) == (rank == 0), "time is up, or rank 1 has gone home"


def native_calls() -> tuple[dict[str, Tensor], str]:
    rank, world = dist.get_rank(), dist.group.WORLD
    mine = torch.full((2,), 1.0 + rank)
    found = {
        "all_reduce": mine.clone(),
        "all_gather": torch.empty(2, 2),
        "broadcast": mine.clone(),
        "exchange": torch.empty(2),
    }
    native.all_reduce(world, found["all_reduce"], 30.0).end()
    native.all_gather(world, mine, found["all_gather"], 30.0).end()
    native.broadcast(world, found["broadcast"], 1, 30.0).end()
    native.exchange(world, mine, found["exchange"], 1 - rank, 3, 30.0).end()
    error = ""
    if rank == 0:
        try:
            native.exchange(world, mine, torch.empty(2), 1, 4, 0.5).end()  # to which rank 1 does not come
        except RuntimeError as caught:
            error = str(caught)
    return found, error


def test_what_does_not_happen_in_time_is_an_error() -> None:
    with pytest.raises(WorkerLostError, match=r"the end of the world did not happen in 0\.05 s"):
        TorchGroup(timeout_s=0.05).wait_until(lambda: False, "the end of the world")
    with pytest.raises(ConfigError, match="timeout_s 0"):
        TorchGroup(timeout_s=0)


@pytest.mark.parametrize(
    ("sent", "numel"),
    [
        (signal.SIGKILL, 1),
        (signal.SIGKILL, 300_000),
        (signal.SIGSTOP, 300_000),
        pytest.param(signal.SIGSTOP, 1, marks=pytest.mark.faults),
    ],
)
def test_a_lost_worker_is_named_by_all_others_in_bounded_time(sent: signal.Signals, numel: int) -> None:
    results = run_workers(lose_one, 3, int(sent), numel, stopped=[1])
    for rank in (0, 2):
        message, seconds = results[rank]
        assert "all_reduce failed: rank 1 does not answer" in message
        assert f"rank {rank} of 3" in message
        assert seconds < 60, "time limit of the call, 3 s, time to ask the others, 1.5 s, and a very busy machine"


def lose_one(number: int, numel: int) -> tuple[str, float]:
    group = TorchGroup(timeout_s=3, grace_s=1.5)
    for step in range(20):
        if group.rank == 1 and step == 10:
            os.kill(os.getpid(), number)
        began_s = time.monotonic()
        try:
            group.all_reduce(torch.ones(numel)).wait()
        except WorkerLostError as error:
            return str(error), time.monotonic() - began_s
    raise AssertionError("nobody was lost")


def test_an_answer_of_an_earlier_loss_is_no_sign_of_life() -> None:
    """Of four workers, which gossip, the last one is lost, and later the third, which had answered then."""
    store = HashStore()

    def ask(ranks: tuple[int, ...], suspect: int) -> list[list[int]]:
        with ThreadPoolExecutor(len(ranks)) as pool:
            return list(pool.map(lambda rank: lost_ranks(store, "lost", rank, 4, suspect, 2.0, 1.0), ranks))

    assert ask((0, 1, 2), 3) == [[3]] * 3
    time.sleep(1.0)
    assert ask((0, 1), 2) == [[2]] * 2, "it was [3]"


def test_a_lost_peer_of_an_exchange_is_named() -> None:
    (message, seconds), _ = run_workers(lose_a_peer, 2)
    assert "exchange with rank 1 failed: rank 1 does not answer" in message
    assert seconds < 60, "3 s and 1 s, on a very busy machine"


def lose_a_peer() -> tuple[str, float]:
    group = TorchGroup(timeout_s=3, grace_s=1)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began_s = time.monotonic()
    try:
        group.exchange(torch.ones(5), 1).wait()
    except WorkerLostError as error:
        return str(error), time.monotonic() - began_s
    raise AssertionError("nobody was lost")


def test_who_only_comes_late_is_not_called_lost() -> None:
    assert run_workers(come_late, 2) == [2.0, 2.0]


def come_late() -> float:
    group = TorchGroup(timeout_s=5)
    if group.rank == 1:
        time.sleep(2)
    return float(group.all_reduce(torch.ones(1)).wait())


def test_a_fork_talks_beside_the_training_loop() -> None:
    for waited in run_workers(talk_beside, 2):
        assert waited == (1000.0, True)


def talk_beside() -> tuple[float, bool]:
    group = TorchGroup(timeout_s=30)
    sums: list[float] = []
    part = group.split([[0, 1]])
    assert part is not None

    def talk() -> str:
        for _ in range(50):
            sums.append(float(part.exchange(torch.full((3,), 10.0), 1 - part.rank).wait().sum()) / 3)
        return threading.current_thread().name

    fork = group.fork(talk)
    total = torch.zeros(1)
    for _ in range(50):
        total += group.all_reduce(torch.ones(1)).wait()
    group.wait_until(lambda: len(sums) == 50, "the exchanges")
    assert fork.wait() == "sync-fork"
    return float(total) * 5 + sum(sums), group.traffic.hidden_s > 0
