"""The end of a gossip training: workers die, hang and come late, and no two return different models."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo import run_workers, torchrun
from torch import Tensor, nn
from trainings import until

from megahour.sync import gossip
from megahour.sync.group.base import WorkerLostError
from megahour.sync.group.torch_group import TorchGroup
from megahour.sync.trainers.gossip import Gossip

WORKERS = 4
LOST = 2
TIMEOUT_S = 3.0
SERVING = "sync-fork"


class Net(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(5000))  # sums of it travel in two phases
        self.register_buffer("running", torch.full((3,), float(rank)))


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stops_for(seconds: float) -> None:
    """SIGSTOP, and a shell that sends SIGCONT later, once this process stands still."""
    stands = f"until grep -q '^State:.*T' /proc/{os.getpid()}/status; do sleep 0.02; done"
    subprocess.Popen(["/bin/sh", "-c", f"{stands}; sleep {seconds}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


def stops_briefly() -> None:
    stops_for(TIMEOUT_S / 3)


def stops_for_too_long() -> None:
    stops_for(2 * TIMEOUT_S)


def at_call(worker: Gossip, point: str, act: Callable[[], None]) -> None:
    """Lets `act` happen at a point of `finish`: before it, or when a call of the group begins or has been sent."""
    if point == "before":
        act()
        return
    moment, name, number = point.split()
    group: Any = worker.ring.group  # type: ignore[union-attr]
    whole, left = getattr(group, name), int(number)

    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and moment == "at":
            act()
        work = whole(*arguments, **named)
        if left == 0 and moment == "behind":
            act()
        return work

    setattr(group, name, call)


def end(point: str, act: Callable[[], None], timeout_s: float = TIMEOUT_S) -> tuple[Tensor, Tensor]:
    """Final weights and buffer of a worker; one of the four does `act` at a point of its `finish`."""
    group = TorchGroup(timeout_s=timeout_s, grace_s=timeout_s / 10)
    model = Net(group.rank)
    worker = gossip(model, torch.optim.SGD(model.parameters(), lr=1.0), group=group)
    model.running.fill_(group.rank)
    for _ in range(2):
        model.w.grad = torch.linspace(0, 1, 5000) * (1 + group.rank)
        worker.step()
    if group.rank == LOST:
        at_call(worker, point, act)
    worker.finish()
    return model.w.detach().clone(), model.running.clone()


def agreed(found: list[Any]) -> list[int]:
    """Ranks of the workers that have returned a model, once it is clear that they have the same; others have errors."""
    ended = [rank for rank, result in enumerate(found) if isinstance(result, tuple)]
    for rank, result in enumerate(found):
        if rank in ended:
            for one, other in zip(result, found[ended[0]], strict=True):
                assert torch.equal(one, other), f"workers {ended[0]} and {rank} have returned different models"
        else:
            assert result is None or isinstance(result, WorkerLostError), result
    return ended


POINTS = [
    "before",
    "at exchange 1",  # the good-bye on the ring
    "at all_reduce 1",  # the weights
    "behind all_reduce 1",  # some have its part of the sum, some may not
    "at all_reduce 2",  # the buffers
    "at all_gather 1",  # the digests
    "behind all_gather 1",
]


def points(*always: str, of: list[str] = POINTS) -> list[Any]:
    """Points `of`, each of which takes seconds; those that are not `always` looked at are left to `make faults`."""
    return [point if point in always else pytest.param(point, marks=pytest.mark.faults) for point in of]


@pytest.mark.parametrize("point", points("before", "at exchange 1", "behind all_reduce 1", "behind all_gather 1"))
def test_whoever_is_left_when_one_dies_ends_with_one_model(point: str) -> None:
    waits = point == "behind all_reduce 1"
    found = run_workers(end, WORKERS, point, dies, TIMEOUT_S if waits else 2 * TIMEOUT_S)
    assert found[LOST] is None
    ended = agreed(found)
    if not waits:
        assert ended == [0, 1, 3], found
    # Else one may have all parts of the sum and wait for the sums of another, who has not, up to the limit, at which
    # gloo breaks its connections: then it has an error.


@pytest.mark.parametrize("point", points("at all_reduce 1", of=["before", "at all_reduce 1", "at all_gather 1"]))
def test_one_that_stands_still_for_less_than_the_limit_is_waited_for(point: str) -> None:
    patient_s = 20 * TIMEOUT_S  # every worker comes back in that time
    assert agreed(run_workers(end, WORKERS, point, stops_briefly, patient_s)) == [0, 1, 2, 3]


@pytest.mark.parametrize("point", points("behind all_reduce 1"))
def test_one_that_stands_still_for_too_long_never_ends_with_a_model_of_its_own(point: str) -> None:
    found = run_workers(end, WORKERS, point, stops_for_too_long)
    ended = agreed(found)
    for rank, result in enumerate(found):
        if rank not in ended:
            assert isinstance(result, WorkerLostError)
            assert result.remedy


def ends_at_once() -> None:
    """A script without torchrun, whose worker 0 hosts the store and ends first; the others are slow to read it."""
    dist.init_process_group("gloo")
    group = TorchGroup(timeout_s=20)
    model = Net(group.rank)
    worker: Any = gossip(model, torch.optim.SGD(model.parameters(), lr=0.1), group=group)
    ledger = worker._ending._ledger
    first = ledger.first

    def slowly(key: str, word: str) -> str:
        time.sleep(0.5 * group.rank)
        return first(key, word)  # type: ignore[no-any-return]

    ledger.first = slowly
    worker.step()
    worker.finish()
    os._exit(0)


def exits_without_an_end(ended: str) -> None:
    """A script that an exception ends: the second worker serves the first, which lives until the second has ended."""
    dist.init_process_group("gloo")
    model = Net(dist.get_rank())
    worker = gossip(model, torch.optim.SGD(model.parameters(), lr=0.1), group=TorchGroup(timeout_s=60))
    worker.step()
    if dist.get_rank() == 0:
        until(Path(ended).exists, 100.0)  # else it waits for this worker's exit
    else:
        assert SERVING in [thread.name for thread in threading.enumerate()]
        atexit._run_exitfuncs()
        assert SERVING not in [thread.name for thread in threading.enumerate()]
        Path(ended).touch()
    os._exit(0)


def test_a_process_that_exits_early_leaves_no_thread_in_gloo(tmp_path: Path) -> None:
    """Python would unwind it, and C++ say "terminate called without an active exception"."""
    torchrun(exits_without_an_end, 2, str(tmp_path / "ended"))


def test_an_answer_that_waits_for_reports_comes_in_time() -> None:
    """With a limit of two seconds a live neighbour, which looked for a good-bye for two seconds, was taken for lost."""
    group = TorchGroup(timeout_s=2)
    assert group.ledger().patience_s / 5 <= group.grace_s < group.timeout_s / 4
    assert TorchGroup(timeout_s=300).grace_s == 2


def test_the_worker_that_hosts_the_store_ends_when_the_others_have_read_it() -> None:
    torchrun(ends_at_once, 3)
