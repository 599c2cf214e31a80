"""faults: continue with models in parts: two replicas of two workers each. One is killed, and its replica leaves.

Each has a part of the model, so half a step is the danger: one part with it, another without.
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from coordinated import SMALL, Forked
from gloo import LASTS_UNTIL, run_workers
from trainings import seen, until

from megahour.core.store import Artifact
from megahour.learn.job import prepare
from megahour.learn.params import TrainParams
from megahour.learn.step_totals import StepTotals
from megahour.parallel.sharded import ShardedTrainer
from megahour.sync.group.torch_group import TorchGroup
from megahour.train import result
from megahour.train.loop import execute
from megahour.train.workers import worker
from megahour.train.workers.membership import ENDED, KEPT, MEMBER, TAKEN
from megahour.train.workers.quorum import NEW, Asking, quorum_of
from megahour.train.workers.replicas import WorkerOfReplica

HYBRID: dict[str, Any] = {"layers": 2, "parallel": {"shard": 2}}
STEP = 8


def kill(kills: int, seed: int) -> Callable[[Forked], None]:
    """So often: kills a worker at a random moment, sees the other replica go on, and then all four together again."""

    def act(run: Forked) -> None:
        moments, group = random.Random(seed), until(run.together)
        for _ in range(kills):
            time.sleep(moments.uniform(0.0, 0.3))
            lost = moments.choice(run.living())
            run.holds_back.set()
            run.workers[lost].kill()
            run.lost.append(lost)
            group = until(lambda group=group: run.going_on(2, after=group))
            run.holds_back.clear()
            group = until(lambda group=group: run.going_on(4, after=group))

    return act


@pytest.mark.parametrize(
    ("mode", "kills"), [("fsdp", 1)] + [pytest.param(mode, 10, marks=pytest.mark.faults) for mode in ("fsdp", "zero")]
)
def test_a_lost_worker_takes_its_replica_along_until_that_is_whole_again(
    tmp_path: Path, data: dict[str, Artifact], an_epoch: tuple[int, int], mode: str, kills: int
) -> None:
    epochs = 30 * (1 + kills // 10)
    parallel = {"shard": 2, "mode": mode}
    run = Forked(tmp_path, data, kill(kills, seed=11), epochs=epochs, **{**HYBRID, "parallel": parallel})
    assert len(run.workers) == 4 + kills, "no one else was started"
    rows = run.result.curves.rows
    assert seen(rows) == tuple(epochs * n for n in an_epoch)
    assert len(rows) == 6, "each row once"


class NoOneComesBack(Forked):
    """Lost workers are not started again."""

    def _start_due(self) -> None:
        if self._next < 4:
            super()._start_due()


def _at_call(owner: type, name: str, number: int, act: Callable[..., None]) -> None:
    """Worker 3 calls `act` in its call `number` of a method, and does not survive it."""
    if os.environ[MEMBER] != "3":
        return
    before, calls = getattr(owner, name), itertools.count(1)

    def counted(self: Any, *arguments: Any) -> Any:
        if next(calls) == number:
            act(self, *arguments)
            os.kill(os.getpid(), signal.SIGKILL)
        return before(self, *arguments)

    setattr(owner, name, counted)


def is_lost_before_the_exchange_of_gradients() -> None:
    _at_call(ShardedTrainer, "apply", STEP + 1, lambda *_: None)


def is_lost_before_the_second_phase() -> None:
    _at_call(StepTotals, "of_all", STEP + 1, lambda *_: None)


def is_lost_in_the_second_phase_of_the_step_before() -> None:
    """It has told worker 0 alone: that one steps, and the other three are prepared."""
    told = Path(os.environ[LASTS_UNTIL]).with_suffix(".told")

    def tell_the_first(totals: Any, own: Any) -> None:
        mesh, message = totals._group._mesh, totals._message(own)
        (tag,) = mesh.tags(1)
        answer = mesh.begin(dist.irecv, torch.empty_like(message), 0, tag)  # it ends its call once it is received
        mesh.begin(dist.isend, message, 0, tag).wait()
        answer.wait()
        until(told.exists)

    _at_call(StepTotals, "of_all", STEP, tell_the_first)
    if os.environ[MEMBER] == "0":
        before, calls = StepTotals.of_all, itertools.count(1)

        def noted(self: StepTotals, own: Any) -> Any:
            found = before(self, own)
            if next(calls) == STEP:
                told.touch()
            return found

        StepTotals.of_all = noted  # type: ignore[method-assign]


@pytest.mark.faults
def test_all_parts_have_a_step_or_none(tmp_path: Path, data: dict[str, Artifact], an_epoch: tuple[int, int]) -> None:
    """Wherever the loss strikes in the time of a step, the others have STEP steps and go on with two workers."""
    moments = (
        is_lost_before_the_exchange_of_gradients,
        is_lost_before_the_second_phase,
        is_lost_in_the_second_phase_of_the_step_before,
    )
    models = []
    for moment in moments:
        first = f"{__name__}:{moment.__name__}"
        run = NoOneComesBack(tmp_path / moment.__name__, data, lambda _: None, first, epochs=10, **HYBRID)
        logs = run.logs()
        assert run.workers[3].poll() == -signal.SIGKILL
        assert [log.count("group 1: rank") for log in logs] == [1, 1, 0, 0], "worker 2 cannot go on without 3"
        assert seen(run.result.curves.rows) == tuple(10 * n for n in an_epoch)
        models.append(run.result.weights)
    began = [re.findall(r"group 1: rank \d of 2, from \((\d+), ", log) for log in logs[:2]]
    assert began == [[str(STEP)], [str(STEP - 1)]], "worker 1 has ended the last step of the last run by itself"
    assert models[0] == models[1] == models[2]


def is_lost_when_two_others_have_ended() -> None:
    """Worker 3 has told 1 and 2 that the model is whole, and these end; 0 is left, with one part of it."""
    me, folder, before = os.environ[MEMBER], Path(os.environ[LASTS_UNTIL]).parent, WorkerOfReplica._model

    def model(self: Any, group: Any) -> Any:
        if me == "3":
            self._trainer.model()
            (tag,) = group._mesh.tags(1)
            for peer in (1, 2):
                answer = group._mesh.begin(dist.irecv, torch.empty(1), peer, tag)
                group._mesh.begin(dist.isend, torch.zeros(1), peer, tag).wait()
                answer.wait()
            until(lambda: (folder / "ended1").exists() and (folder / "ended2").exists())
            os.kill(os.getpid(), signal.SIGKILL)
        found = before(self, group)
        (folder / f"ended{me}").touch()
        return found

    WorkerOfReplica._model = model  # type: ignore[method-assign]


@pytest.mark.faults
def test_who_is_left_when_others_have_ended_does_not_wait_for_ever(
    tmp_path: Path, data: dict[str, Artifact], an_epoch: tuple[int, int]
) -> None:
    first = f"{__name__}:{is_lost_when_two_others_have_ended.__name__}"
    run = Forked(tmp_path, data, lambda _: None, first, epochs=4, **HYBRID)
    assert [worker.poll() for worker in run.workers[1:4]] == [0, 0, -signal.SIGKILL]
    assert seen(run.result.curves.rows) == tuple(4 * n for n in an_epoch)


def connections_after_a_group() -> int:
    """Of a worker that has left the group in which it had a part of a model."""
    group, p = TorchGroup(), TrainParams(workers=2, threads=1, parallel={"shard": 2})
    config = {"kind": "tdnn", "inputs": 4, "outputs": 3, "layers": 2, "units": 8, "lookahead": 0, "dropout": 0.0}
    trainer = ShardedTrainer(p, config, lambda peers: partial(p.synchroniser.make, group=peers), group)
    trainer.model()
    trainer.__exit__()
    trainer.leave()
    del trainer, group
    dist.destroy_process_group()
    gc.collect()
    return sum(found.status == psutil.CONN_ESTABLISHED for found in psutil.Process().net_connections())


def test_who_leaves_a_group_closes_its_connections() -> None:
    """torch's caches kept them: the others of the replica could have waited for its answer until the time limit."""
    assert run_workers(connections_after_a_group, 2) == [0, 0]


