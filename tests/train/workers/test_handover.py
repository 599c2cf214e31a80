"""A worker is lost at any call of a training, and a new one joins: each batch is trained on and counted once.

The gradient of batch n is 1 in row n of the model and 0 elsewhere, so that the model says what it was trained on. The
workers are virtual: the loss strikes at an exact place, which differs by worker, as it does on a network.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from megahour.learn.params import TrainParams
from megahour.learn.step import Gradients, Trainer
from megahour.learn.step_totals import StepTotals, TrainedTotals
from megahour.sync.group import virtual
from megahour.sync.group.base import WorkerLostError
from megahour.sync.group.torch_group import TorchGroup
from megahour.sync.group.virtual import VirtualGroup
from megahour.train.batch_assignment import Claim, InTurn
from megahour.train.loop import synchronise
from megahour.train.workers.handover import far, standing
from megahour.train.workers.loop_with_others import RunWithOthers, WorkerWithOthers
from megahour.train.workers.membership import Place

BATCHES, WIDTH, WORKERS = 10, 64, 3
OPTIONS: dict[str, dict[str, Any]] = {
    "dense": {},
    "gtc": {"threshold": 0.5},
    "gtc update": {"form": "update", "density": 0.02},
    "bmuf": {"block_steps": 2, "eta": 0.0},
    "local_sgd": {"period_steps": 3, "warmup_steps": 1},
}


class LostError(Exception):
    """This worker is lost."""


class Breaking:
    """A group whose call number `at` breaks: before it has begun, or for this worker when it has ended for others."""

    def __init__(self, group: VirtualGroup, at: int, error: type[Exception], *, ended: bool) -> None:
        self._group, self._left, self._error, self._ended = group, at, error, ended
        self.rank, self.size, self.traffic = group.rank, group.size, group.traffic

    def _call(self, call: Callable[..., Any], *arguments: Any) -> Any:
        self._left -= 1
        if self._left == -1 and not self._ended:
            raise self._error("cut off")
        work = call(*arguments)
        if self._left == -1:
            if work is not None:
                work.wait()
            raise self._error("cut off")
        return work

    def all_gather(self, tensor: Tensor) -> Any:
        return self._call(self._group.all_gather, tensor)

    def all_reduce(self, tensor: Tensor) -> Any:
        return self._call(self._group.all_reduce, tensor.clone() if self._left == 0 else tensor)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        self._call(self._group.broadcast, tensor, source)


class Journal(RunWithOthers):
    """Records which worker had which batches at the end of a round, for attempted and for completed ones."""

    tried: dict[tuple[int, int], dict[int, list[int]]]
    ended: dict[int, dict[int, list[int]]]
    epoch: int
    me: int

    def _update(self, claim: Claim, *rest: Any) -> None:
        if self._in_blocks() is None:
            self._try(claim.own)
        super()._update(claim, *rest)

    def _meet(self) -> None:
        self._try(self.round.own)
        super()._meet()

    def _try(self, numbers: Any) -> None:
        self.tried.setdefault((self.epoch, self.at.rounds), {})[self.me] = list(numbers)

    def _over(self, totals: TrainedTotals) -> None:
        self.ended[self.at.rounds] = self.tried[self.epoch, self.at.rounds]
        super()._over(totals)


class OneWorker:
    """What `WorkerWithOthers` and `RunWithOthers` do, without files and a coordinator."""

    regroups_after = BATCHES  # rounds

    def __init__(self, p: TrainParams, folder: Path, me: int, tried: Any, ended: Any) -> None:
        self.me, self.tried, self.ended = me, tried, ended
        self.job: Any = SimpleNamespace(params=p, phases=[range(BATCHES)], fingerprint="")
        module = nn.Linear(WIDTH, BATCHES, bias=False)
        nn.init.zeros_(module.weight)
        self.trainer = Trainer(p, module, synchronise(self.job, TorchGroup()))
        member: Any = SimpleNamespace(leave=lambda: None)
        self.worker = WorkerWithOthers(self.job, self.trainer, member, folder, lambda: None, "")

    def train(self, group: VirtualGroup, place: Place, breaking: Callable[[VirtualGroup], Any]) -> int | None:
        """The calls that it took; None: a worker was lost."""
        worker, trainer = self.worker, self.trainer
        around: Any = breaking(group)
        try:
            worker.at = at = worker._begin(around) if place.fresh else worker._go_on(around, place)
            worker._trains = True
            run = Journal.__new__(Journal)
            run.tried, run.ended, run.epoch, run.me = self.tried, self.ended, place.epoch, self.me
            run.job, run.trainer, run.group, run.at, run.total = self.job, trainer, around, at, BATCHES
            run.round, run.totals = worker._round, StepTotals(around, lambda: False)
            run._end_what_is_open()
            claims = InTurn(around, at.done, BATCHES, 1, at.owed)
            while (claim := claims.take()) is not None:
                batches: Any = [SimpleNamespace(keys=[number]) for number in claim.own]
                run._update(claim, batches, gradient(claim.own), 1.0)
                if at.rounds == self.regroups_after and run._between_rounds():
                    raise WorkerLostError("a worker waits to join")
            trainer.synchroniser.finish()
        except WorkerLostError:
            worker._leave()
            return None
        return -around._left - 1

    def waiting(self, rounds: int) -> Tensor:
        """This worker's residual after that many steps."""
        undo, at = self.worker._round.undo, self.worker.at
        interrupted = undo is not None and at is not None and at.rounds == rounds
        state = undo.sync if undo is not None and interrupted else self.trainer.synchroniser.state()
        rows = state.get("rows", torch.zeros(0, BATCHES * WIDTH))
        return rows.sum(0).view(BATCHES, WIDTH)


