"""A program error on one worker: it is raised there unchanged, and the others are notified; no machine is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo import run_workers
from torch import Tensor, nn

from megahour import sync
from megahour.sync.group.base import WorkerFailedError
from megahour.sync.group.torch_group import TorchGroup

OPTIONS: dict[str, dict[str, Any]] = {
    "gtc": {"threshold": 0.01},
    "bmuf": {"block_steps": 2},
    "local_sgd": {"period_steps": 2},
    "streaming_diloco": {"block_steps": 2, "fragments": 2, "overlap_steps": 0},
}
FAILS = 1
"""The rank of the worker that has the error."""


def wrong_hook(*_: object) -> None:
    raise KeyError("no such parameter")


def train(trainer: str, error: str) -> None:
    """Steps until the error, which only one worker has."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    group = TorchGroup(timeout_s=30, grace_s=0.3)
    worker = sync.build(trainer, model, optimiser, group=group, **OPTIONS.get(trainer, {}))
    for step in range(200):
        wrong = group.rank == FAILS and step == 3
        frames: Any = torch.ones(3, 5 if wrong and error == "shape" else 4)
        loss: Any = model(frames).square().mean()
        if wrong and error == "loss":
            loss = loss + None
        if wrong and error == "hook":
            optimiser.register_step_pre_hook(wrong_hook)
        if wrong and error == "assertion":
            raise AssertionError("a user's own check")
        if wrong and error == "thread":
            worker.ring.names = None  # type: ignore[attr-defined]
            worker.ring.weights = "no tensor"  # type: ignore[attr-defined]
        loss.backward()
        worker.step()
        optimiser.zero_grad()
    worker.finish()


def ends_by(trainer: str, error: str) -> None:
    """Like the interpreter's end of a process: an uncaught error goes to `sys.excepthook`."""
    try:
        train(trainer, error)
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        raise


@pytest.mark.parametrize(
    ("trainer", "error", "kind", "said"),
    [
        ("dense", "loss", TypeError, "unsupported operand"),
        ("gtc", "hook", KeyError, "no such parameter"),
        ("bmuf", "shape", RuntimeError, "shapes cannot be multiplied"),
        ("local_sgd", "assertion", AssertionError, "a user's own check"),
        ("gossip", "loss", TypeError, "unsupported operand"),
        ("gossip", "thread", (TypeError, AttributeError), ""),
    ],
)
def test_the_worker_with_the_error_has_it_and_the_others_name_both(
    trainer: str, error: str, kind: type[Exception], said: str
) -> None:
    found = run_workers(ends_by, 3, trainer, error)
    assert isinstance(found[FAILS], kind), found
    assert said in str(found[FAILS])
    for rank, result in enumerate(found):
        if rank != FAILS:
            assert isinstance(result, WorkerFailedError), result
            assert f"worker {FAILS} failed: {type(found[FAILS]).__name__}: " in result.message
            assert said in result.message


def a_sum_of_two_shapes() -> Tensor:
    """Refused on all workers before anything is sent."""
    from megahour.sync.group.mesh import GatheredRows, Mesh

    mesh = Mesh(dist.group.WORLD, range(2), dist.get_rank(), 1, 30.0)
    group = TorchGroup(timeout_s=30, grace_s=0.3)
    rows = torch.empty(2, 3)
    return group._begin("gather", lambda: GatheredRows(mesh, torch.ones(4), rows), lambda: rows, 0, 0).wait()


def test_a_shape_that_does_not_fit_is_no_lost_worker() -> None:
    for result in run_workers(a_sum_of_two_shapes, 2):
        assert type(result) is RuntimeError, result
        assert "size" in str(result)


SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from megahour import sync

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
model = nn.Linear(4, 2)
worker = sync.dense(model, torch.optim.SGD(model.parameters(), lr=0.1))
try:
    for step in range(100):
        loss = model(torch.ones(3, 4)).square().mean()
        if rank == 1 and step == 3:
            loss.bacward()
        loss.backward()
        worker.step()
finally:
    dist.destroy_process_group()
"""


@pytest.mark.faults
def test_a_script_that_a_typing_error_ends_says_so_on_all_workers(tmp_path: Path) -> None:
    """Real processes to their real end, and within seconds: the limit for a worker that hangs is 300 s."""
    started = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, str(rank), str(tmp_path / "store")], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    other, failed = (process.communicate(timeout=100)[1].decode() for process in started)
    assert [process.returncode for process in started] == [1, 1]
    assert "AttributeError: 'Tensor' object has no attribute 'bacward'" in failed
    assert "loss.bacward()" in failed or "<string>" in failed
    assert "WorkerFailedError" in other
    assert "worker 1 failed: AttributeError: 'Tensor' object has no attribute 'bacward'" in other
    assert "WorkerLostError" not in other