def restarting(folder: str, urls: dict[str, str], epochs: int) -> result.Result:
    """The same training as of `faults: restart`."""
    job = prepare(
        TrainParams(**{**SMALL, **HYBRID, "epochs": epochs}), {role: Artifact(url) for role, url in urls.items()}
    )
    group = TorchGroup()
    return execute(job, group, Path(folder), lambda *_, **__: None, worker._new_store(group))


@pytest.mark.faults
def test_without_a_loss_the_bytes_are_those_of_restart(tmp_path: Path, data: dict[str, Artifact]) -> None:
    run = Forked(tmp_path / "continue", data, lambda _: None, epochs=4, **HYBRID)
    urls = {role: artifact.url for role, artifact in data.items()}
    quiet, *_ = run_workers(restarting, 4, str(tmp_path / "restart"), urls, 4)
    assert run.result.weights == quiet.weights
    assert run.result.curves.rows == quiet.curves.rows


@pytest.mark.faults
def test_both_replicas_are_lost_and_go_on_from_the_checkpoint(
    tmp_path: Path, data: dict[str, Artifact], an_epoch: tuple[int, int]
) -> None:
    """Each loses the worker of the same part, which no one has then."""

    def kill_two(run: Forked) -> None:
        until(lambda: list(run.folder.glob("checkpoints/*/checkpoint.json")))
        for process in (run.workers[1], run.workers[3]):
            process.send_signal(signal.SIGSTOP)
        for process in (run.workers[1], run.workers[3]):
            process.kill()

    run = Forked(tmp_path, data, kill_two, epochs=30, checkpoint_s=0.1, **HYBRID)
    assert len(run.workers) == 6
    assert seen(run.result.curves.rows) == tuple(30 * n for n in an_epoch)


