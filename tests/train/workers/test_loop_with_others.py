"""faults: continue. A worker is killed, the others continue at once, it rejoins: nothing is skipped or repeated.

Workers are real ones, in processes that are forked with torch loaded, so that one that comes back is there in a moment.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
import torch
import torch.distributed as dist
from coordinated import SMALL, Forked
from gloo import run_workers
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, TCPStore
from trainings import seen, until

from megahour.core.store import Artifact
from megahour.learn.job import TrainingJob, prepare
from megahour.learn.params import TrainParams
from megahour.learn.schedule import Phase
from megahour.learn.step import Trainer
from megahour.learn.step_totals import Audit, StepTotals, TrainedTotals
from megahour.sync.group.base import WorkerLostError
from megahour.sync.group.torch_group import TorchGroup
from megahour.train import result
from megahour.train.checkpoints import Position
from megahour.train.loop import execute
from megahour.train.meters import Sums
from megahour.train.readings import StepReadings
from megahour.train.workers import handover, loop_with_others, membership, worker
from megahour.train.workers.handover import KeptStates, Round
from megahour.train.workers.loop_with_others import RunWithOthers


def kill(kills: int, seed: int) -> Callable[[Forked], None]:
    """So often: kills a worker at a random moment, and sees the others go on, and the one that comes instead join.

    That one starts only when the others are together again, for on a busy machine it may be there before them.
    """

    def act(run: Forked) -> None:
        moments, group = random.Random(seed), until(run.together)
        for _ in range(kills):
            time.sleep(moments.uniform(0.0, 0.2))
            lost = moments.choice(run.living())
            run.holds_back.set()
            run.workers[lost].kill()
            run.lost.append(lost)
            group = until(lambda group=group: run.together(3, after=group))
            run.holds_back.clear()
            group = until(lambda group=group: run.together(4, after=group))

    return act


TRAINERS: dict[str, dict[str, Any]] = {
    "dense": {},
    "gtc": {"density": 0.1, "form": "update"},
    "bmuf": {"block_steps": 5},
    "local_sgd": {"period_steps": 7, "warmup_steps": 10},
}


@pytest.mark.parametrize(
    ("trainer", "kills"),
    [("dense", 1)] + [pytest.param(t, 10, marks=pytest.mark.faults) for t in TRAINERS],
)
def test_a_lost_worker_is_replaced_and_the_others_do_not_start_again(
    tmp_path: Path, data: dict[str, Artifact], an_epoch: tuple[int, int], trainer: str, kills: int
) -> None:
    epochs = 60 * (1 + kills // 10)
    chosen = {"trainer": trainer, "trainer_options": TRAINERS[trainer]}
    run = Forked(tmp_path, data, kill(kills, seed=7), epochs=epochs, **chosen)
    assert len(run.workers) == 4 + kills, "no one else was started"
    rows = run.result.curves.rows
    pieces, keys = an_epoch
    assert seen(rows) == (epochs * pieces, epochs * keys)
    assert len(rows) == 6, "each row once"


def restarting(folder: str, urls: dict[str, str], chosen: dict[str, Any]) -> result.Result:
    """The same training as of `faults: restart`."""
    p = TrainParams(**{**SMALL, "workers": 2, "epochs": 4, **chosen})
    job = prepare(p, {role: Artifact(url) for role, url in urls.items()})
    group = TorchGroup()
    return execute(job, group, Path(folder), lambda *_, **__: None, worker._new_store(group))


@pytest.mark.parametrize("trainer", ["dense", "gtc", "bmuf"])
def test_without_a_loss_the_bytes_are_those_of_restart(tmp_path: Path, data: dict[str, Artifact], trainer: str) -> None:
    chosen = {"trainer": trainer, "trainer_options": TRAINERS[trainer]}
    run = Forked(tmp_path / "continue", data, lambda _: None, workers=2, epochs=4, **chosen)
    urls = {role: artifact.url for role, artifact in data.items()}
    quiet, _ = run_workers(restarting, 2, str(tmp_path / "restart"), urls, chosen)
    assert run.result.weights == quiet.weights
    assert seen(run.result.curves.rows) == seen(quiet.curves.rows)
    if trainer != "bmuf":  # whose rows lie at its blocks' edges
        assert run.result.curves.rows == quiet.curves.rows


def test_all_workers_are_lost_and_go_on_from_the_checkpoint(
    tmp_path: Path, data: dict[str, Artifact], an_epoch: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    def kill_all(run: Forked) -> None:
        until(lambda: list(run.folder.glob("checkpoints/*/checkpoint.json")))
        for process in run.workers[:2]:
            process.send_signal(signal.SIGSTOP)
        for process in run.workers[:2]:
            process.kill()

    run = Forked(tmp_path, data, kill_all, workers=2, epochs=60, checkpoint_s=0.1)
    assert len(run.workers) == 4
    assert "from (-1, -1) on" in run.logs()[2]
    told = [message for message in caplog.messages if "the others go on, and it is started again (restart" in message]
    assert {message.split(" (")[0] for message in told} == {f"train: worker {n} was lost" for n in range(2)}
    assert seen(run.result.curves.rows) == tuple(60 * n for n in an_epoch)


@pytest.mark.faults
def test_a_worker_that_stands_still_is_ended_and_replaced(
    tmp_path: Path, data: dict[str, Artifact], an_epoch: tuple[int, int]
) -> None:
    def stop(run: Forked) -> None:
        group = until(run.together)
        run.lost.append(2)
        run.workers[2].send_signal(signal.SIGSTOP)
        until(lambda: run.together(4, after=group))

    run = Forked(tmp_path, data, stop, epochs=60, timeout_s=2.0)
    assert run.workers[2].poll() == -signal.SIGKILL
    assert seen(run.result.curves.rows) == tuple(60 * n for n in an_epoch)


class OneMoreIsLost(Forked):
    """When a worker is lost and the others meet, one of these is killed: they wait for it while their group forms."""

    def _open(self) -> None:
        if self._epoch == 0:
            victim = max(self._asking)
            self.workers[victim].kill()
            self.lost.append(victim)
        super()._open()


@pytest.mark.faults
def test_one_more_worker_is_lost_while_the_others_form_a_group(
    tmp_path: Path, data: dict[str, Artifact], an_epoch: tuple[int, int]
) -> None:
    def act(run: Forked) -> None:
        until(lambda: run.together() and list(run.folder.glob("checkpoints/*/checkpoint.json")))
        run.holds_back.set()
        run.workers[0].kill()
        run.lost.append(0)
        group = until(lambda: run.together(2))
        assert group == "2", "the group that did not form was the one before"
        run.holds_back.clear()
        until(lambda: run.together(4, after=group))

    run = OneMoreIsLost(tmp_path, data, act, epochs=60)
    assert len(run.workers) == 6
    assert sum("group 1 ends: rank" in log and "lost while the group formed" in log for log in run.logs()) == 2
    assert seen(run.result.curves.rows) == tuple(60 * n for n in an_epoch)


def forms_without_who_is_lost(port: int, leaves_an_address: bool) -> int:
    """Worker 2 is lost while group 0 forms, before or after it has left its address; the others meet in group 1."""
    number = dist.get_rank()
    dist.destroy_process_group()
    os.environ |= {membership.STORE: f"127.0.0.1:{port}", membership.MEMBER: str(number)}
    member = membership.GroupMember(timeout_s=60.0)
    member._epoch = 0
    if number == 2:
        if leaves_an_address:
            leave_an_address(member)
        member._store.set("gone", str(os.getpid()))
        os._exit(1)
    gone = int(member._store.get("gone"))
    until(lambda: has_ended(gone))  # until then it could be connected to
    member._store.set("lost/0", "")
    with pytest.raises(WorkerLostError, match="lost while the group formed"):
        member.group(membership.Place(0, number, 3, fresh=True, behind=False, lost=0))
    member.leave()
    member._epoch = 1
    group = member.group(membership.Place(1, number, 2, fresh=True, behind=False, lost=0))
    return int(group.all_reduce(torch.ones(1)).wait())


def has_ended(process: int) -> bool:
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def leave_an_address(member: membership.GroupMember) -> None:
    """Publish an address as gloo does; once this process has ended, connecting to it fails."""
    connecting = (PrefixStore("elsewhere", membership._client(60.0)), 2, 3)
    threading.Thread(target=ProcessGroupGloo, args=connecting, daemon=True).start()
    member._store.wait(["elsewhere/0/2"])
    member._store.set("group/0/connect/0/2", member._store.get("elsewhere/0/2"))


@pytest.mark.parametrize("leaves_an_address", [False, True])
def test_who_is_lost_while_a_group_forms_does_not_hold_up_the_others(leaves_an_address: bool) -> None:
    """gloo's own limits are ten seconds and fifty; and what it began does not spoil the next group."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert run_workers(forms_without_who_is_lost, 3, store.port, leaves_an_address) == [2, 2, None]


