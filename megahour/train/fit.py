"""Running a schedule to its end, with checkpoints, from wherever the last process stopped.

The place in the data is one number: the batches of all phases, one after the other, of which the first `done` are
behind. It means the same whatever the number of workers is, so that workers may be fewer or more after a restart.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from megahour import sync
from megahour.batches.loader import Batch, Loader
from megahour.core.errors import StageError, StoreError
from megahour.sync.alarm import Alarm, command_hook
from megahour.sync.checkpoint import Checkpoints, set_aside
from megahour.sync.checkpoint_read import load
from megahour.sync.group import Group, WorkerLostError
from megahour.sync.meters import Meter
from megahour.train import result
from megahour.train.audit import Audit
from megahour.train.claims import Claim, Claims, FirstCome, InTurn, Marks, Store
from megahour.train.job import TrainingJob
from megahour.train.loop import Gradients, Trainer
from megahour.train.meters import METERS, Curves, Log, Sums, boards_of
from megahour.train.schedule import Phase, learning_rate
from megahour.train.stage import TrainParams

LOG = logging.getLogger(__name__)
CHECKPOINTS = "checkpoints"  # their folder in a training's work folder


@dataclass
class Position:
    """Where a run is: batches `done` of all workers, `steps` of this one, what it has summed up since the last row."""

    done: int = 0
    steps: int = 0
    sums: Sums = field(default_factory=Sums)
    curves: Curves = field(default_factory=Curves)
    audit: Audit = field(default_factory=Audit)

    def state(self, done: int) -> dict[str, Any]:
        return {"done": done, "steps": self.steps, "sums": vars(self.sums), "rows": self.curves.rows}

    @staticmethod
    def of(state: Mapping[str, Any], *, same_workers: bool) -> Position:
        # Sums are a worker's own: when their number has changed, the curve's next row begins anew.
        sums = Sums(**state["sums"]) if same_workers else Sums()
        return Position(state["done"], state["steps"], sums, Curves(state["rows"]))


def execute(
    job: TrainingJob, group: Group, work: Path, progress: Callable[..., None], store: Store | None = None
) -> result.Result:
    """Train `job` to the end of its schedule as one of the workers of `group`; every one returns the same model.

    `store` is one that all workers see, new in every start of theirs; None for a single worker.

    Raises
    ------
    StageError: the schedule is empty, or a loss, here or on another worker, is not finite.
    WorkerLostError: start all again; they go on from the last checkpoint in `work`.
    """
    p = job.params

    def synchronise(module: torch.nn.Module, optimiser: torch.optim.Optimizer) -> sync.Synchroniser:
        options = dict(p.trainer_options)
        if p.trainer == "bmuf":  # the length of the run bounds the block momentum
            options.setdefault("total_steps", -(-sum(map(len, job.phases)) // group.size))
        return sync.build(p.trainer, module, optimiser, group=group, clip_norm=p.clip, **options)

    with (
        _alarm(p, group.rank) as alarm,
        Trainer(job.module, synchronise, threads=p.threads, seed=p.seed, weight_decay=p.weight_decay) as trainer,
        Checkpoints(work / CHECKPOINTS, rank=group.rank, size=group.size, patience_s=p.timeout_s) as saver,
    ):
        run = Run(job, trainer, group, saver, work, progress, alarm)
        try:
            curves = run.to_the_end(store)
        finally:
            run.close()
    return result.of(job.module, curves)


class Run:
    """One worker's run over the phases of a job."""

    def __init__(
        self,
        job: TrainingJob,
        trainer: Trainer,
        group: Group,
        saver: Checkpoints,
        work: Path,
        progress: Callable[..., None],
        alarm: Alarm | None,
    ) -> None:
        self.job, self.trainer, self.group, self.saver, self.progress = job, trainer, group, saver, progress
        self.ends = list(accumulate(len(phase) for phase in job.phases))
        self.total = self.ends[-1] if self.ends else 0
        self.in_step = job.params.trainer != "gossip"
        self.at = self._resume(work / CHECKPOINTS)
        self.unsaved = False  # the last checkpoint could not be written, and the alarm was told
        boards = boards_of(job.params, work, after=self.at.steps) if group.rank == 0 else []
        self.meter = Meter(work / METERS, group, boards=boards, alarm=alarm, after=self.at.steps)
        self.log = Log(work / METERS, boards, after=self.at.steps) if group.rank == 0 else None

    def _resume(self, folder: Path) -> Position:
        found = load(folder, self.group)
        if found is not None and found.state["print"] != self.job.print:
            LOG.warning("checkpoints in %s belong to another configuration; starting anew", folder)
            found = None
        if self.group.rank == 0:
            set_aside(folder, -1 if found is None else found.step)
        self.group.all_gather(torch.zeros(1)).wait()  # nobody saves before that
        if found is None:
            return Position()
        self.trainer.restore(found.tensors, found.states)
        same = found.workers == self.group.size
        at = Position.of(found.state["position"], same_workers=same)
        # When workers are fewer or more than before, the first of them answers for what all have trained on.
        if same:
            at.audit = Audit.sum([found.tensors["audit.sums"]])
        elif self.group.rank == 0:
            at.audit = Audit.sum([state["sums"] for state in found.states.of("audit.")])
        return at

    def to_the_end(self, store: Store | None) -> Curves:
        """Train to the end of the schedule."""
        if not self.total:
            raise StageError("the schedule has no batches", where="train", remedy="check the sets and epochs")
        claims, marks = self._claims(store)
        was_through = self.at.done == self.total  # all but the end was done, and saved, before a restart
        while self.at.done < self.total:
            claim = claims.take()
            while (mark := marks.due(claim)) is not None and mark < self.total:
                self._checkpoint(mark)
            if claim is None:
                break
            self._step(claim)
        if not was_through:
            self._checkpoint(self.total)
        self.trainer.synchroniser.finish()
        self.in_step, self.at.done = True, self.total  # others may have taken the last batches
        self._row(self.job.phases[-1], self._rate(self.total))
        self._saved(self.saver.wait)  # what is trained is worth more than its last checkpoint
        return self.at.curves

    def _claims(self, store: Store | None) -> tuple[Claims, Marks]:
        p, at = self.job.params, self.at.done
        unit = self.group.size if self.in_step else int(p.trainer_options.get("node_size", 1))
        marks = Marks(store, at, p.checkpoint_s, unit)
        if self.in_step or store is None:
            return InTurn(self.group, at, self.total), marks
        first = self.group.rank - self.group.rank % unit
        nodes = [range(start, start + unit) for start in range(0, self.group.size, unit)]
        node = self.group.split(nodes) if unit > 1 else None
        LOG.info("worker %d takes batches with the %d workers from %d on", self.group.rank, unit, first)
        return FirstCome(store, node, at, self.total), marks

    def _step(self, claim: Claim) -> None:
        at, rows = self.at, self.job.params.rows
        phase, _ = self._place(claim.first)
        rate = phase.gain * self._rate(claim.first)
        gradients, frames = None, 0
        for batch in self.meter.timed(self._batches(claim.own)):
            gradients, frames = self.trainer.gradients(batch, claim.own or 0), int(batch.lengths.sum())
        self.trainer.apply(gradients, rate, claim.first)
        if gradients is not None:
            at.sums.add(gradients.loss, gradients.weight, gradients.correct)
            at.audit.add(batch.keys)
        before, at.done, at.steps = at.done, claim.last, at.steps + 1
        self._measure(gradients, rate, frames)
        if self.trainer.synchroniser.metrics.get("lost_neighbours"):
            raise WorkerLostError(
                "a neighbour on the ring is lost, and with it the batches that it took since the last checkpoint",
                where=f"rank {self.group.rank} of {self.group.size}",
                remedy="start all workers again from the last checkpoint",
            )
        if at.done < self.total and at.done * rows // self.total > before * rows // self.total:
            self._row(phase, rate)

    def _rate(self, number: int) -> float:
        p = self.job.params
        return learning_rate(number, self.total, p.learning_rate, p.final_learning_rate, p.warm_up)

    def _place(self, number: int) -> tuple[Phase, int]:
        """The phase of batch `number` of the schedule, and the batch's number in the phase's epoch."""
        index = bisect.bisect_right(self.ends, number)
        phase = self.job.phases[index]
        return phase, phase.first + number - (self.ends[index] - len(phase))

    def _batches(self, number: int | None) -> Iterator[Batch]:
        """This worker's batch of the step, if it has one."""
        if number is not None:
            phase, batch = self._place(number)
            loader = self.job.loaders[phase.data]
            yield loader.batch(phase.epoch, batch, offset=phase.offset, chunk=phase.chunk)

    def _measure(self, gradients: Gradients | None, rate: float, frames: int) -> None:
        values = {"learning_rate": rate, "frames": float(frames), **self.trainer.synchroniser.metrics}
        if gradients is not None:
            values["loss"] = gradients.loss / gradients.weight
        self.meter.step(step=self.at.steps, **values)
        if self.log is not None:
            self.log.frames(frames * self.group.size)
        shown = {"loss": round(values["loss"], 3)} if "loss" in values else {}
        self.progress(self.at.done, self.total, "batches", **shown)

    def _row(self, phase: Phase, rate: float) -> None:
        """A point of the curves, of all workers' sums; the held-out part is shared out among them.

        Workers that are not in step do not meet for it before the end: then it is worker 0's view. Within a block of
        bmuf or local_sgd workers have models of their own, which the sums are over; the last row is of the final one.
        """
        at = self.at
        if not self.in_step and self.group.rank > 0:
            at.sums = Sums()
            return
        fields: dict[str, Any] = {"epoch": phase.epoch, "step": at.steps, "data": phase.data, "learning_rate": rate}
        trained = self._together(at.sums)
        fields |= {"loss": trained.mean_loss, "accuracy": trained.accuracy}
        fields |= {"held_out_loss": None, "held_out_accuracy": None}
        if self.job.held_out is not None:
            share = _share(self.job.held_out, self.group.rank, self.group.size) if self.in_step else None
            with self.meter.aside("evaluation_s"):
                own = self.trainer.evaluate(self.meter.alive(share or _share(self.job.held_out, 0, 1)))
            held = self._together(Sums(*own))
            fields |= {"held_out_loss": held.mean_loss, "held_out_accuracy": held.accuracy}
        at.sums = Sums()
        if at.done == self.total:
            fields |= at.audit.of_all(self.group)
        row = at.curves.add(**fields)
        if self.log is not None:
            self.log.row(row)

    def _together(self, sums: Sums) -> Sums:
        """Sums over the workers, added in the order of ranks; of this worker where they are not in step."""
        if not self.in_step:
            return sums
        own = torch.tensor([sums.loss, sums.weight, sums.correct], dtype=torch.float64)
        loss, weight, correct = (sum(column) for column in self.group.all_gather(own).wait().T.tolist())
        return Sums(loss, round(weight), round(correct))

    def _checkpoint(self, done: int) -> None:
        """What all workers hold of the batches before number `done`."""
        state = {"print": self.job.print, "position": self.at.state(done)}
        with self.meter.aside("checkpoint_s"):
            tensors = self.trainer.tensors() | {"audit.sums": self.at.audit.tensor()}
            self._saved(partial(self.saver.save, done, tensors, state))

    def _saved(self, save: Callable[[], None]) -> None:
        """Reports a checkpoint that was not written, to the alarm the first of several in a row, and goes on."""
        try:
            save()
        except StoreError as error:
            # The older checkpoints are whole, and the run is worth more than this one.
            LOG.error("%s", error)
            if self.meter.alarm is not None and not self.unsaved:
                self.meter.alarm.call(str(error))
            self.unsaved = True
        else:
            self.unsaved = False

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
        self.meter.close()


def _alarm(p: TrainParams, rank: int) -> AbstractContextManager[Alarm | None]:
    """Worker 0 watches. Of an error that ends it, it tells when it is alone: after others, all are started again."""
    if rank:
        return nullcontext()
    alarm = Alarm(command_hook(p.alarm) if p.alarm else LOG.error, stall_s=p.stall_s)
    return alarm if p.workers == 1 else closing(alarm)


def _share(loader: Loader, rank: int, size: int) -> Iterator[Batch]:
    """Every `size`-th batch of a pass from `rank` on, one at a time in memory."""
    return (loader.batch(0, number, offset=0) for number in range(rank, len(loader.plan(0)), size))
