"""The training loop of `loop` with workers that are lost and come back: `faults: continue`.

    meet: leave the old process group, get a rank in the new one             (`membership`)
    those behind, and those who come, take weights, optimiser and position from the furthest
    train, from the batch that the furthest has not done, until a worker is lost or one waits to join

A step that a worker's loss interrupts has changed nothing on those who saw it fail (`sync.trainers.dense`); its batches
are then shared out again, to those who are left. Who had it done already is one step ahead, and the others take its
model: no batch is trained on twice, and none is left out. Which steps had fewer workers depends on when one was lost,
and so do the bytes of the model.
"""

from __future__ import annotations

import gc
import json
import logging
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from megahour.sync.checkpoint import Checkpoints
from megahour.sync.group.base import Group, WorkerFailedError, WorkerLostError
from megahour.sync.group.mesh import of_transport
from megahour.sync.group.torch_group import TorchGroup
from megahour.train import result
from megahour.train.checkpoints import Position, checkpoints_of, clear_unfinished, newest, position_of
from megahour.train.coverage_audit import Audit
from megahour.train.job import TrainingJob
from megahour.train.loop import Run, alarm_of, synchronise
from megahour.train.membership import GroupMember, Place
from megahour.train.meters import Curves
from megahour.train.step import Trainer
from megahour.train.step_totals import Regroup, StepTotals

LOG = logging.getLogger(__name__)


def execute_with_others(
    job: TrainingJob, member: GroupMember, work: Path, progress: Callable[..., None], durable: str = ""
) -> result.Result | None:
    """Train `job` to its end as one of the workers that `member` meets; the first of the last group has the result.

    Raises StageError as `loop.execute`; DistError: the coordinator is gone.
    """
    gc.collect()
    gc.freeze()  # what is there now stays: `meet` need not look through it while the others wait
    with Trainer(job.params, job.module, synchronise(job, TorchGroup())) as trainer:
        worker = _Worker(job, trainer, member, work, progress, durable)
        while True:
            place = member.meet(worker.how_far())
            LOG.info("group %d: rank %d of %d, from %s on", place.epoch, place.rank, place.size, worker.how_far())
            if (curves := worker.train(place)) is not None:
                member.leave()
                return result.of(job, curves, trainer.model()) if place.rank == 0 else None


class _Worker:
    """One worker and where it is, in one group after another."""

    def __init__(
        self,
        job: TrainingJob,
        trainer: Trainer,
        member: GroupMember,
        work: Path,
        progress: Callable[..., None],
        durable: str,
    ) -> None:
        self._job, self._trainer, self._member, self._work, self._progress = job, trainer, member, work, progress
        self._checkpoints = checkpoints_of(work, durable)
        self._at: Position | None = None
        self._stepped_s: float | None = None  # when this worker's last step ended
        self._first = False

    def how_far(self) -> tuple[int, int]:
        """Batches done and rows of the curves; (-1, -1): not begun."""
        return (-1, -1) if self._at is None else (self._at.done, len(self._at.curves.rows))

    def train(self, place: Place) -> Curves | None:
        """To the end; None: the group broke, or another worker waits. No one holds the group then."""
        try:
            return self._train(self._member.group(place), place)
        except (Regroup, WorkerLostError, WorkerFailedError) as error:
            LOG.warning("group %d ends: %s", place.epoch, str(error).partition("\n")[0] or "a worker waits to join")
            traceback.clear_frames(error.__traceback__)
        except RuntimeError as error:
            if not of_transport(error):
                raise
            LOG.warning("group %d did not form, or broke: %s", place.epoch, error)
            traceback.clear_frames(error.__traceback__)
        self._member.leave()
        self._trainer.regroup(synchronise(self._job, TorchGroup()))
        return None

    def _train(self, group: TorchGroup, place: Place) -> Curves:
        job, p, trainer = self._job, self._job.params, self._trainer
        self._at = at = self._begin(group) if place.fresh else self._go_on(group, place)
        trainer.regroup(synchronise(job, group))
        progress = partial(self._progress, **({"restarts": place.lost} if place.lost else {}))
        shown, self._first = partial(self._stepped, progress if group.rank == 0 else _unseen), True
        with (
            alarm_of(p, group.rank) as alarm,
            Checkpoints(self._checkpoints, rank=group.rank, size=group.size, patience_s=p.timeout_s) as saver,
        ):
            totals = StepTotals(group, self._member.called)
            run = Run(job, trainer, group, saver, self._work, shown, alarm, at, totals)
            try:
                return run.to_the_end(self._member.store())
            finally:
                run.meters.close()

    def _stepped(self, progress: Callable[..., None], *about: Any, **fields: Any) -> None:
        now_s = time.monotonic()
        if self._first and self._stepped_s is not None:
            LOG.info("the first step with the others ended %.2f s after the last one", now_s - self._stepped_s)
        self._stepped_s, self._first = now_s, False
        progress(*about, **fields)

    def _begin(self, group: Group) -> Position:
        """From the newest checkpoint, if there is one."""
        found = newest(self._checkpoints, group, self._job.fingerprint)
        if found is None:
            return Position()
        self._trainer.restore(found.tensors, found.states)
        return position_of(found, group, common=True)

    def _go_on(self, group: Group, place: Place) -> Position:
        clear_unfinished(self._checkpoints, group)
        if not place.behind:
            assert self._at is not None
            return self._at
        return share(self._trainer, self._at, group)


def share(trainer: Trainer, at: Position | None, group: Group) -> Position:
    """Weights, optimiser and position become those of worker 0, on all at once or not at all. A collective call."""
    told, held = b"", b""
    if group.rank == 0:
        assert at is not None
        told = json.dumps(at.state(at.done) | {"row_due": at.row_due}).encode()
        tensors = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in trainer.tensors().items()}
        held = safetensors.torch.save(tensors | {"audit.sums": at.audit.tensor()})
    told, held = _broadcast(told, group), _broadcast(held, group)
    if at is not None and group.rank == 0:
        return at
    state, tensors = json.loads(told), safetensors.torch.load(held)
    trainer.restore(tensors, [{}])
    at = Position.of(state, same_workers=True)
    at.audit, at.row_due = Audit.sum([tensors["audit.sums"]]), state["row_due"]
    return at


def _broadcast(data: bytes, group: Group) -> bytes:
    """Those of worker 0."""
    length = torch.tensor([len(data)])
    group.broadcast(length)
    vector = torch.frombuffer(bytearray(data or bytes(int(length))), dtype=torch.uint8)
    group.broadcast(vector)
    return vector.numpy().tobytes()


def _unseen(*_: object, **__: object) -> None:
    """Worker 0 shows how far the run is."""