def behind_by_a_step(folder: str) -> tuple[list[list[float]], tuple[int, int], int | None]:
    """Worker 1 has not done the step that worker 0 has, and takes its weights, memory and position."""
    group, p = TorchGroup(), TrainParams()
    model = torch.nn.Linear(2, 1)
    with Trainer(p, model, lambda m, o: p.synchroniser.make(m, o, group=group)) as trainer:
        at = Position(done=4 * group.rank)
        if group.rank == 0:
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            trainer.optimiser.step()
            at = Position(done=8, steps=2, row_due=4, rounds=1)
            at.audit.add([5, 6])
        kept = KeptStates(trainer.synchroniser.state())
        at = handover.agree(trainer, at, Round(), kept, group, behind=True)
        held = torch.cat([model.weight.detach(), trainer.optimiser.state[model.weight]["exp_avg"]]).tolist()
        return held, (at.audit.pieces, at.audit.keys), at.row_due


def test_a_meeting_does_not_search_for_garbage_in_what_was_there_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer's optimiser brings torch's compiler, 120,000 objects: to look at them took 70 ms of CPU time, half a
    second and more on a busy machine, while the other workers waited."""
    left: list[int] = []

    class Made:
        def __init__(self, *_: object, **__: object) -> None:
            self.objects = [[number] for number in range(100_000)]
            self.synchroniser = SimpleNamespace(state=dict)

        def __enter__(self) -> Made:
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing is open."""

    class Met(Exception):
        pass

    def meet(*_: object, **__: object) -> None:
        left.append(len(gc.get_objects()))
        raise Met

    monkeypatch.setattr(loop_with_others, "Trainer", Made)
    monkeypatch.setattr(loop_with_others, "synchronise", lambda *_: None)
    job = cast("TrainingJob", SimpleNamespace(params=TrainParams(), module=None, sequence=None))
    try:
        with pytest.raises(Met):
            loop_with_others.execute_with_others(
                job, cast("membership.GroupMember", SimpleNamespace(meet=meet)), tmp_path, print
            )
    finally:
        gc.unfreeze()
    assert left[0] < 10_000


