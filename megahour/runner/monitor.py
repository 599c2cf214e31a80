"""What a stage at work tells whoever shows its progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megahour.core.receipts import Manifest, Receipt
from megahour.runner.job import Job

if TYPE_CHECKING:
    from megahour.engine.base import Engine


class Monitor:
    """Hears what a stage does; the terminal's progress display overrides what it shows."""

    def begins(self, stage: str, job: Job, engine: Engine) -> None:
        """The output is this run's, and the job has its places; its tasks are not known yet."""

    def started(self, stage: str, tasks: int, done: int) -> None: ...

    def took(self, seconds: float) -> None:
        """A shard was made in so many seconds of a worker; its `task_done` comes next."""

    def task_done(self, receipt: Receipt) -> None: ...

    def progress(self, done: float, total: float, unit: str, **fields: Any) -> None: ...

    def hint(self, text: str) -> None:
        """Something that a user may want to change, after `finished`."""

    def stopped(self) -> None:
        """No more progress comes, whether the stage is done, failed or was interrupted."""

    def finished(self, manifest: Manifest, seconds: float) -> None: ...