def gradient(numbers: Any) -> Gradients | None:
    if not numbers:
        return None
    values = torch.zeros(BATCHES, WIDTH)
    values[list(numbers)] = 1.0
    zero = torch.zeros((), dtype=torch.float64)
    return Gradients([values], zero, len(numbers), zero)


def standing_of(one: OneWorker) -> tuple[int, ...]:
    return standing(one.worker.at, one.worker._round)


def whole(group: VirtualGroup) -> Any:
    return Breaking(group, -1, LostError, ended=False)


SGD: dict[str, Any] = {"optimiser": "sgd", "optimiser_options": {"momentum": 0.0, "nesterov": False}}


def play(
    folder: Path, name: str, call: int, *, ended: bool, joined: bool, optimiser: dict[str, Any] = SGD
) -> tuple[Tensor, list[OneWorker], int]:
    """Worker 2 is lost in call number `call`. With `ended` the call has ended on worker 0, and not on worker 1.

    The lost one's residual; the others and, with `joined`, the new one; calls.
    """
    p = TrainParams(
        trainer=name.split()[0],
        trainer_options=OPTIONS[name],
        **{"workers": WORKERS, "faults": "continue", "clip": 1e6, "threads": 1, **optimiser},
    )
    journal: tuple[Any, Any] = ({}, {})
    workers = [OneWorker(p, folder, me, *journal) for me in range(WORKERS)]

    def first(group: VirtualGroup) -> int | None:
        errors: list[type[Exception]] = [LostError, WorkerLostError, LostError]

        def breaking(group: VirtualGroup) -> Any:
            breaks = group.rank == 2 or (group.rank == 1 and ended)
            return Breaking(group, call if breaks else -1, errors[group.rank], ended=ended)

        try:
            return workers[group.rank].train(group, Place(0, group.rank, WORKERS, True, False, 0), breaking)
        except LostError:
            return None

    calls = virtual.run(first, WORKERS)
    if None not in calls:
        return torch.zeros(1), workers, calls[0]
    after = sorted(workers[:2], key=standing_of, reverse=True)
    lost = workers[2].waiting(far(after[0].worker.at)[0])
    behind = joined or standing_of(after[0]) != standing_of(after[1])
    fresh = far(after[0].worker.at) == (-1, -1)
    after += [OneWorker(p, folder, WORKERS, *journal)] if joined else []

    def second(group: VirtualGroup) -> int | None:
        place = Place(1, group.rank, len(after), fresh, behind and not fresh, 1)
        return after[group.rank].train(group, place, whole)

    assert None not in virtual.run(second, len(after))
    return lost, after, 0


