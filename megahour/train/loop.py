"""The training loop over the batches of a schedule, which can be stopped at any moment.

    while batches are left:
        claim the next batches          (`batch_assignment`: in turn, or first come first served)
        save the checkpoints that are due
        gradients of this worker's batches                  (`step.Trainer`)
        agree on them with the other workers and step       (`megahour.sync`)
        measure; now and then a row of the curves, with the held-out loss

A step's measurements are read once they have arrived from the device (`readings`): the loop waits for them only before
a row of the curves and before a checkpoint.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from megahour.batches.ahead import Ahead, Request
from megahour.batches.loader import Batch
from megahour.core.errors import StageError
from megahour.learn import criteria
from megahour.learn.job import TrainingJob
from megahour.learn.params import TrainParams
from megahour.learn.schedule import Phase, learning_rate
from megahour.learn.step import Gradients, Trainer
from megahour.learn.step_totals import TrainedTotals
from megahour.monitor.alerts import Alarm, command_hook
from megahour.sync.checkpoint import Checkpoints
from megahour.sync.group.base import Group, WorkerLostError
from megahour.sync.trainers.base import Synchroniser
from megahour.train import result
from megahour.train.batch_assignment import Claim, Claims, FirstCome, InTurn, Marks, SharedStore
from megahour.train.checkpoints import Position, Saving, checkpoints_of, newest, position_of
from megahour.train.held_out.measure import HeldOut
from megahour.train.meters import Curves, RunMeters, Sums
from megahour.train.readings import SparseCount, StepReadings

LOG = logging.getLogger(__name__)


def execute(
    job: TrainingJob,
    group: Group,
    work: Path,
    progress: Callable[..., None],
    store: SharedStore | None = None,
    device: torch.device = criteria.CPU,
    durable: str = "",
) -> result.Result:
    """Train `job` to the end of its schedule as one of the workers of `group`. Each worker returns the same model; if
    they hold parts of it, the first returns the whole model and the others no weights.

    `store` is shared by all workers, and new whenever they start; None for a single worker. `device` is this worker's
    own. Checkpoints are below `durable`, a path or URL, or below `work`.

    Raises
    ------
    StageError: the schedule is empty, or a loss on any worker is not finite.
    WorkerLostError: restart all workers; they resume from the last checkpoint.
    """
    p, checkpoints = job.params, checkpoints_of(work, durable)
    with (
        alarm_of(p, group.rank) as alarm,
        _trainer(job, group, device) as trainer,
        Checkpoints(checkpoints, rank=group.rank, size=group.size, patience_s=p.timeout_s) as saver,
    ):
        at = Position()
        if (found := newest(checkpoints, group, job.fingerprint)) is not None:
            trainer.restore(found.tensors, found.states)
            at = position_of(found, group)
        run = Run(job, trainer, group, saver, work, progress, alarm, at)
        try:
            curves = run.to_the_end(store)
        finally:
            run.meters.close()
        return result.of(job, curves, trainer.model())


def _trainer(job: TrainingJob, group: Group, device: torch.device) -> Trainer:
    if job.params.parallel.shard == 1:
        return Trainer(job.params, job.module.to(device), synchronise(job, group), device, sequence=job.sequence)
    from megahour.parallel.modes import trainer_of  # FSDP takes a second to import

    return trainer_of(job.params)(job.params, job.config, partial(synchronise, job), group, device)


def synchronise(job: TrainingJob, group: Group) -> Callable[[nn.Module, torch.optim.Optimizer], Synchroniser]:
    """Factory of the job's synchroniser, for all of `group` or for the workers that hold the same part of the model."""

    def make(module: nn.Module, optimiser: torch.optim.Optimizer) -> Synchroniser:
        batches = group.size * job.params.parallel.shard * job.params.accumulate
        steps = -(-sum(map(len, job.phases)) // batches)
        return job.params.synchroniser.for_run(steps).make(module, optimiser, group=group)

    return make


class TakenStep(NamedTuple):
    """A step as the host knows it: its number, the batches `done` after it, and their totals."""

    number: int
    done: int
    phase: Phase
    frames: int
    weight: int
    first: int
    learning_rate: float


class Run:
    """One worker's run over the phases of a job, from the position `at`, which it advances."""

    sums_of_all = False
    """Whether the position's sums are over all workers rather than this one's."""

    def __init__(
        self,
        job: TrainingJob,
        trainer: Trainer,
        group: Group,
        saver: Checkpoints,
        work: Path,
        progress: Callable[..., None],
        alarm: Alarm | None,
        at: Position,
    ) -> None:
        self.job, self.trainer, self.group = job, trainer, group
        self.ends = list(accumulate(len(phase) for phase in job.phases))
        self.total = self.ends[-1] if self.ends else 0
        self.in_step = job.params.synchroniser.in_step
        self.at = at
        self.saving = Saving(saver, job.fingerprint, alarm)
        self.meters = RunMeters(job.params, group, work, progress, alarm, after=self.at.steps)
        self.held_out = HeldOut(job, trainer, self.meters, group.rank)
        self.readings: StepReadings[TakenStep] = StepReadings()
        self.pathless = SparseCount()

    def to_the_end(self, store: SharedStore | None) -> Curves:
        """Train to the end of the schedule."""
        if not self.total:
            raise StageError("the schedule has no batches", where="train", remedy="check the sets and epochs")
        claims, marks = self._claims(store)
        # If all but the end was done and saved before a restart.
        was_through = not self._end_what_is_open() and self.at.done == self.total and not self.at.owed
        if self.at.row_due is not None:
            self._row_after(self.at.row_due)
        with self._ahead(claims) as self.ahead:
            while self.at.done < self.total or self.at.owed:
                claim = claims.take()
                self._save_due(marks, claim)
                if claim is None:
                    break
                self._step(claim)
        if not was_through:
            self._checkpoint(self.total)
        self.trainer.synchroniser.finish()
        self.trainer.take_average()
        self.in_step, self.at.done = True, self.total  # others may have taken the last batches
        if not self.at.ended:
            self._row(self.job.phases[-1], self._rate(self.total))
        if self.pathless.total:
            self._warn_of_pathless()
        self.saving.wait()  # a failure to save must not discard the trained model
        return self.at.curves

    def _end_what_is_open(self) -> bool:
        """Finish a round that the loss of the group left open; returns whether there was one."""
        return False

    def _save_due(self, marks: Marks, claim: Claim | None) -> None:
        """Save the checkpoints that lie before `claim`."""
        while (mark := marks.due(claim)) is not None and mark.batch < self.total:
            if mark.save:
                self._checkpoint(mark.batch)

    def _claims(self, store: SharedStore | None) -> tuple[Claims, Marks]:
        p, at = self.job.params, self.at.done
        unit = self.group.size if self.in_step else p.synchroniser.node_workers
        marks = Marks(store, at, p.checkpoint_s, unit * p.accumulate, self.saving.requested)
        if self.in_step or store is None:
            return InTurn(self.group, at, self.total, p.accumulate, self.at.owed), marks
        first = self.group.rank - self.group.rank % unit
        nodes = [range(start, start + unit) for start in range(0, self.group.size, unit)]
        node = self.group.split(nodes) if unit > 1 else None
        LOG.info("worker %d takes batches with the %d workers from %d on", self.group.rank, unit, first)
        return FirstCome(store, node, at, self.total, p.accumulate), marks

    def _step(self, claim: Claim) -> None:
        at = self.at
        phase, _ = self._place(claim.first)
        rate = phase.gain * self._rate(claim.first)
        batches = list(self.meters.timed(self._batches(claim.own)))
        self.trainer.prune_after(claim.first / self.total)
        gradients = self.trainer.backward(batches, claim.own)
        try:
            self._update(claim, batches, gradients, rate)
        except StageError as error:
            raise _with_broken(error, batches) from None
        metrics = self.trainer.synchroniser.metrics
        frames = sum(int(batch.lengths.sum()) for batch in batches)
        step = TakenStep(at.steps, at.done, phase, frames, gradients.weight if gradients else 0, claim.first, rate)
        measured = {"loss": gradients.loss, "correct": gradients.correct} if gradients else {}
        if gradients and gradients.without_path is not None:
            measured["without_path"] = gradients.without_path
        self.readings.add(step, {**metrics, **measured, **self.trainer.loss_scale()})
        self._read()
        if metrics.get("lost_neighbours"):
            raise WorkerLostError(
                "a neighbour on the ring is lost, and with it the batches that it took since the last checkpoint",
                where=f"rank {self.group.rank} of {self.group.size}",
                remedy="start all workers again from the last checkpoint",
            )
        if at.row_due is not None and self._between_rounds():
            self._row_after(at.row_due)

    def _update(self, claim: Claim, batches: Sequence[Batch], gradients: Gradients | None, rate: float) -> None:
        """Apply the step and advance the position."""
        self.trainer.apply(gradients, rate, self.at.steps + 1)
        if self.job.params.average and claim.last > (1 - self.job.params.average) * self.total:
            self.trainer.add_to_average()
        self.at.add(TrainedTotals.of(batches, None))
        self._passed(claim)

    def _passed(self, claim: Claim) -> None:
        """Move the position past the step; a row of the curves is due after it if one of their marks lies within."""
        at, rows = self.at, self.job.params.rows
        before, at.done, at.steps = at.done, claim.last, at.steps + 1
        if at.done < self.total and at.done * rows // self.total > before * rows // self.total:
            at.row_due = claim.first

    def _between_rounds(self) -> bool:
        """Whether a row may be written now."""
        return True

    def _read(self, *, wait: bool = False) -> None:
        """Process the measurements that have arrived. Raises StageError for a loss or a gradient that is not finite."""
        for step, values in self.readings.ready(wait=wait):
            loss = None
            if lacking := int(values.get("without_path", 0)):
                self._count_pathless(lacking)
            self.trainer.check_scale(values.get("loss_scale", 1.0), step.number)
            if step.weight:
                summed, correct = values.pop("loss"), int(values.pop("correct"))
                loss = summed / step.weight
                self.trainer.check_finite(loss, values.get("gradient_norm", 0.0), step.number, step.learning_rate)
                if not self.sums_of_all:
                    self.at.sums.add(summed, step.weight, correct)
            values = {"learning_rate": step.learning_rate, **values}
            unwritten = self.saving.unwritten
            self.meters.step(step.number, step.done, self.total, step.phase, step.frames, loss, values, unwritten)

    def _count_pathless(self, utterances: int) -> None:
        if not self.sums_of_all:
            self.at.sums.without_path += utterances
        if self.pathless.add(utterances):
            self._warn_of_pathless()

    def _warn_of_pathless(self) -> None:
        LOG.warning(
            "step %d: so far %d utterances (each pass counts) have no path in the graph or their lattice; they are not "
            "learnt from, and count as no loss",
            self.at.steps,
            self.pathless.total,
        )

    def _rate(self, number: int) -> float:
        p = self.job.params
        return learning_rate(number, self.total, p.learning_rate, p.final_learning_rate, p.warm_up, p.schedule)

    def _place(self, number: int) -> tuple[Phase, int]:
        """The phase of batch `number` of the schedule, and the batch's number in the phase's epoch."""
        index = bisect.bisect_right(self.ends, number)
        phase = self.job.phases[index]
        return phase, phase.first + number - (self.ends[index] - len(phase))

    def _batches(self, numbers: Sequence[int]) -> Iterator[Batch]:
        """Load this worker's batches of the step."""
        return map(self.ahead.batch, numbers)

    def _ahead(self, claims: Claims) -> Ahead:
        """Prepares batches ahead if their assignment is known in advance, and opens windows ahead in any case."""
        prefetch = self.job.params.prefetch
        if isinstance(claims, InTurn):
            return Ahead(self._request, prefetch=prefetch, numbers=claims)
        return Ahead(self._request, prefetch=prefetch, following=lambda number: range(number + 1, self.total))

    def _request(self, number: int) -> Request:
        phase, batch = self._place(number)
        return Request(self.job.loaders[phase.data], phase.epoch, batch, phase.offset, phase.chunk)

    def _row_after(self, first: int) -> None:
        """Write the row after the step that began at batch `first`."""
        phase, _ = self._place(first)
        self._row(phase, phase.gain * self._rate(first))
        self.at.row_due = None

    def _row(self, phase: Phase, rate: float) -> None:
        """Write a point of the curves from all workers' sums; the workers share the held-out part.

        Asynchronous workers do not meet for it before the end: until then it is worker 0's view. Within a block of
        bmuf or local_sgd the sums are over workers with different models; the last row belongs to the final model.
        """
        self._read(wait=True)
        at = self.at
        if not self.in_step and self.group.rank > 0:
            at.sums = Sums()
            return
        fields: dict[str, Any] = {"epoch": phase.epoch, "step": at.steps, "data": phase.data, "learning_rate": rate}
        trained = at.sums if self.sums_of_all else self._together(at.sums)
        fields |= {"loss": trained.mean_loss, "accuracy": trained.accuracy}
        if self.job.sequence is not None:
            fields["without_path"] = trained.without_path
        rank, size = (self.group.rank, self.group.size) if self.in_step else (0, 1)
        number, last = len(at.curves.rows) + 1, at.done == self.total
        fields |= self.held_out.columns(rank, size, self._summed, at.steps, row=number, last=last)
        at.curves.speech = self.held_out.scored()
        at.sums = Sums()
        if at.done == self.total:
            fields |= at.audit.numbers() if self.sums_of_all else at.audit.of_all(self.group)
        self.meters.row(at.curves.add(**fields))

    def _together(self, sums: Sums) -> Sums:
        loss, *counts = self._summed([sums.loss, sums.weight, sums.correct, sums.without_path])
        return Sums(loss, *map(round, counts))

    def _summed(self, own: Sequence[float]) -> Sequence[float]:
        """Sums over the workers, added in the order of ranks; this worker's own if they are asynchronous."""
        if not self.in_step:
            return own
        rows = self.group.all_gather(torch.tensor(own, dtype=torch.float64)).wait()
        return [sum(column) for column in rows.T.tolist()]

    def _checkpoint(self, done: int) -> None:
        self._read(wait=True)
        with self.meters.aside("checkpoint_s"):
            self.saving.save(done, self.at, self.trainer.tensors(), self.trainer.offsets())


def alarm_of(p: TrainParams, rank: int) -> AbstractContextManager[Alarm | None]:
    """Worker 0's alarm. It reports a fatal error only for a single worker, since several are restarted."""
    if rank:
        return nullcontext()
    alarm = Alarm(command_hook(p.alarm) if p.alarm else LOG.error, stall_s=p.stall_s)
    return alarm if p.workers == 1 else closing(alarm)


def _with_broken(error: StageError, batches: Sequence[Batch]) -> StageError:
    """`error`, or one that names the utterances whose features caused it."""
    keys = sorted({key for batch in batches for key in batch.broken})
    if not keys:
        return error
    what = f"{error.message}: features of utterance {', '.join(map(str, keys[:5]))} are not finite"
    remedy = "check its audio, and recompute the features without it; another learning_rate will not help"
    return StageError(what, where=error.where, remedy=remedy)
