"""Reads the newest checkpoint of `checkpoint` that is complete on all workers, verified by digests.

A damaged checkpoint is passed over. One that a store does not hand out (an outage, an expired token) may be whole: then
`load` fails, since a run that went on from an older one would write over the newest.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, overload

import fsspec
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from megahour.core.errors import StoreError
from megahour.core.surroundings import is_of_a_store
from megahour.core.transfer import is_local
from megahour.sync.checkpoint import MARK
from megahour.sync.group.base import Group

LOG = logging.getLogger(__name__)
SYNC = "sync."
RETRY_S = (1.0, 5.0, 15.0)
"""Waits before a read that a store refused is tried again, after the attempts of the store's own client."""
_DAMAGED, _WHOLE, _UNREADABLE = range(3)
_REMEDY = "check the store, its credentials and the network, then run the same command again"

T = TypeVar("T")


class States(Sequence[Mapping[str, Tensor]]):
    """Tensors of one `prefix`, by default `Synchroniser.state`, of every worker that saved.

    They are read on access, since N of them may not fit into memory; `own`, a rank and its tensors, is already loaded.
    """

    def __init__(
        self,
        fs: Any,
        folder: str,
        digests: Sequence[str],
        own: tuple[int, dict[str, Tensor]],
        prefix: str = SYNC,
        ranks: range | None = None,
    ) -> None:
        self._fs, self._folder, self._digests, self._own, self._prefix = fs, folder, digests, own, prefix
        self._ranks = range(len(digests)) if ranks is None else ranks

    def of(self, prefix: str) -> States:
        """Tensors that a script has saved under another prefix."""
        return States(self._fs, self._folder, self._digests, self._own, prefix, self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Tensor]: ...

    @overload
    def __getitem__(self, index: slice) -> States: ...

    def __getitem__(self, index: int | slice) -> Mapping[str, Tensor] | States:
        if isinstance(index, slice):
            return States(self._fs, self._folder, self._digests, self._own, self._prefix, self._ranks[index])
        rank = self._ranks[index]
        own, tensors = self._own
        if rank != own:
            tensors, _ = _read(self._fs, self._folder, rank, self._digests[rank])
        wanted = (name for name in tensors if name.startswith(self._prefix))
        return {name.removeprefix(self._prefix): tensors[name] for name in wanted}


@dataclass(frozen=True)
class Checkpoint:
    """One worker's view. `tensors` and `state` are its own, or if the number of workers has changed those of rank
    `rank % workers`; `states` are the synchronisers' of all `workers` that saved.
    """

    step: int
    workers: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    states: States

    def restore(self, module: torch.nn.Module, prefix: str = "weights.") -> None:
        """Load weights and buffers into `module` from the tensors whose names begin with `prefix`."""
        tensors = {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}
        module.load_state_dict(tensors)


def load(folder: str | Path, group: Group | None = None) -> Checkpoint | None:
    """The newest checkpoint of which every worker of `group` can read its part; None if there is none.

    If it is damaged, all workers log a warning and use the one before it. A collective call.

    Raises
    ------
    StoreError: on all workers if one of them cannot read its part, which may be whole, or on worker 0 if it cannot list
        the checkpoints; the files are unchanged.
    WorkerLostError: a worker does not respond; the files are unchanged.
    """
    fs, root = fsspec.core.url_to_fs(str(folder))
    rank, size = (0, 1) if group is None else (group.rank, group.size)
    for step in _steps(fs, root, group):
        checkpoint, why = None, ""
        try:
            read = partial(_checkpoint, fs, f"{root}/{step:010d}", step, rank, size)
            checkpoint = _persistently(fs, f"checkpoint of step {step}", read)
        except _Unreadable as error:
            why = str(error)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
            LOG.warning("checkpoint of step %d is damaged (%s: %s)", step, type(error).__name__, error)
        own = _UNREADABLE if why else _DAMAGED if checkpoint is None else _WHOLE
        found = _of_all(group, own)
        if unreadable := [other for other, result in enumerate(found) if result == _UNREADABLE]:
            why = why or f"worker {', '.join(map(str, unreadable))} could not"
            raise StoreError(
                f"the checkpoint of step {step} cannot be read, and may be whole: {why}",
                where=str(folder),
                remedy=f"{_REMEDY}; to go on from an older checkpoint, remove {step:010d} there",
            )
        if all(result == _WHOLE for result in found):
            return checkpoint
        LOG.warning("using the checkpoint before step %d", step)
    return None


