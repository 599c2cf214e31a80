"""`loop_with_others` for models that replicas of `parallel.shard` workers hold in parts (FSDP2 inside, dense between).

    rank      0  1 | 2  3 | 4  5        shard: 2
    part      0  1 | 0  1 | 0  1        a lost worker 3 takes 2 along: 0, 1, 4 and 5 form the next group (`quorum`)

Every group is new, so its workers wrap the model again (torch's sharded modules are bound to their process group), and
fill it with the parts that they keep. A worker whose part is void takes it from the first that has the same part.

**All end a step, or none.** Each part has an exchange of its own: without more, a loss could leave one part of a model
with a step and another part without it. So a step has two phases. The optimiser waits, with the agreed gradient, until
the totals of all workers have arrived, which every worker sends when it is `prepared`. If a worker has all totals and
has stepped, all others in its group are prepared, and step in the next group, by themselves. If none has, none does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from torch import Tensor, nn

from megahour.batches.loader import Batch
from megahour.learn.job import TrainingJob
from megahour.learn.step import Gradients, named_tensors
from megahour.learn.step_totals import TrainedTotals
from megahour.parallel.modes import trainer_of
from megahour.parallel.parts import PartsTrainer
from megahour.sync.group.base import Group
from megahour.train.batch_assignment import Claim
from megahour.train.checkpoints import Position, clear_unfinished, newest, position_of
from megahour.train.loop import synchronise
from megahour.train.result import Result
from megahour.train.workers import handover
from megahour.train.workers.loop_with_others import RunWithOthers, WorkerWithOthers, through_groups
from megahour.train.workers.membership import ENDED, TAKEN, GroupMember, Place


def execute_of_replica(
    job: TrainingJob, member: GroupMember, work: Path, progress: Callable[..., None], durable: str = ""
) -> Result | None:
    """`loop_with_others.execute_with_others` for a job whose model is in parts."""
    trainer_of(job.params)  # to import here what takes a second, rather than in a group, where others wait
    return through_groups(WorkerOfReplica(job, None, member, work, progress, durable))


class HeldPart(NamedTuple):
    """A worker's part of weights and optimiser, which outlives the groups in which it is trained."""

    names: Sequence[str]
    parameters: Sequence[nn.Parameter]
    optimiser: torch.optim.Optimizer

    def tensors(self) -> dict[str, Tensor]:
        """Weights and the optimiser's state, by name; not copies."""
        return named_tensors(self.names, self.parameters, self.optimiser)


class WorkerOfReplica(WorkerWithOthers):
    """One worker and its part of the model, through successive groups."""

    _held: HeldPart | None = None

    @property
    def _run(self) -> type[RunWithOthers]:
        return RunOfReplica

    def meet(self) -> Place:
        """Wait for a place, and give up what does not count any more, before anything else can fail."""
        place = super().meet()
        if place.fresh or place.part == TAKEN:
            self.at = self._held = None
        if place.fresh or place.part != ENDED:
            self._round.prepared = False
        return place

    def _begin(self, group: Group) -> Position:
        trainer = self._wrapped(group)
        checkpoint, at = newest(self._checkpoints, group, self._job.fingerprint), Position()
        if checkpoint is not None:
            trainer.restore(checkpoint.tensors, checkpoint.states)
            at = position_of(checkpoint, group, common=True)
        self._held = HeldPart(trainer.names, trainer.parameters, trainer.optimiser)
        self._round.begin(at)
        return at

    def _go_on(self, group: Group, place: Place) -> Position:
        clear_unfinished(self._checkpoints, group)
        agreed = self._settle(group, place)
        trainer = self._wrapped(group)
        tensors = {} if self._held is None else self._held.tensors()
        if place.behind:
            tensors = _of_peers(trainer.peers, tensors, takes=place.part == TAKEN)
        trainer.restore_model(tensors)
        trainer.regroup(synchronise(self._job, trainer.peers))
        self._held = HeldPart(trainer.names, trainer.parameters, trainer.optimiser)
        if self.at is None:
            assert agreed is not None
            self.at = agreed
            self._round.begin(agreed)
        return self.at

    def _settle(self, group: Group, place: Place) -> Position | None:
        """End a prepared step if it counts. The furthest worker's position, unless all have the same."""
        if not place.behind:
            return None
        mine = handover.header_of(self.at, self._round) if group.rank == place.source and self.at is not None else b""
        agreed = handover.position_of_header(json.loads(handover.broadcast(mine, group, place.source)))
        if place.part == ENDED:
            assert self._held is not None
            self._held.optimiser.step()
        if self.at is not None and handover.far(self.at) != handover.far(agreed):
            self.at = agreed
            self._round.begin(agreed)
        return agreed

    def _wrapped(self, group: Group) -> PartsTrainer:
        """A trainer in `group`, with the values that a training begins with."""
        job = self._job
        self._trainer = trainer = trainer_of(job.params)(job.params, job.config, partial(synchronise, job), group)
        return trainer

    def _model(self, group: Group) -> dict[str, Tensor]:
        """The whole model, on the first worker, once the workers of all replicas need not wait for each other."""
        model = self._trainer.model()
        group.all_gather(torch.zeros(1)).wait()
        return model

    def _leave(self) -> None:
        self._trains = False
        if (trainer := self.__dict__.pop("_trainer", None)) is not None:
            trainer.__exit__()
            trainer.leave()
        self._member.leave()


def _of_peers(peers: Group, tensors: dict[str, Tensor], *, takes: bool) -> dict[str, Tensor]:
    """This worker's tensors or, if it `takes` them, those of the first worker that has the same part."""
    if not peers.all_gather(torch.tensor([int(takes)])).wait().any():
        return tensors
    copies = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    packed = handover.broadcast(safetensors.torch.save(copies) if peers.rank == 0 else b"", peers)
    return safetensors.torch.load(packed) if takes else tensors


class RunOfReplica(RunWithOthers):
    """`RunWithOthers` whose steps end in two phases, of which the second is local."""

    def _update(self, claim: Claim, batches: Sequence[Batch], gradients: Gradients | None, rate: float) -> None:
        own = TrainedTotals.of(batches, gradients)
        agreed: list[TrainedTotals] = []

        def agree() -> None:
            self.round.prepared = True
            agreed.append(self.totals.of_all(own))

        with _before_update(self.trainer.optimiser, agree):
            self.trainer.apply(gradients, rate, self.at.steps + 1)
        if not agreed:  # no worker had a frame, so there was nothing to step with
            agree()
        self._passed(claim)
        self._over(agreed[0])


@contextmanager
def _before_update(optimiser: torch.optim.Optimizer, call: Callable[[], None]) -> Iterator[None]:
    """Inside the `with` block, `optimiser.step()` begins with `call()`."""
    hook = optimiser.register_step_pre_hook(lambda *_: call())
    try:
        yield
    finally:
        hook.remove()