def test_who_is_behind_takes_all_from_who_is_furthest(tmp_path: Path) -> None:
    first, second = run_workers(behind_by_a_step, 2, str(tmp_path))
    assert first == second
    assert second[1:] == ((2, 11), 4)


def totals_of(rank_of_the_idle: int) -> Any:
    group = TorchGroup()
    batch: Any = SimpleNamespace(keys=[2**60, group.rank])
    lacking = torch.tensor(group.rank) if group.rank else None
    gradients: Any = SimpleNamespace(
        loss=torch.tensor(0.1 + group.rank), weight=3, correct=torch.tensor(2), without_path=lacking
    )
    idle = group.rank == rank_of_the_idle
    found = StepTotals(group, lambda: True).of_all(
        TrainedTotals.of([] if idle else [batch], None if idle else gradients)
    )
    return found.audit.pieces, found.audit.keys, found.sums, found.joining


def test_every_worker_knows_the_sums_of_a_step() -> None:
    found = run_workers(totals_of, 3, 2)
    assert found[0] == found[1] == found[2]
    pieces, keys, (loss, *counts), joining = found[0]
    assert (pieces, keys, counts, joining) == (4, (2 * 2**60 + 1) % (2**61 - 1), [6, 4, 1], True)
    assert loss == pytest.approx(1.2)
    totals = TrainedTotals(Audit(), (1.0, 2, 3, 4))
    assert totals.plus(totals).sums == (2.0, 4, 6, 8)


def test_a_row_of_sequence_training_counts_utterances_without_a_path() -> None:
    """Of all workers; until now only runs with faults: restart had the column."""
    run = object.__new__(RunWithOthers)
    run.at = Position(sums=Sums(4.0, 2, 1, 3), done=1)
    run.readings, run.in_step, run.total, run.group = StepReadings(), True, 5, TorchGroup()
    run.job = cast("Any", SimpleNamespace(sequence="a goal"))
    run.held_out = cast("Any", SimpleNamespace(columns=lambda *_, **__: {}, scored=lambda: b""))
    run.meters = cast("Any", SimpleNamespace(row=lambda _: None))
    run._row(Phase("labelled", 0, 0, 1, 0, 0), 0.1)
    assert run.at.curves.rows[-1].items() >= {"loss": 2.0, "without_path": 3}.items()


@pytest.mark.parametrize(
    ("why", "values"),
    [
        ("gossip: its workers are not in step", {"trainer": "gossip"}),
        ("streaming_diloco, which would lose a fragment", {"trainer": "streaming_diloco"}),
        ("node_size above 1", {"trainer": "gtc", "trainer_options": {"density": 0.1, "node_size": 2}}),
        ("inner: mean", {"trainer": "bmuf", "trainer_options": {"inner": "mean"}}),
        ("nodes above 1", {"nodes": 2, "rendezvous": "a:1"}),
    ],
)
def test_what_needs_all_workers_is_refused_by_name(why: str, values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=why):
        TrainParams(faults="continue", workers=4, **values)


def test_it_leaves_finished_runs_valid() -> None:
    assert "faults" not in TrainParams().identity()
    assert TrainParams(faults="continue").identity()["faults"] == "continue"