@pytest.mark.parametrize(("ended", "joined"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("name", OPTIONS)
def test_wherever_a_worker_is_lost_every_batch_is_trained_on_once(
    tmp_path: Path, name: str, ended: bool, joined: bool
) -> None:
    _, _, calls = play(tmp_path, name, 10**6, ended=False, joined=False)
    for call in range(calls - ended):  # who has ended the last one is through, and its result is that of the run
        lost, workers, _ = play(tmp_path, name, call, ended=ended, joined=joined)
        models = [one.trainer.parameters[0].detach() for one in workers]
        assert all(torch.equal(model, models[0]) for model in models)
        for one in workers:
            assert one.worker.at is not None
            assert one.worker.at.audit.numbers() == {"pieces": BATCHES, "keys": sum(range(BATCHES))}
        owes = lost + sum(one.waiting(-2) for one in workers)
        found = (-owes if name == "gtc update" else owes) - models[0]  # residuals are of updates, or of gradients
        assert (found - shares_of(workers[0].ended)[:, None]).abs().max() < 1e-5, f"call {call}"


@pytest.mark.parametrize("name", ["bmuf", "local_sgd"])
def test_a_worker_is_lost_while_the_group_forms_and_only_one_of_the_others_notices(tmp_path: Path, name: str) -> None:
    """Worker 1 notices before its first step, worker 0 at the end of its block: both train on what is left of it."""
    p = TrainParams(
        trainer=name,
        trainer_options=OPTIONS[name],
        **{"workers": WORKERS, "faults": "continue", "clip": 1e6, "threads": 1, **SGD},
    )

    def grouped(epoch: int, members: list[OneWorker], call: int, *, ended: bool) -> list[int | None]:
        """The last of `members` is lost in call number `call`, for which see `Breaking`; calls of each."""
        fresh, behind = standing_of(members[0]) == (-1, -1), len({*map(standing_of, members)}) > 1
        errors = [LostError, WorkerLostError, LostError]

        def one(group: VirtualGroup) -> int | None:
            breaks = group.rank == 2 or (group.rank == 1 and ended)
            around = Breaking(group, call if breaks else -1, errors[group.rank], ended=ended)
            try:
                place = Place(epoch, group.rank, len(members), fresh, behind and not fresh, 1)
                return members[group.rank].train(group, place, lambda _: around)
            except LostError:
                return None

        return virtual.run(one, len(members))

    def played(call: int) -> tuple[list[OneWorker], int]:
        """The two that are left, and the calls of the second group if none is lost in it."""
        journal: tuple[Any, Any] = ({}, {})
        members = [OneWorker(p, tmp_path, me, *journal) for me in range(WORKERS)]
        for one in members[:2]:
            one.regroups_after = 1
        assert grouped(0, members[:2], -1, ended=False) == [None] * 2
        for one in members[:2]:
            one.regroups_after = BATCHES
        calls = grouped(1, members, call, ended=True)
        if calls[0] is not None:
            return members, calls[0]
        left = sorted(members[:2], key=standing_of, reverse=True)
        apart.append(standing_of(left[0]) != standing_of(left[1]))
        assert None not in grouped(2, left, -1, ended=False)
        return left, 0

    apart: list[bool] = []
    for call in range(played(10**6)[1] - 1):
        workers, _ = played(call)
        assert torch.equal(*(one.trainer.parameters[0].detach() for one in workers)), f"call {call}"
        for one in workers:
            assert one.worker.at is not None
            assert one.worker.at.audit.numbers() == {"pieces": BATCHES, "keys": sum(range(BATCHES))}, f"call {call}"
            assert one.worker.at.row_due is not None, "also if the block at whose end it is due was left open"
        shares_of(workers[0].ended)
    assert {*apart} == {True, False}


def shares_of(ended: dict[int, dict[int, list[int]]]) -> Tensor:
    """Of each batch, in the mean of the round in which it was trained on."""
    shares = torch.zeros(BATCHES)
    for owned in ended.values():
        for numbers in owned.values():
            assert not shares[numbers].any(), "once"
            shares[numbers] = len(numbers) / sum(map(len, owned.values()))
    return shares


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("name", ["gtc update", "bmuf"])
def test_a_workers_own_moments_come_from_what_it_was_trained_on(tmp_path: Path, name: str, ended: bool) -> None:
    """An interrupted and repeated step does not change them."""
    adamw = {"optimiser": "adamw"}
    _, _, calls = play(tmp_path, name, 10**6, ended=False, joined=False, optimiser=adamw)
    for call in range(5, calls - ended):
        _, workers, _ = play(tmp_path, name, call, ended=ended, joined=False, optimiser=adamw)
        for one in workers:
            own = sum(len(owned.get(one.me, ())) for owned in one.ended.values())
            steps = [int(state["step"]) for state in one.trainer.optimiser.state.values()]
            assert steps == ([own] if own else [])
