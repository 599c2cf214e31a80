"""Reads the newest checkpoint of `checkpoint` that is complete on all workers, verified by digests."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import fsspec
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from megahour.sync.checkpoint import MARK
from megahour.sync.group.base import Group

LOG = logging.getLogger(__name__)
SYNC = "sync."


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
    WorkerLostError: a worker does not respond; the files are unchanged.
    """
    fs, root = fsspec.core.url_to_fs(str(folder))
    rank, size = (0, 1) if group is None else (group.rank, group.size)
    for step in _steps(fs, root, group):
        checkpoint = None
        try:
            checkpoint = _checkpoint(fs, f"{root}/{step:010d}", step, rank, size)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
            LOG.warning("checkpoint of step %d is damaged (%s: %s)", step, type(error).__name__, error)
        if checkpoint is not None and _all(group, True):
            return checkpoint
        if checkpoint is None:
            _all(group, False)
        LOG.warning("using the checkpoint before step %d", step)
    return None


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
    saved = sorted(_whole(fs, root), reverse=True) if group is None or group.rank == 0 else []
    if group is None:
        yield from saved
        return
    count = torch.tensor([len(saved)])
    group.broadcast(count)
    steps = torch.tensor(saved) if saved else torch.zeros(int(count), dtype=torch.int64)
    if len(steps):
        group.broadcast(steps)
    yield from steps.tolist()


def _all(group: Group | None, good: bool) -> bool:
    return good if group is None else bool(group.all_gather(torch.tensor([int(good)])).wait().all())


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
