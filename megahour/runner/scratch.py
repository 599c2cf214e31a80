"""A job's scratch files: their location, their lock and their removal; and which job an output belongs to."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from megahour.core.locks import MARKS, alone, check
from megahour.core.records import fingerprint
from megahour.core.store import SCRATCH, Artifact
from megahour.core.transfer import is_local, publish_text

LOG = logging.getLogger(__name__)
CLAIM, OF_SCRATCH = "claim.txt", f"{SCRATCH}/claim.txt"
KEPT = ("meters", "tensorboard")  # training curves, which stay in the scratch directory of a finished stage


def scratch_of(output: Artifact) -> Path:
    """The default scratch directory of an output; equal jobs with other outputs get other directories.

    Each user has a folder of their own: in a temporary folder that all share, no other user may write to it.
    """
    place = output.root if is_local(output.fs) else output.url  # "runs/out" is another folder in each working directory
    return _own_folder() / fingerprint(place)[:16]


def _own_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"megahour-work-{os.getuid() if hasattr(os, 'getuid') else 0}"


@contextmanager
def alone_at_work(work: str) -> Iterator[None]:
    """Lock a job's scratch directory for one run: equal jobs with the same `work` would share it.

    At the end the default directory of an output goes if it is empty: there is one for each output that ever was.
    """
    folder = Path(work)
    with suppress(FileExistsError):  # another run has just removed it, or a file has its name: the lock sees to either
        folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with alone(LocalFileSystem(), folder.parent, marks=f"{folder.name}{MARKS}", where=str(folder)):
            folder.mkdir(parents=True, exist_ok=True)
            yield
    finally:
        if folder.parent.parent == _own_folder().absolute():
            with suppress(OSError):  # not empty: files to resume from, training curves, or the mark of another run
                folder.parent.rmdir()


def clear(work: Path) -> None:
    """Remove a finished stage's scratch files, such as checkpoints and spilled batches."""
    for path in work.iterdir():
        if path.is_dir() and path.name not in KEPT:
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_file():
            path.unlink(missing_ok=True)
    if not any(work.iterdir()):
        work.rmdir()


def clear_durable(output: Artifact) -> None:
    """Remove the scratch files beside the output. A failure is only logged: the finished artifact is not affected."""
    path = output.path(SCRATCH)
    try:
        if output.fs.exists(path):
            output.fs.rm(path, recursive=True)
    except OSError as error:
        LOG.warning("%s is no longer needed but could not be removed: %s", path, error)


def claim(output: Artifact, fingerprint: str, work: str, owner: str, *, keep: Collection[str] = ()) -> None:
    """Claim the output for a job: keep shards of the same job, delete those of any other version.

    work, owner: the job's scratch directory and the token of its run. keep: entries of the folder that stay.

    What another job has not finished is removed with a warning: a run that was stopped and started again with other
    parameters would otherwise begin at its first shard without a word. Scratch files beside the output stay if they are
    marked as this job's: it was killed while it replaced a finished artifact.
    """
    if (before := claimed_by(output)) == fingerprint:
        return
    own = claimed_by(output, OF_SCRATCH) == fingerprint
    lost = _unfinished(output, Path(work).parent / before) if before and not (own or output.complete) else ""
    check(output.fs, output.root, owner, where=output.url, fresh=True)
    output.delete(keep=[*keep, SCRATCH] if own else keep)
    publish_text(output.fs, output.path(CLAIM), fingerprint)
    if lost:
        LOG.warning("%s was begun with other parameters, inputs or versions: %s", output.url, lost)


def mark_scratch(output: Artifact, fingerprint: str) -> None:
    """Mark the scratch files beside the output as a job's, such as the checkpoints of a trained model to be published.

    From the removal of a finished artifact until its own claim, nothing else tells whose they are.
    """
    publish_text(output.fs, output.path(OF_SCRATCH), fingerprint)


def _unfinished(output: Artifact, work: Path) -> str:
    """What a stopped job with the scratch directory `work` loses when another one takes its output."""
    lost = []
    if shards := len(output.committed()):
        lost.append(f"{shards} finished shard{'s are' if shards > 1 else ' is'} removed")
    if output.fs.exists(output.path(f"{SCRATCH}/checkpoints")):
        lost.append("its checkpoints are removed")
    if has_checkpoints(work):
        lost.append(f"its checkpoints stay in {work}; with the earlier parameters it goes on from them")
    return "; ".join(lost)


def has_checkpoints(work: Path) -> bool:
    """Whether a job's scratch directory holds whole checkpoints of a training."""
    return any(work.glob("checkpoints/*/checkpoint.json"))


def claimed_by(output: Artifact, mark: str = CLAIM) -> str:
    """Fingerprint of the job that an artifact's shards, or its scratch files, belong to; empty if there is none."""
    path = output.path(mark)
    return str(output.fs.cat_file(path).decode("utf-8", "replace")) if output.fs.exists(path) else ""
