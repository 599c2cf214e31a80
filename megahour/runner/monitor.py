"""`Monitor`: callbacks that report a running stage's progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megahour.core.receipts import Manifest, Receipt
from megahour.runner.job import Job

if TYPE_CHECKING:
    from megahour.engine.base import Engine


class Monitor:
    """Receives a stage's events and ignores them; the terminal display overrides the methods it shows."""

    def begins(self, stage: str, job: Job, engine: Engine) -> None:
        """The output is locked and the job is set up; its tasks are not known yet."""

    def started(self, stage: str, tasks: int, done: int) -> None: ...

    def took(self, seconds: float) -> None:
        """A worker took `seconds` for a shard; its `task_done` comes next."""

    def task_done(self, receipt: Receipt) -> None: ...

    def progress(self, done: float, total: float, unit: str, **fields: Any) -> None: ...

    def hint(self, text: str) -> None:
        """Advice for the user; called after `finished`."""

    def stopped(self) -> None:
        """No more progress follows: the stage finished, failed or was interrupted."""

    def finished(self, manifest: Manifest, seconds: float) -> None: ...
