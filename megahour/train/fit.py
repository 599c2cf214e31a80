"""Running a schedule to its end, with checkpoints, from wherever the last process stopped."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megahour.batches.loader import Batch, Loader
from megahour.core.errors import StageError
from megahour.train import checkpoint
from megahour.train.loop import Trainer
from megahour.train.meters import Curves, Log, Sums
from megahour.train.schedule import Data, Phase, learning_rate

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """What `fit` needs besides data and model. `rows` is the number of points of the curve."""

    learning_rate: float
    final_learning_rate: float
    warm_up: float
    checkpoint_s: float
    rows: int
    fingerprint: str


@dataclass
class Position:
    """Where a run is: the next batch is number `batch` of phase `phase`."""

    phase: int = 0
    batch: int = 0
    step: int = 0
    sums: Sums = field(default_factory=Sums)
    curves: Curves = field(default_factory=Curves)

    def state(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("phase", "batch", "step")},
            "sums": vars(self.sums),
            "rows": self.curves.rows,
        }

    @staticmethod
    def of(state: Mapping[str, Any]) -> Position:
        return Position(state["phase"], state["batch"], state["step"], Sums(**state["sums"]), Curves(state["rows"]))


class Run:
    """One training run over `phases`; `execute` returns its curves and leaves the trained weights in the trainer."""

    def __init__(
        self,
        trainer: Trainer,
        loaders: Mapping[Data, Loader],
        held_out: Loader | None,
        phases: Sequence[Phase],
        settings: Settings,
        work: Path,
        log: Log,
        progress: Callable[..., None],
    ) -> None:
        self.trainer, self.loaders, self.held_out, self.phases = trainer, loaders, held_out, phases
        self.settings, self.folder, self.log, self.progress = settings, work / "checkpoints", log, progress
        self.total = sum(len(phase) for phase in phases)
        self.at = self._resume()
        self._saved_s = time.monotonic()

    def _resume(self) -> Position:
        found = checkpoint.load(self.folder)
        if found is None:
            return Position()
        if found.state["fingerprint"] != self.settings.fingerprint:
            LOG.warning("checkpoints in %s belong to another configuration; starting anew", self.folder)
            return Position()
        self.trainer.restore(found.tensors)
        return Position.of(found.state["position"])

    def execute(self) -> Curves:
        """Train to the end of the schedule."""
        if not self.total:
            raise StageError("the schedule has no batches", where="train", remedy="check the sets and epochs")
        while self.at.phase < len(self.phases):
            phase = self.phases[self.at.phase]
            for number in range(phase.first + self.at.batch, phase.last):
                self._step(phase, number)
                self._checkpoint(force=False)
            self.at.phase, self.at.batch = self.at.phase + 1, 0
        self._checkpoint(force=True)
        return self.at.curves

    def _step(self, phase: Phase, number: int) -> None:
        at, chosen = self.at, self.settings
        batch = self.loaders[phase.data].batch(phase.epoch, number, offset=phase.offset, chunk=phase.chunk)
        rate = phase.gain * learning_rate(
            at.step, self.total, chosen.learning_rate, chosen.final_learning_rate, chosen.warm_up
        )
        gradients = self.trainer.gradients(batch, at.step)
        self.trainer.apply(gradients, rate, at.step)
        at.sums.add(gradients.loss, gradients.weight, gradients.correct)
        at.batch, at.step = at.batch + 1, at.step + 1
        self.log.frames(int(batch.lengths.sum()))
        if at.step * chosen.rows // self.total > (at.step - 1) * chosen.rows // self.total:
            self._row(phase, rate)
        self.progress(at.step, self.total, "steps", loss=round(gradients.loss / gradients.weight, 3))

    def _row(self, phase: Phase, rate: float) -> None:
        at = self.at
        fields: dict[str, Any] = {"epoch": phase.epoch, "step": at.step, "data": phase.data, "learning_rate": rate}
        fields |= {
            "loss": at.sums.mean_loss,
            "accuracy": at.sums.accuracy,
            "held_out_loss": None,
            "held_out_accuracy": None,
        }
        if self.held_out is not None:
            held = Sums(*self.trainer.evaluate(_all(self.held_out)))
            fields |= {"held_out_loss": held.mean_loss, "held_out_accuracy": held.accuracy}
        at.sums = Sums()
        self.log.row(at.curves.add(**fields))

    def _checkpoint(self, *, force: bool) -> None:
        if force or time.monotonic() - self._saved_s >= self.settings.checkpoint_s:
            state = {"fingerprint": self.settings.fingerprint, "position": self.at.state()}
            checkpoint.save(self.folder, self.at.step, self.trainer.tensors(), state)
            self._saved_s = time.monotonic()


def _all(loader: Loader) -> Iterator[Batch]:
    """The batches of a pass, one at a time in memory."""
    return (loader.batch(0, number, offset=0) for number in range(len(loader.plan(0))))
