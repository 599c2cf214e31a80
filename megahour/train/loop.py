"""The training loop: an ordinary one over the batches of a schedule, that can be stopped at any moment.

    while batches are left:
        claim the next batches          (`batch_assignment`: in turn, or first come first served)
        save what a checkpoint is due for
        gradients of this worker's batch, in `threads` replicas
        agree on them with the other workers and step       (`megahour.sync`)
        measure; now and then a row of the curves, with the held-out loss

A step splits its batch over `threads` replicas. Each replica is one Python thread with one torch thread that runs
forward and backward of its share through the same parameters, and the gradients are added in order. Two replicas beat
two OpenMP threads inside every small matrix product by far, and the sum does not depend on timing.
"""

from __future__ import annotations

import bisect
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from megahour.batches.loader import Batch, Loader
from megahour.core.errors import StageError
from megahour.core.records import key_of
from megahour.monitor.alerts import Alarm, command_hook
from megahour.sync.checkpoint import Checkpoints
from megahour.sync.group.base import Group, WorkerLostError
from megahour.sync.trainers.base import Synchroniser
from megahour.train import criteria, result
from megahour.train.batch_assignment import Claim, Claims, FirstCome, InTurn, Marks, SharedStore
from megahour.train.checkpoints import CHECKPOINTS, Position, Saving, newest, position_of
from megahour.train.job import TrainingJob
from megahour.train.meters import Curves, RunMeters, Sums
from megahour.train.params import TrainParams
from megahour.train.schedule import Phase, learning_rate

LOG = logging.getLogger(__name__)


