"""Where a job's scratch files lie, which job an output belongs to, and what goes when the job is done."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from megahour.core.locks import MARKS, alone
from megahour.core.records import fingerprint
from megahour.core.store import SCRATCH, Artifact
from megahour.core.transfer import publish_text
from megahour.runner.job import Job

LOG = logging.getLogger(__name__)
KEPT = ("meters", "tensorboard")  # folders that a finished stage leaves in its scratch directory: how it went, by step


def scratch_of(output: Artifact) -> Path:
    """Where an output's scratch directories are by default: equal jobs with other outputs do not meet there."""
    return Path(tempfile.gettempdir()) / "megahour-work" / fingerprint(output.url)[:16]


@contextmanager
def alone_at_work(job: Job) -> Iterator[None]:
    """The scratch directory of a job, for one run: equal jobs that are given the same `work` would share it."""
    folder = Path(job.work)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(LocalFileSystem(), folder.parent, marks=f"{folder.name}{MARKS}", where=str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        yield


def clear(work: Path) -> None:
    """Remove a finished stage's scratch files: checkpoints, spilled batches."""
    for path in work.iterdir():
        if path.is_dir() and path.name not in KEPT:
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_file():
            path.unlink(missing_ok=True)
    if not any(work.iterdir()):
        work.rmdir()


def clear_durable(output: Artifact) -> None:
    """Remove what the stage kept beside its output. A store that refuses costs room, not the finished artifact."""
    path = output.path(SCRATCH)
    try:
        if output.fs.exists(path):
            output.fs.rm(path, recursive=True)
    except OSError as error:
        LOG.warning("%s is not needed any more and could not be removed: %s", path, error)


def claim(output: Artifact, job_fingerprint: str) -> None:
    """Clear what another version of the job left; keep the shards of the same job."""
    if claimed_by(output) == job_fingerprint:
        return
    output.delete()
    publish_text(output.fs, output.path("claim.txt"), job_fingerprint)


def claimed_by(output: Artifact) -> str:
    """Fingerprint of the job that an artifact's shards belong to; empty when there is none."""
    path = output.path("claim.txt")
    return str(output.fs.cat_file(path).decode("utf-8", "replace")) if output.fs.exists(path) else ""