class _Unreadable(Exception):
    """A store did not hand out what it may hold."""


def _persistently(fs: Any, what: str, read: Callable[[], T]) -> T:
    """`read()`, tried again if the store refuses. Raises _Unreadable if it still does, else what `read` raises."""
    for wait_s in (*RETRY_S, None):
        try:
            return read()
        except Exception as error:
            if not _refused(fs, error):
                raise
            if wait_s is None:
                raise _Unreadable(f"{type(error).__name__}: {error}") from error
            LOG.warning("%s: %s: %s; trying again", what, type(error).__name__, error)
        time.sleep(wait_s)
    raise AssertionError


def _refused(fs: Any, error: Exception) -> bool:
    """Whether a read failed because of the store, rather than because a file is missing or its content is wrong."""
    if is_of_a_store(error):
        return True
    broken = isinstance(error, FileNotFoundError) or (is_local(fs) and getattr(error, "errno", None) == errno.EIO)
    return isinstance(error, OSError) and not broken


def newest_step(folder: str | Path) -> int:
    """Step of the newest checkpoint written by all workers, damaged or not; -1 if there is none."""
    return max(_whole(*fsspec.core.url_to_fs(str(folder))), default=-1)


def _whole(fs: Any, root: str) -> list[int]:
    fs.invalidate_cache()
    names = [path.rstrip("/").rsplit("/", 1)[-1] for path in fs.ls(root, detail=False)] if fs.exists(root) else []
    return [int(name) for name in names if name.isdecimal() and fs.exists(f"{root}/{name}/{MARK}")]


def _steps(fs: Any, root: str, group: Group | None) -> Iterator[int]:
    """Steps of complete checkpoints, newest first, as worker 0 sees them."""
    fs.invalidate_cache()
    saved: list[int] = []
    if group is None or group.rank == 0:
        try:
            saved = sorted(_persistently(fs, root, partial(_whole, fs, root)), reverse=True)
        except _Unreadable as error:
            raise StoreError(f"checkpoints cannot be listed: {error}", where=root, remedy=_REMEDY) from error
    if group is None:
        yield from saved
        return
    count = torch.tensor([len(saved)])
    group.broadcast(count)
    steps = torch.tensor(saved) if saved else torch.zeros(int(count), dtype=torch.int64)
    if len(steps):
        group.broadcast(steps)
    yield from steps.tolist()


def _of_all(group: Group | None, own: int) -> list[int]:
    """The `own` number of each worker."""
    return [own] if group is None else [int(each) for each in group.all_gather(torch.tensor([own])).wait().flatten()]


def _checkpoint(fs: Any, folder: str, step: int, rank: int, size: int) -> Checkpoint:
    mark = json.loads(fs.cat_file(f"{folder}/{MARK}"))
    digests: list[str] = mark["sha256"]
    if len(digests) != mark["workers"] or not digests:
        raise ValueError(f"{MARK} names {len(digests)} parts of {mark['workers']} workers")
    for other in range(rank + size, len(digests), size):
        _read(fs, folder, other, digests[other])  # fewer workers than saved: check all parts
    own = rank % len(digests)
    tensors, state = _read(fs, folder, own, digests[own])
    return Checkpoint(step, len(digests), tensors, state, States(fs, folder, digests, (own, tensors)))


def _read(fs: Any, folder: str, rank: int, digest: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """One worker's tensors and state, verified by the chain of digests from the mark."""
    entry = _checked(fs, f"{folder}/rank-{rank:05d}.json", digest)
    meta = json.loads(entry)
    data = _checked(fs, f"{folder}/rank-{rank:05d}.safetensors", meta["sha256"])
    return safetensors.torch.load(data), meta["state"]


def _checked(fs: Any, path: str, digest: str) -> bytes:
    data: bytes = fs.cat_file(path)
    actual = hashlib.sha256(data).hexdigest()
    if actual != digest:
        raise ValueError(f"SHA-256 of {path} is {actual[:12]}…, expected {digest[:12]}…")
    return data
