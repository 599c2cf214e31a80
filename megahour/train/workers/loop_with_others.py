"""The training loop of `loop` for workers that may be lost and rejoin: `faults: continue`.

    meet: leave the old process group, get a rank in the new one             (`membership`)
    new workers and those behind take weights, optimiser and position from the furthest          (`handover`)
    train, from the furthest worker's next batch, until a worker is lost or one waits to join

A step interrupted by a loss is undone, and its batches are redistributed to the remaining workers. Block trainers
(bmuf, diloco, local_sgd) notice the loss at the end of the block: the remaining workers finish it with the mean of
their models, and then train on the lost worker's batches. A worker that had already finished the step or block is a
round ahead, and the others take its model: no batch is trained on twice, and none is skipped. Which steps had fewer
workers depends on the time of the loss, and so do the bytes of the model.
"""

from __future__ import annotations

import gc
import importlib
import logging
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from megahour.batches.loader import Batch
from megahour.learn.job import TrainingJob
from megahour.learn.step import Gradients, Trainer
from megahour.learn.step_totals import StepTotals, TrainedTotals
from megahour.sync.checkpoint import Checkpoints
from megahour.sync.group.base import Group, WorkerFailedError, WorkerLostError
from megahour.sync.group.mesh import of_transport
from megahour.sync.group.torch_group import TorchGroup
from megahour.sync.trainers.regrouping import InBlocks, Regrouping
from megahour.train import result
from megahour.train.batch_assignment import Claim, Marks
from megahour.train.checkpoints import Position, checkpoints_of, clear_unfinished, newest, position_of
from megahour.train.loop import Run, alarm_of, synchronise
from megahour.train.workers import handover
from megahour.train.workers.handover import KeptStates, Round, Undo
from megahour.train.workers.membership import GroupMember, Place

LOG = logging.getLogger(__name__)


def execute_with_others(
    job: TrainingJob, member: GroupMember, work: Path, progress: Callable[..., None], durable: str = ""
) -> result.Result | None:
    """Train `job` to its end in the groups of `member`; the first worker of the last group returns the result.

    Raises StageError like `loop.execute`; DistError: the coordinator is gone.
    """
    with Trainer(job.params, job.module, synchronise(job, TorchGroup()), sequence=job.sequence) as trainer:
        return through_groups(WorkerWithOthers(job, trainer, member, work, progress, durable))


def through_groups(worker: WorkerWithOthers) -> result.Result | None:
    """Train through all groups of a worker; like `execute_with_others`."""
    importlib.import_module("torch._dynamo")  # as any optimiser does; models in parts make theirs in the first group
    gc.collect()
    gc.freeze()  # so that the collection in `meet`, while others wait, skips what exists now: torch, the trainer
    while True:
        place = worker.meet()
        if (trained := worker.train(place)) is not None:
            return trained if place.rank == 0 else None


