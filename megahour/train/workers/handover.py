"""Hands over state when the group of workers changes: what each keeps, and what it takes from the furthest one.

A round lies between two moments at which all workers have the same model: a step, or a block for bmuf and local_sgd.
When a worker is lost, some of the others may have finished the round:

    none has finished it    a step is undone and repeated by the remaining workers (`Undo`); a block stays open: each
                            keeps what it has trained, and the lost worker's batches are owed
    some have finished it   their model includes the lost worker's part; the others take it, and the round is over
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from megahour.learn.step import Trainer
from megahour.learn.step_totals import Audit, TrainedTotals
from megahour.sync.group.base import Group
from megahour.train.checkpoints import Position


class Undo(NamedTuple):
    """A worker's own state before a step: its synchroniser's, and its optimiser's if that is not shared."""

    sync: dict[str, Tensor]
    optimiser: dict[Tensor, dict[str, Any]] | None

    @staticmethod
    def of(trainer: Trainer) -> Undo:
        optimiser = None
        if trainer.p.synchroniser.own_optimiser:
            optimiser = {
                parameter: {name: v.clone() if isinstance(v, Tensor) else v for name, v in state.items()}
                for parameter, state in trainer.optimiser.state.items()
            }
        return Undo(trainer.synchroniser.state(), optimiser)


@dataclass
class Round:
    """The current round: where it began, and this worker's part of it.

    open: its steps are done, but the meeting at its end has not happened. prepared: of replicas (`replicas`).
    """

    first: int = 0
    owed: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    totals: TrainedTotals = field(default_factory=lambda: TrainedTotals(Audit()))
    open: bool = False
    prepared: bool = False
    undo: Undo | None = None

    def begin(self, at: Position) -> None:
        """Begin the next round, at position `at`."""
        self.first, self.owed, self.own = at.done, list(at.owed), []
        self.totals, self.open, self.prepared, self.undo = TrainedTotals(Audit()), False, False, None

    def begun(self, at: Position) -> bool:
        """Whether any step of the round has been taken at position `at`."""
        return self.first != at.done or self.owed != at.owed

    def owed_now(self, at: Position, group: Group) -> list[int]:
        """Batches below `at.done` that no worker of `group` has trained on. A collective call."""
        counts = group.all_gather(torch.tensor([len(self.own)])).wait()
        mine = torch.full((max(1, int(counts.max())),), -1)
        mine[: len(self.own)] = torch.tensor(self.own, dtype=torch.int64)
        done = set(group.all_gather(mine).wait().flatten().tolist())
        return sorted({*self.owed, *range(self.first, at.done)} - done)


@dataclass
class KeptStates:
    """The previous group's synchroniser states: this worker's, and that of a worker that was further, if any."""

    own: dict[str, Tensor]
    peer: dict[str, Tensor] | None = None


def agree(
    trainer: Trainer, at: Position | None, here: Round, kept: KeptStates, group: Group, *, behind: bool
) -> Position:
    """Bring this worker to worker 0's state, atomically; `here` and `kept` become equal to worker 0's.

    A collective call, in which no worker is further than worker 0. at: None for a new worker. behind: whether workers
    differ; if not, nothing is sent.
    """
    if not behind:
        assert at is not None
        _settle(trainer, here, kept)
        return at
    if group.rank == 0:
        assert at is not None
        _settle(trainer, here, kept)
        broadcast(header_of(at, here), group)
        broadcast(_packed_state(trainer, kept), group)
        return at
    header, weights = broadcast(b"", group), broadcast(b"", group)
    state, tensors = json.loads(header), safetensors.torch.load(weights)
    if at is not None and list(standing(at, here)) == state["far"]:
        _settle(trainer, here, kept)
        return at
    _take(trainer, tensors, keep_optimiser=at is not None and trainer.p.synchroniser.own_optimiser)
    kept.peer = {name.removeprefix("sync."): tensors[name] for name in tensors if name.startswith("sync.")}
    at = position_of_header(state)
    here.begin(at)
    here.first, here.owed, here.open = state["round"]
    return at


def position_of_header(state: Mapping[str, Any]) -> Position:
    """The position in a worker's header (`header_of`), as JSON values."""
    at = Position.of(state["position"], same_workers=True)
    at.audit, at.row_due, at.owed = Audit(**state["audit"]), state["row_due"], state["owed"]
    at.rounds = state["far"][0]
    return at


def far(at: Position | None) -> tuple[int, int]:
    """(finished rounds, rows of the curves); (-1, -1): not begun."""
    return (-1, -1) if at is None else (at.rounds, len(at.curves.rows))


def standing(at: Position | None, here: Round) -> tuple[int, ...]:
    """`far`, and 1 if the steps of the round after it are done (`Round.open`), else 0.

    If a worker is lost while the group forms, some of the others may notice before their first step, and some only at
    the end of a block.
    """
    return far(at) if at is None else (*far(at), int(here.open))


def _settle(trainer: Trainer, here: Round, kept: KeptStates) -> None:
    """Undo an interrupted step, since no worker has finished it."""
    if here.undo is None:
        return
    undo, here.undo = here.undo, None
    kept.own = undo.sync
    if undo.optimiser is not None:
        trainer.optimiser.state.clear()
        trainer.optimiser.state.update(undo.optimiser)


def header_of(at: Position, here: Round) -> bytes:
    """A worker's header: its position, and where its round began."""
    known = {"far": standing(at, here), "position": at.state(at.done), "row_due": at.row_due, "owed": at.owed}
    return json.dumps(known | {"audit": at.audit.numbers(), "round": [here.first, here.owed, here.open]}).encode()


def _packed_state(trainer: Trainer, kept: KeptStates) -> bytes:
    """Worker 0's weights, optimiser and synchroniser states, as safetensors."""
    tensors = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in trainer.model_tensors().items()}
    sync = {f"sync.{name}": tensor.contiguous() for name, tensor in (kept.peer or kept.own).items()}
    return safetensors.torch.save(tensors | sync)


def _take(trainer: Trainer, tensors: Mapping[str, Tensor], *, keep_optimiser: bool) -> None:
    if keep_optimiser:
        tensors = {name: tensor for name, tensor in tensors.items() if name.startswith("weights.")}
    else:
        trainer.optimiser.state.clear()
    trainer.restore_model(tensors)


def broadcast(data: bytes, group: Group, source: int = 0) -> bytes:
    """The data of rank `source`, on all workers."""
    length = torch.tensor([len(data)])
    group.broadcast(length, source)
    vector = torch.frombuffer(bytearray(data or bytes(int(length))), dtype=torch.uint8)
    group.broadcast(vector, source)
    return vector.numpy().tobytes()
