"""What workers whose group has changed keep of their own, and take from the one that is furthest.

Rounds are what lies between two moments at which all have the same model: steps, or with bmuf and local_sgd blocks.
When a worker is lost, some of the others have ended the round and some have not:

    all are in the round    a step has not happened, and is made again by those left (`Undo`); a block stays open: each
                            keeps what it has trained, and batches of the lost one are owed
    some have ended it      the lost worker's part is in their model. The others take that, and the round is over
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from megahour.sync.group.base import Group
from megahour.train.checkpoints import Position
from megahour.train.coverage_audit import Audit
from megahour.train.step import Trainer
from megahour.train.step_totals import TrainedTotals


class Undo(NamedTuple):
    """What a worker had of its own before a step: of its synchroniser, and of its optimiser where that is its own."""

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
    """The round under way: where it began, and this worker's part of it.

    `open`: its steps are done, and only the meeting at its end is not.
    """

    first: int = 0
    owed: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    totals: TrainedTotals = field(default_factory=lambda: TrainedTotals(Audit()))
    open: bool = False
    undo: Undo | None = None

    def begin(self, at: Position) -> None:
        """The next one, from `at` on."""
        self.first, self.owed, self.own = at.done, list(at.owed), []
        self.totals, self.open, self.undo = TrainedTotals(Audit()), False, None

    def begun(self, at: Position) -> bool:
        """Whether a step of it has been made by the time that the run is at `at`."""
        return self.first != at.done or self.owed != at.owed

    def owed_now(self, at: Position, group: Group) -> list[int]:
        """Batches below `at.done` that no worker of `group` has done. A collective call."""
        counts = group.all_gather(torch.tensor([len(self.own)])).wait()
        mine = torch.full((max(1, int(counts.max())),), -1)
        mine[: len(self.own)] = torch.tensor(self.own, dtype=torch.int64)
        done = set(group.all_gather(mine).wait().flatten().tolist())
        return sorted({*self.owed, *range(self.first, at.done)} - done)


@dataclass
class KeptStates:
    """States of the synchroniser of the group before: `own`, and of who was further, if one was."""

    own: dict[str, Tensor]
    peer: dict[str, Tensor] | None = None


def agree(
    trainer: Trainer, at: Position | None, here: Round, kept: KeptStates, group: Group, *, behind: bool
) -> Position:
    """Brings this worker to where worker 0 is, all at once or not at all. `here` and `kept` become as they are there.

    A collective call, of which worker 0 is as far as any. `at`: None of a worker that is new. `behind`: one is not as
    far as another; else nothing is sent.
    """
    if not behind:
        assert at is not None
        _settle(trainer, here, kept)
        return at
    if group.rank == 0:
        assert at is not None
        _settle(trainer, here, kept)
        _broadcast(_told(at, here), group)
        _broadcast(_held(trainer, kept), group)
        return at
    told, held = _broadcast(b"", group), _broadcast(b"", group)
    state, tensors = json.loads(told), safetensors.torch.load(held)
    if at is not None and far(at) == tuple(state["far"]):
        _settle(trainer, here, kept)
        return at
    _take(trainer, tensors, keep_optimiser=at is not None and trainer.p.synchroniser.own_optimiser)
    kept.peer = {name.removeprefix("sync."): tensors[name] for name in tensors if name.startswith("sync.")}
    at = Position.of(state["position"], same_workers=True)
    at.audit, at.row_due, at.owed = Audit(**state["audit"]), state["row_due"], state["owed"]
    at.rounds = state["far"][0]
    here.begin(at)
    here.first, here.owed, here.open = state["round"]
    return at


def far(at: Position | None) -> tuple[int, int]:
    """Rounds that are over, and rows of the curves; (-1, -1): not begun."""
    return (-1, -1) if at is None else (at.rounds, len(at.curves.rows))


def _settle(trainer: Trainer, here: Round, kept: KeptStates) -> None:
    """No one is further: a step that was interrupted has not happened."""
    if here.undo is None:
        return
    undo, here.undo = here.undo, None
    kept.own = undo.sync
    if undo.optimiser is not None:
        trainer.optimiser.state.clear()
        trainer.optimiser.state.update(undo.optimiser)


def _told(at: Position, here: Round) -> bytes:
    known = {"far": far(at), "position": at.state(at.done), "row_due": at.row_due, "owed": at.owed}
    return json.dumps(known | {"audit": at.audit.numbers(), "round": [here.first, here.owed, here.open]}).encode()


def _held(trainer: Trainer, kept: KeptStates) -> bytes:
    """Worker 0's weights and optimiser, and what its synchroniser knew."""
    tensors = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in trainer.model_tensors().items()}
    sync = {f"sync.{name}": tensor.contiguous() for name, tensor in (kept.peer or kept.own).items()}
    return safetensors.torch.save(tensors | sync)


def _take(trainer: Trainer, tensors: Mapping[str, Tensor], *, keep_optimiser: bool) -> None:
    if keep_optimiser:
        tensors = {name: tensor for name, tensor in tensors.items() if name.startswith("weights.")}
    else:
        trainer.optimiser.state.clear()
    trainer.restore_model(tensors)


def _broadcast(data: bytes, group: Group) -> bytes:
    """Those of worker 0."""
    length = torch.tensor([len(data)])
    group.broadcast(length)
    vector = torch.frombuffer(bytearray(data or bytes(int(length))), dtype=torch.uint8)
    group.broadcast(vector)
    return vector.numpy().tobytes()