class WorkerWithOthers:
    """One worker and its position, through successive groups."""

    def __init__(
        self,
        job: TrainingJob,
        trainer: Trainer | None,
        member: GroupMember,
        work: Path,
        progress: Callable[..., None],
        durable: str,
    ) -> None:
        self._job, self._member, self._work, self._progress = job, member, work, progress
        self._checkpoints = checkpoints_of(work, durable)
        self.at: Position | None = None
        self._round, self._kept, self._trains = Round(), KeptStates({}), False
        if trainer is not None:
            self._trainer, self._kept = trainer, KeptStates(trainer.synchroniser.state())
        self._stepped_s: float | None = None  # when this worker's last step ended
        self._first = False

    def meet(self) -> Place:
        """Wait for a place in the next group."""
        far = handover.standing(self.at, self._round)
        place = self._member.meet(far, prepared=self._round.prepared)
        LOG.info("group %d: rank %d of %d, from %s on", place.epoch, place.rank, place.size, far)
        return place

    def train(self, place: Place) -> result.Result | None:
        """Train to the end; None: the group broke, or another worker waits. The group is released in either case.

        Only the first worker's result has the model.
        """
        try:
            found = self._train(self._member.group(place), place)
            self._member.leave()
            return found
        except (Regroup, WorkerLostError, WorkerFailedError) as error:
            LOG.warning("group %d ends: %s", place.epoch, str(error).partition("\n")[0] or "a worker waits to join")
            traceback.clear_frames(error.__traceback__)
        except RuntimeError as error:
            if not of_transport(error):
                raise
            LOG.warning("group %d failed to form or broke: %s", place.epoch, error)
            traceback.clear_frames(error.__traceback__)
        self._leave()
        return None

    def _leave(self) -> None:
        """Leave the group, keeping its synchroniser's state for the next one."""
        if self._trains:
            self._kept, self._trains = KeptStates(self._trainer.synchroniser.state()), False
        self._member.leave()
        self._trainer.regroup(synchronise(self._job, TorchGroup()))

    def _train(self, group: TorchGroup, place: Place) -> result.Result:
        job, p = self._job, self._job.params
        self.at = at = self._begin(group) if place.fresh else self._go_on(group, place)
        self._trains, trainer = True, self._trainer
        progress = partial(self._progress, **({"restarts": place.lost} if place.lost else {}))
        shown, self._first = partial(self._stepped, progress if group.rank == 0 else _unseen), True
        with (
            alarm_of(p, group.rank) as alarm,
            Checkpoints(self._checkpoints, rank=group.rank, size=group.size, patience_s=p.timeout_s) as saver,
        ):
            run = self._run(job, trainer, group, saver, self._work, shown, alarm, at)
            run.round, run.totals = self._round, StepTotals(group, self._member.called)
            try:
                curves = run.to_the_end(self._member.store())
            finally:
                run.meters.close()
            return result.of(job, curves, self._model(group))

    @property
    def _run(self) -> type[RunWithOthers]:
        return RunWithOthers

    def _model(self, group: Group) -> dict[str, Tensor]:
        """The trained model, on the first worker."""
        return self._trainer.model() if group.rank == 0 else {}

    def _stepped(self, progress: Callable[..., None], *about: Any, **fields: Any) -> None:
        now_s = time.monotonic()
        if self._first and self._stepped_s is not None:
            LOG.info("the first step with the others ended %.2f s after the last one", now_s - self._stepped_s)
        self._stepped_s, self._first = now_s, False
        progress(*about, **fields)

    def _begin(self, group: Group) -> Position:
        """Start from the newest checkpoint, if there is one."""
        self._trainer.regroup(synchronise(self._job, group))
        checkpoint, at = newest(self._checkpoints, group, self._job.fingerprint), Position()
        if checkpoint is not None:
            self._trainer.restore(checkpoint.tensors, checkpoint.states)
            at = position_of(checkpoint, group, common=True)
        self._round.begin(at)
        return at

    def _go_on(self, group: Group, place: Place) -> Position:
        """Continue from the furthest worker's position."""
        clear_unfinished(self._checkpoints, group)
        at = handover.agree(self._trainer, self.at, self._round, self._kept, group, behind=place.behind)
        self.at = at  # set with the model, in case another worker is lost before the next line ends
        self._trainer.regroup(synchronise(self._job, group))
        cast("Regrouping", self._trainer.synchroniser).rejoin(self._kept.own, self._kept.peer)
        if self._round.open:
            at.owed = self._round.owed_now(at, group)
        return at


class Regroup(Exception):
    """A worker waits to join: all leave their group at the end of this round, and meet."""


class RunWithOthers(Run):
    """`Run` in which a loss costs only the open round: sums are over all workers, and exchanged before it ends."""

    sums_of_all = True
    round: Round
    totals: StepTotals
    _joining = False

    def _end_what_is_open(self) -> bool:
        if blocks := self._in_blocks():
            blocks.deferred = True
        if is_open := self.round.open:
            self._meet()
        return is_open

    def _save_due(self, marks: Marks, claim: Claim | None) -> None:
        """Save once between two rounds, however many marks the last one has passed."""
        if not self._between_rounds():
            return
        save = False
        while (mark := marks.due(claim)) is not None and mark.batch < self.total:
            save = save or mark.save
        if save and self.at.done < self.total:
            self._checkpoint(self.at.done)

    def _step(self, claim: Claim) -> None:
        super()._step(claim)
        if self._joining and self._between_rounds() and self.at.done < self.total:
            raise Regroup

    def _update(self, claim: Claim, batches: Sequence[Batch], gradients: Gradients | None, rate: float) -> None:
        own = TrainedTotals.of(batches, gradients)
        if self._in_blocks() is None:
            totals = self.totals.of_all(own)
            self.round.undo = Undo.of(self.trainer)
            self.trainer.apply(gradients, rate, self.at.steps + 1)
            self._passed(claim)
            self._over(totals)
            return
        self.trainer.apply(gradients, rate, self.at.steps + 1)
        self._passed(claim)
        self.round.own += claim.own
        self.round.totals = self.round.totals.plus(own)
        blocks = self._in_blocks()
        if blocks is not None and (blocks.due or (self.at.done == self.total and not self.at.owed)):
            self._meet()

    def _meet(self) -> None:
        """The meeting at the end of a block, including the last one."""
        self.round.open = True
        totals = self.totals.of_all(self.round.totals)
        blocks = self._in_blocks()
        assert blocks is not None
        blocks.meet()
        self._over(totals)

    def _passed(self, claim: Claim) -> None:
        super()._passed(claim)
        self.at.owed = self.at.owed[claim.again :]

    def _over(self, totals: TrainedTotals) -> None:
        self.at.add(totals)
        self.at.rounds += 1
        self.round.begin(self.at)
        self._joining = totals.joining

    def _between_rounds(self) -> bool:
        return not self.round.begun(self.at)

    def _in_blocks(self) -> InBlocks | None:
        blocks = self.job.params.synchroniser.in_blocks
        return cast("InBlocks", self.trainer.synchroniser) if blocks else None


def _unseen(*_: object, **__: object) -> None:
    """Discard progress: worker 0 reports it."""