@pytest.mark.faults
def test_a_worker_that_stands_still_is_ended_and_its_replica_comes_back(
    tmp_path: Path, data: dict[str, Artifact], an_epoch: tuple[int, int]
) -> None:
    def stop(run: Forked) -> None:
        group = until(run.together)
        run.lost.append(2)
        run.workers[2].send_signal(signal.SIGSTOP)
        until(lambda: run.going_on(4, after=group))

    run = Forked(tmp_path, data, stop, epochs=30, timeout_s=5.0, **HYBRID)
    assert run.workers[2].poll() == -signal.SIGKILL
    assert seen(run.result.curves.rows) == tuple(30 * n for n in an_epoch)


def asking(*states: tuple[list[int], bool]) -> dict[int, Asking]:
    return {number: Asking(1, at, prepared) for number, (at, prepared) in enumerate(states)}


def formed(workers: dict[int, Asking], shard: int = 2) -> tuple[list[int], int, list[str], bool] | None:
    """Order, source, parts and whether all begin again, of workers whose number tells their part."""
    found = quorum_of(workers, {number: number % shard for number in workers}, shard)
    return None if found is None else (found.order, found.source, found.parts, found.fresh)


def test_whole_replicas_form_the_group() -> None:
    here, new, other = ([5, 1], False), (NEW, False), ([4, 1], False)
    assert formed(asking(here, here, here, here)) == ([0, 1, 2, 3], 0, [KEPT] * 4, False)
    assert formed({n: a for n, a in asking(here, here, here).items() if n != 1}) is None, "no one has part 1"
    assert formed(asking(here, here, here)) == ([0, 1], 0, [KEPT] * 2, False), "2 is left over"
    assert formed(asking(new, new)) == ([0, 1], 0, [TAKEN] * 2, True)
    assert formed(asking(new, new, here, here)) == ([2, 3, 0, 1], 0, [KEPT, KEPT, TAKEN, TAKEN], False)
    assert formed(asking(other, here, here, other)) == ([2, 1, 0, 3], 0, [KEPT, KEPT, TAKEN, TAKEN], False)
    assert formed(asking(here, new, here, new)) == ([0, 1, 2, 3], 0, [KEPT, TAKEN] * 2, True), "part 1 is lost"
    assert formed(asking(here, other, other), shard=1) == ([0, 1, 2], 0, [KEPT, TAKEN, TAKEN], False)


def test_a_prepared_step_is_ended_if_anyone_has_ended_it() -> None:
    ended, prepared, behind = ([6, 1], False), ([5, 1], True), ([5, 1], False)
    assert formed(asking(prepared, prepared)) == ([0, 1], 0, [KEPT] * 2, False), "no one has: it is forgotten"
    assert formed(asking(prepared, ended)) == ([0, 1], 1, [ENDED, KEPT], False)
    assert formed(asking(prepared, prepared, ended)) == ([2, 1], 0, [KEPT, ENDED], False)
    assert formed(asking(ended, behind)) == ([0, 1], 0, [KEPT, TAKEN], True), "which cannot happen: all are prepared"
    written = ([6, 2], False)
    assert formed(asking(ended, written, prepared, prepared)) == ([0, 1, 2, 3], 1, [KEPT, KEPT, ENDED, ENDED], False)


@pytest.mark.parametrize(
    ("why", "values"),
    [
        ("single group of workers: without one of them a part of the model is missing", {"parallel": {"shard": 4}}),
        ("in mode pipeline: use mode fsdp or zero", {"parallel": {"shard": 2, "mode": "pipeline"}, "layers": 4}),
        ("trainer bmuf: use dense", {"parallel": {"shard": 2}, "trainer": "bmuf"}),
    ],
)
def test_what_replicas_cannot_do_is_refused_by_name(why: str, values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=why):
        TrainParams(faults="continue", workers=4, **values)
