"""Where a run is, what it keeps of that, and how it goes on after it was stopped.

The place in the data is one number: the batches of all phases, one after the other, of which the first `done` are
behind. It means the same whatever the number of workers is, so that workers may be fewer or more after a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megahour.core.errors import StoreError
from megahour.monitor.alerts import Alarm
from megahour.sync.checkpoint import Checkpoints, set_aside
from megahour.sync.checkpoint_read import Checkpoint, load, newest_step
from megahour.sync.group.base import Group
from megahour.train.coverage_audit import Audit
from megahour.train.meters import Curves, Sums
from megahour.train.step_totals import TrainedTotals

LOG = logging.getLogger(__name__)


def checkpoints_of(work: Path, durable: str = "") -> str:
    """The folder of a training's checkpoints: where its output is, or in its work folder."""
    return f"{durable or work}/checkpoints"


@dataclass
class Position:
    """Where a run is: batches `done` of all workers, `steps` of this one, what it has summed up since the last row.

    `row_due`: the first batch of a step after which there is a row of the curves still to be made. With workers that
    come and go (`rounds`), `rounds`: those that are over since the last start of all; `owed`: batches below `done` that
    no one has trained on.
    """

    done: int = 0
    steps: int = 0
    sums: Sums = field(default_factory=Sums)
    curves: Curves = field(default_factory=Curves)
    audit: Audit = field(default_factory=Audit)
    row_due: int | None = None
    rounds: int = 0
    owed: list[int] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether the last row of the curves is there."""
        return bool(self.curves.rows) and "pieces" in self.curves.rows[-1]

    def add(self, totals: TrainedTotals) -> None:
        """What a step's batches were."""
        self.audit.take(totals.audit)
        self.sums.add(*totals.sums)

    def state(self, done: int) -> dict[str, Any]:
        return {"done": done, "steps": self.steps, "sums": vars(self.sums), "rows": self.curves.rows}

    @staticmethod
    def of(state: Mapping[str, Any], *, same_workers: bool) -> Position:
        # Sums are a worker's own: when their number has changed, the curve's next row starts from zero.
        sums = Sums(**state["sums"]) if same_workers else Sums()
        return Position(state["done"], state["steps"], sums, Curves(state["rows"]))


def newest(folder: str, group: Group, fingerprint: str) -> Checkpoint | None:
    """The newest checkpoint that is whole on all workers, unless it is of another configuration. A collective call."""
    found = load(folder, group)
    if found is not None and found.state["print"] != fingerprint:
        LOG.warning("checkpoints in %s belong to another configuration; training starts again", folder)
        found = None
    if group.rank == 0:
        set_aside(folder, -1 if found is None else found.step)
    group.all_gather(torch.zeros(1)).wait()  # no worker saves before that
    return found


def clear_unfinished(folder: str, group: Group) -> None:
    """Sets aside what workers were writing when one was lost. A collective call: no worker saves before that."""
    if group.rank == 0:
        set_aside(folder, newest_step(folder))
    group.all_gather(torch.zeros(1)).wait()


def position_of(found: Checkpoint, group: Group, *, common: bool = False) -> Position:
    """Where a worker goes on. Where workers are fewer or more, the first answers for what all have trained on.

    `common`: each has saved the sums of all.
    """
    same = common or found.workers == group.size
    at = Position.of(found.state["position"], same_workers=same)
    if same:
        at.audit = Audit.sum([found.tensors["audit.sums"]])
    elif group.rank == 0:
        at.audit = Audit.sum([state["sums"] for state in found.states.of("audit.")])
    return at


class Saving:
    """Saves checkpoints of a run, which goes on where one cannot be written: the older ones are whole.

    `alarm` hears of the first of several in a row.
    """

    def __init__(self, saver: Checkpoints, fingerprint: str, alarm: Alarm | None) -> None:
        self._saver, self._fingerprint, self._alarm = saver, fingerprint, alarm
        self._failed = False

    def save(
        self, done: int, at: Position, tensors: Mapping[str, Tensor], offsets: Mapping[str, Sequence[int]]
    ) -> None:
        """What all workers hold of the batches before number `done`; `offsets`: see `Checkpoints.save`."""
        state = {"print": self._fingerprint, "position": at.state(done)}
        held = dict(tensors) | {"audit.sums": at.audit.tensor()}
        self._try(partial(self._saver.save, done, held, state, offsets))

    def wait(self) -> None:
        """Until the last one is written."""
        self._try(self._saver.wait)

    def _try(self, save: Callable[[], None]) -> None:
        try:
            save()
        except StoreError as error:
            LOG.error("%s", error)
            if self._alarm is not None and not self._failed:
                self._alarm.call(str(error))
            self._failed = True
        else:
            self._failed = False