def execute(
    job: TrainingJob, group: Group, work: Path, progress: Callable[..., None], store: SharedStore | None = None
) -> result.Result:
    """Train `job` to the end of its schedule as one of the workers of `group`; every one returns the same model.

    `store` is one that all workers see, new in every start of theirs; None for a single worker.

    Raises
    ------
    StageError: the schedule is empty, or a loss, here or on another worker, is not finite.
    WorkerLostError: start all again; they go on from the last checkpoint in `work`.
    """
    p = job.params

    def synchronise(module: nn.Module, optimiser: torch.optim.Optimizer) -> Synchroniser:
        steps = -(-sum(map(len, job.phases)) // group.size)
        return p.synchroniser.for_run(steps).make(module, optimiser, group=group)

    with (
        _alarm(p, group.rank) as alarm,
        Trainer(job.module, synchronise, threads=p.threads, seed=p.seed, weight_decay=p.weight_decay) as trainer,
        Checkpoints(work / CHECKPOINTS, rank=group.rank, size=group.size, patience_s=p.timeout_s) as saver,
    ):
        run = Run(job, trainer, group, saver, work, progress, alarm)
        try:
            curves = run.to_the_end(store)
        finally:
            run.meters.close()
    return result.of(job, curves)


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
        self.job, self.trainer, self.group = job, trainer, group
        self.ends = list(accumulate(len(phase) for phase in job.phases))
        self.total = self.ends[-1] if self.ends else 0
        self.in_step = job.params.synchroniser.in_step
        found = newest(work / CHECKPOINTS, group, job.fingerprint)
        if found is not None:
            trainer.restore(found.tensors, found.states)
        self.at = Position() if found is None else position_of(found, group)
        self.saving = Saving(saver, job.fingerprint, alarm)
        self.meters = RunMeters(job.params, group, work, progress, alarm, after=self.at.steps)

    def to_the_end(self, store: SharedStore | None) -> Curves:
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
        self.saving.wait()  # what is trained is worth more than its last checkpoint
        return self.at.curves

    def _claims(self, store: SharedStore | None) -> tuple[Claims, Marks]:
        p, at = self.job.params, self.at.done
        unit = self.group.size if self.in_step else p.synchroniser.node_workers
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
        for batch in self.meters.timed(self._batches(claim.own)):
            gradients, frames = self.trainer.gradients(batch, claim.own or 0), int(batch.lengths.sum())
        self.trainer.apply(gradients, rate, claim.first)
        if gradients is not None:
            at.sums.add(gradients.loss, gradients.weight, gradients.correct)
            at.audit.add(batch.keys)
        before, at.done, at.steps = at.done, claim.last, at.steps + 1
        metrics = self.trainer.synchroniser.metrics
        loss = None if gradients is None else gradients.loss / gradients.weight
        self.meters.step(at.steps, at.done, self.total, phase, frames, loss, {"learning_rate": rate, **metrics})
        if metrics.get("lost_neighbours"):
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
            with self.meters.aside("evaluation_s"):
                own = self.trainer.evaluate(self.meters.alive(share or _share(self.job.held_out, 0, 1)))
            held = self._together(Sums(*own))
            fields |= {"held_out_loss": held.mean_loss, "held_out_accuracy": held.accuracy}
        at.sums = Sums()
        if at.done == self.total:
            fields |= at.audit.of_all(self.group)
        self.meters.row(at.curves.add(**fields))

    def _together(self, sums: Sums) -> Sums:
        """Sums over the workers, added in the order of ranks; of this worker where they are not in step."""
        if not self.in_step:
            return sums
        own = torch.tensor([sums.loss, sums.weight, sums.correct], dtype=torch.float64)
        loss, weight, correct = (sum(column) for column in self.group.all_gather(own).wait().T.tolist())
        return Sums(loss, round(weight), round(correct))

    def _checkpoint(self, done: int) -> None:
        with self.meters.aside("checkpoint_s"):
            self.saving.save(done, self.at, self.trainer.tensors())


class Gradients(NamedTuple):
    """Gradients of the mean loss, and the batch's summed loss, weight and correct frames."""

    values: list[Tensor]
    loss: float
    weight: int
    correct: int


class Trainer:
    """One worker: module, optimiser, synchroniser, and the replicas that compute gradients. Use as a context manager.

    `synchronise` makes the synchroniser of module and optimiser (`sync.build` with its options).
    """

    def __init__(
        self,
        module: nn.Module,
        synchronise: Callable[[nn.Module, torch.optim.Optimizer], Synchroniser],
        *,
        threads: int,
        seed: int,
        weight_decay: float = 0.0,
    ) -> None:
        self.module, self.threads, self.seed = module, threads, seed
        self.names, self.parameters = zip(*module.named_parameters(), strict=True)
        self.optimiser = torch.optim.AdamW(self.parameters, lr=0.0, weight_decay=weight_decay)
        self.synchroniser = synchronise(module, self.optimiser)
        torch.set_num_threads(1)
        self._pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def gradients(self, batch: Batch, step: int) -> Gradients:
        """Gradients of the mean loss of `batch`; dropout is drawn from (seed, step, replica)."""
        weight = max(1, criteria.weight(batch))
        replicas = min(self.threads, len(batch.keys))
        work = [self._pool.submit(self._share, batch.part(r, replicas), weight, step, r) for r in range(replicas)]
        shares = [future.result() for future in work]
        values = list(shares[0].values)
        for share in shares[1:]:
            torch._foreach_add_(values, share.values)
        loss, correct = math.fsum(share.loss for share in shares), sum(share.correct for share in shares)
        return Gradients(values, loss, weight, correct)

    def _share(self, batch: Batch, weight: int, step: int, replica: int) -> Gradients:
        generator = torch.Generator().manual_seed(key_of("dropout", self.seed, step, replica))
        loss = criteria.loss(self.module, batch, generator)
        values = torch.autograd.grad(loss.total / weight, self.parameters)
        return Gradients(list(values), float(loss.total.detach()), weight, loss.correct)

    def apply(self, gradients: Gradients | None, learning_rate: float, step: int) -> None:
        """One step of the synchroniser: clip, agree, update. None: there was no batch for this worker.

        Raises
        ------
        StageError: loss or gradient is not finite.
        WorkerLostError: see `Synchroniser.step`.
        """
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate
        for number, parameter in enumerate(self.parameters):
            parameter.grad = gradients.values[number] if gradients else None
        loss = gradients.loss / gradients.weight if gradients else 0.0
        if math.isfinite(loss):
            self.synchroniser.step(weight=gradients.weight if gradients else 0.0)
        norm = self.synchroniser.metrics.get("gradient_norm", 0.0)
        if not math.isfinite(loss) or not math.isfinite(norm):
            what = f"loss {loss} with gradient norm {norm}" if math.isfinite(loss) else f"loss {loss}"
            raise StageError(
                f"{what} at step {step}, learning rate {learning_rate:.2g}",
                where="train",
                remedy="lower learning_rate or clip; if it happens at step 0, look for NaN in the features",
            )

    def evaluate(self, batches: Iterable[Batch]) -> tuple[float, int, int]:
        """Summed loss, weight and correct frames, without dropout."""
        loss, weight, correct = 0.0, 0, 0
        for batch in batches:
            replicas = min(self.threads, len(batch.keys))
            shares = list(self._pool.map(self._score, [batch.part(r, replicas) for r in range(replicas)]))
            loss += math.fsum(share.total.item() for share in shares)
            weight += criteria.weight(batch)
            correct += sum(share.correct for share in shares)
        return loss, weight, correct

    def _score(self, batch: Batch) -> criteria.Loss:
        with torch.no_grad():
            return criteria.loss(self.module, batch)

    def tensors(self) -> dict[str, Tensor]:
        """Weights, optimiser and synchroniser state by name."""
        found = {f"weights.{name}": p.detach() for name, p in zip(self.names, self.parameters, strict=True)}
        for name, parameter in zip(self.names, self.parameters, strict=True):
            for part, tensor in self.optimiser.state.get(parameter, {}).items():
                found[f"{part}.{name}"] = tensor
        return found | {f"sync.{name}": tensor for name, tensor in self.synchroniser.state().items()}

    def restore(self, tensors: Mapping[str, Tensor], states: Sequence[Mapping[str, Tensor]]) -> None:
        """Put back what `tensors` gave, and the synchroniser's `states` of all workers."""
        with torch.no_grad():
            for name, parameter in zip(self.names, self.parameters, strict=True):
                parameter.copy_(tensors[f"weights.{name}"])
                state = {part: tensors[f"{part}.{name}"] for part in _ADAM if f"{part}.{name}" in tensors}
                if state:
                    self.optimiser.state[parameter] = state
        self.synchroniser.restore(states)


_ADAM = ("step", "exp_avg", "exp_avg_sq")


def _alarm(p: TrainParams, rank: int) -> AbstractContextManager[Alarm | None]:
    """Worker 0 watches. Of an error that ends it, it tells when it is alone: after others, all are started again."""
    if rank:
        return nullcontext()
    alarm = Alarm(command_hook(p.alarm) if p.alarm else LOG.error, stall_s=p.stall_s)
    return alarm if p.workers == 1 else closing(alarm)


def _share(loader: Loader, rank: int, size: int) -> Iterator[Batch]:
    """Every `size`-th batch of a pass from `rank` on, one at a time in memory."""
    return (loader.batch(0, number, offset=0) for number in range(rank, len(loader.plan(0)), size))
