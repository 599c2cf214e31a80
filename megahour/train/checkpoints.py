"""A run's position, its checkpoints, and how it resumes from them.

The position in the data is one number, `done`: how many batches of all phases, in sequence, have been trained on. It
does not depend on the number of workers, so a run may resume with fewer or more of them.
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
from megahour.core.surroundings import is_of_a_store
from megahour.learn.step_totals import Audit, TrainedTotals
from megahour.monitor.alerts import Alarm
from megahour.sync.checkpoint import Checkpoints, set_aside
from megahour.sync.checkpoint_read import Checkpoint, load, newest_step
from megahour.sync.group.base import Group
from megahour.train.leave import REQUESTED
from megahour.train.meters import Curves, Sums

LOG = logging.getLogger(__name__)


def checkpoints_of(work: Path, durable: str = "") -> str:
    """The folder of a training's checkpoints, below `durable` if that is set, else below its work folder."""
    return f"{durable or work}/checkpoints"


@dataclass
class Position:
    """A run's position: batches `done` by all workers, `steps` of this one, and its sums since the last row.

    `row_due`: first batch of a step after which a row of the curves is still missing. With workers that come and go,
    `rounds`: finished rounds since all workers last started; `owed`: batches below `done` that still need training.
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
        """Whether the last row of the curves has been written."""
        return bool(self.curves.rows) and "pieces" in self.curves.rows[-1]

    def add(self, totals: TrainedTotals) -> None:
        """Add the totals of a step's batches."""
        self.audit.take(totals.audit)
        self.sums.add(*totals.sums)

    def state(self, done: int) -> dict[str, Any]:
        return {"done": done, "steps": self.steps, "sums": vars(self.sums), "rows": self.curves.rows}

    @staticmethod
    def of(state: Mapping[str, Any], *, same_workers: bool) -> Position:
        # Sums belong to a worker: if the number of workers changed, the next row of the curve starts from zero.
        sums = Sums(**state["sums"]) if same_workers else Sums()
        return Position(state["done"], state["steps"], sums, Curves(state["rows"]))


def newest(folder: str, group: Group, fingerprint: str) -> Checkpoint | None:
    """The newest checkpoint complete on all workers, if its configuration is the same. A collective call."""
    checkpoint = load(folder, group)
    if checkpoint is not None and checkpoint.state["print"] != fingerprint:
        LOG.warning("checkpoints in %s belong to another configuration; training starts again", folder)
        checkpoint = None
    if group.rank == 0:
        set_aside(folder, -1 if checkpoint is None else checkpoint.step)
    group.all_gather(torch.zeros(1)).wait()  # no worker saves before this point
    return checkpoint


def clear_unfinished(folder: str, group: Group) -> None:
    """Set aside checkpoints left unfinished when a worker was lost. A collective call: none saves before it returns."""
    if group.rank == 0:
        set_aside(folder, newest_step(folder))
    group.all_gather(torch.zeros(1)).wait()


def position_of(found: Checkpoint, group: Group, *, common: bool = False) -> Position:
    """Where a worker resumes. If the number of workers changed, worker 0 accounts for what all have trained on.

    common: each worker has saved the sums of all.
    """
    same = common or found.workers == group.size
    at = Position.of(found.state["position"], same_workers=same)
    if same:
        at.audit = Audit.sum([found.tensors["audit.sums"]])
    elif group.rank == 0:
        at.audit = Audit.sum([state["sums"] for state in found.states.of("audit.")])
    return at


class Saving:
    """Saves a run's checkpoints. If one cannot be written, the run continues, since older ones are complete.

    alarm: is notified of the first of consecutive failures.
    """

    def __init__(self, saver: Checkpoints, fingerprint: str, alarm: Alarm | None) -> None:
        self._saver, self._fingerprint, self._alarm = saver, fingerprint, alarm
        self.unwritten = 0
        """Checkpoints that could not be written since the last one that was."""

    def save(
        self, done: int, at: Position, tensors: Mapping[str, Tensor], offsets: Mapping[str, Sequence[int]]
    ) -> None:
        """Save the state of all workers after the batches before `done`; `offsets`: see `Checkpoints.save`."""
        state = {"print": self._fingerprint, "position": at.state(done)}
        saved = dict(tensors) | {"audit.sums": at.audit.tensor()}
        self._try(partial(self._saver.save, done, saved, state, offsets))

    def requested(self) -> bool:
        """Whether a checkpoint was requested since the last call."""
        fs, path = self._saver.fs, f"{self._saver.root}{REQUESTED}"
        try:
            fs.invalidate_cache()
            if not fs.exists(path):
                return False
            fs.rm_file(path)
        except Exception as error:
            if not (isinstance(error, OSError) or is_of_a_store(error)):
                raise
            LOG.warning("%s cannot be read: %s", path, error)
            return False
        LOG.info("a checkpoint was requested")
        return True

    def wait(self) -> None:
        """Wait until the last checkpoint is written."""
        self._try(self._saver.wait)

    def _try(self, save: Callable[[], None]) -> None:
        try:
            save()
        except StoreError as error:
            LOG.error("%s", error)
            if self._alarm is not None and not self.unwritten:
                self._alarm.call(str(error))
            self.unwritten += 1
        else:
            self.unwritten = 0
