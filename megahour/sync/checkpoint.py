"""Writes checkpoints of N workers that survive a kill at any moment: safetensors and JSON, in a background thread.

    <folder>/0000001200/rank-00000.safetensors        weights, optimiser, synchroniser: what this worker holds
                       /rank-00000.json               its SHA-256 and the state that is not tensors (position, …)
                       /rank-00001.safetensors …
                       /checkpoint.json               last: the SHA-256 of every worker's JSON

`save` copies the tensors and returns; a thread writes them, each file under a temporary name first, then reads them
back and renames them. Worker 0 waits for the others' files (all workers share the folder, local or any fsspec URL),
writes `checkpoint.json`, and only then removes all but the newest two. If a file cannot be written, or reads back
differently, the old checkpoints stay, and the next call of `save` or `close` reports the error.

When a worker is lost while it saves, the checkpoint has no `checkpoint.json` and does not exist.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import safetensors.torch
from torch import Tensor

from megahour.core.errors import StoreError
from megahour.core.surroundings import is_of_a_store
from megahour.core.transfer import file_digest, is_local, publish

LOG = logging.getLogger(__name__)
KEEP = 2
MARK = "checkpoint.json"
FAILED = ".failed"
ASIDE = ".aside"
POLL_S = 0.02


class Checkpoints:
    """One worker's side of the checkpoints in `folder`. A context manager, whose exit waits until all is written.

    Parameters
    ----------
    folder: path or fsspec URL shared by all workers.
    patience_s: how long worker 0 waits for the files of the others.
    """

    def __init__(self, folder: str | Path, *, rank: int = 0, size: int = 1, patience_s: float = 600.0) -> None:
        self.fs, self.root = fsspec.core.url_to_fs(str(folder))
        self.rank, self.size, self.patience_s = rank, size, patience_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._closing = threading.Event()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self._closing.set()
        try:
            self.wait()
        except StoreError:
            if kind is None:
                raise
            LOG.exception("the last checkpoint was not written")
        finally:
            self._thread.shutdown()

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, Any],
        offsets: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Begin to write the checkpoint of `step`; waits only for the previous one.

        Parameters
        ----------
        tensors: by name, on any device; copied before the call returns. Those with names in `sync.` are the ones
            that all workers need from each other (`Synchroniser.state`).
        state: everything else, as JSON values.
        offsets: for `tensors` that are this worker's parts of larger ones, where they begin, one number per dimension.
            The folder is then also a checkpoint of torch.distributed.checkpoint, whose `HuggingFaceStorageReader` gets
            the parts of all workers from the headers of the files.

        Raises
        ------
        StoreError: the previous checkpoint could not be written: the disk is full, a file reads back differently, or a
            worker did not write its part. Older ones stay, and this one is being written.
        """
        before: StoreError | None = None
        try:
            self.wait()
        except StoreError as error:
            before = error
        copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
        text = json.dumps(dict(state), sort_keys=True)
        self._writing = self._thread.submit(self._write, step, copies, text, _header(copies, offsets or {}))
        if before is not None:
            raise before

    def wait(self) -> None:
        """Wait until all is written. Raises like `save`."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, step: int, tensors: dict[str, Tensor], state: str, header: dict[str, str] | None) -> None:
        folder = f"{self.root}/{step:010d}"
        failed = f"{folder}/rank-{self.rank:05d}{FAILED}"
        try:
            if self.fs.exists(failed):
                self.fs.rm(failed)
            data = safetensors.torch.save(tensors, header)
            self._room(len(data), folder)
            digest = self._put(f"{folder}/rank-{self.rank:05d}.safetensors", data)
            entry = json.dumps({"sha256": digest, "state": json.loads(state)}, sort_keys=True).encode()
            self._put(f"{folder}/rank-{self.rank:05d}.json", entry)
            if self.rank == 0:
                self._commit(folder)
        except Exception as error:
            if not (isinstance(error, OSError) or is_of_a_store(error)):
                raise
            with contextlib.suppress(Exception):  # if even this cannot be written, worker 0 waits for `patience_s`
                self.fs.touch(failed)
            why = getattr(error, "strerror", None) or error  # without the name of a scratch file
            what = f"checkpoint of step {step} not written: {why}"
            raise StoreError(what, where=folder, remedy=self._left()) from error

    def _left(self) -> str:
        """What to do, and from where a restart would go on."""
        try:
            last = f"a restart would go on from step {int(self._whole()[-1].rpartition('/')[2])}"
        except IndexError:
            last = "none is complete yet, and a restart would begin with the first step"
        except Exception:  # of a store that does not answer; the error of the write counts
            last = "older ones are kept"
        return f"make room, or check the store: the next one is tried in any case; {last}"

    def _room(self, size_bytes: int, folder: str) -> None:
        """Check for enough disk space for all parts before writing any."""
        if is_local(self.fs):
            Path(folder).mkdir(parents=True, exist_ok=True)
            needed = size_bytes * max(1, self.size - len(list(Path(folder).glob("rank-*.safetensors"))))
            free = shutil.disk_usage(self.root).free
            if free < needed:
                raise OSError(f"{needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} MB free")

    def _put(self, target: str, data: bytes) -> str:
        """Write a file under a temporary name, read it back and rename it; returns its SHA-256."""
        digest = hashlib.sha256(data).hexdigest()
        folder = Path(target).parent if is_local(self.fs) else Path(tempfile.gettempdir())
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=".tmp", delete=False) as file:
            scratch = Path(file.name)
            try:
                file.write(data)
                file.flush()
                publish(self.fs, scratch, target)
            except OSError:
                scratch.unlink(missing_ok=True)
                raise
        _, written_digest = file_digest(self.fs, target)
        if written_digest != digest:
            raise OSError(f"{target} reads back differently from what was written (SHA-256 {written_digest[:12]}…)")
        return digest

    def _commit(self, folder: str) -> None:
        """Worker 0: write the mark once all parts exist, then remove older checkpoints."""
        entries = [f"{folder}/rank-{rank:05d}.json" for rank in range(self.size)]
        deadline_s = time.monotonic() + self.patience_s
        while missing := [entry for entry in entries if not self.fs.exists(entry)]:
            if failed := [entry for entry in missing if self.fs.exists(entry.removesuffix(".json") + FAILED)]:
                raise OSError(f"{len(failed)} of {self.size} workers could not write their part: {failed[0]} …")
            if time.monotonic() > deadline_s or self._closing.is_set():
                raise OSError(f"{len(missing)} of {self.size} workers have not written their part: {missing[0]} …")
            time.sleep(POLL_S)
            self.fs.invalidate_cache()
        digests = [file_digest(self.fs, entry)[1] for entry in entries]
        self._put(f"{folder}/{MARK}", json.dumps({"workers": self.size, "sha256": digests}).encode())
        self._remove_old()

    def _remove_old(self) -> None:
        whole = self._whole()
        for path in self._folders():
            # Unfinished ones too, except those newer than the newest complete one, which may be in progress.
            if path < whole[-KEEP:][0]:
                self.fs.rm(path, recursive=True)

    def _folders(self) -> list[str]:
        """Folders of checkpoints, also unfinished ones and those set aside, from the oldest."""
        self.fs.invalidate_cache()
        # Object stores may list the folder itself, as an empty object.
        listed = [path.rstrip("/") for path in self.fs.ls(self.root, detail=False)]
        return sorted(path for path in listed if path.rsplit("/", 1)[-1].removesuffix(ASIDE).isdecimal())

    def _whole(self) -> list[str]:
        """Those of the folders that have a complete checkpoint."""
        return [p for p in self._folders() if not p.endswith(ASIDE) and self.fs.exists(f"{p}/{MARK}")]


def _header(tensors: Mapping[str, Tensor], offsets: Mapping[str, Sequence[int]]) -> dict[str, str] | None:
    """The metadata that torch.distributed.checkpoint needs in a safetensors file of parts, for all tensors or none."""
    if not offsets:
        return None
    places = {name: {"saved_offsets": list(offsets.get(name, [0] * t.dim()))} for name, t in tensors.items()}
    return {"DCP_SHARDING_INFO": json.dumps(places, sort_keys=True)}


def set_aside(folder: str | Path, newer_than: int) -> None:
    """Rename checkpoints newer than step `newer_than` (-1: all) to `<step>.aside`: unfinished, damaged or foreign.

    Worker 0 calls it before a run that resumes there saves: the run may pass the same steps again, and old parts of
    other workers would count as new. Later complete checkpoints remove those set aside.
    """
    fs, root = fsspec.core.url_to_fs(str(folder))
    fs.invalidate_cache()
    paths = [path.rstrip("/") for path in fs.ls(root, detail=False)] if fs.exists(root) else []
    for path in paths:
        name = path.rsplit("/", 1)[-1]
        if name.isdecimal() and int(name) > newer_than:
            if fs.exists(path + ASIDE):
                fs.rm(path + ASIDE, recursive=True)
            _move(fs, path, path + ASIDE)
            LOG.warning("set aside: %s", path + ASIDE)


def _move(fs: Any, folder: str, to: str) -> None:
    """Move a folder file by file in object stores, where s3fs would look for an object of that name and fail."""
    if is_local(fs):
        fs.mv(folder, to, recursive=True)
        return
    for path in fs.find(folder):
        fs.mv(path, to + path.removeprefix(folder))
