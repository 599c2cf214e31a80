"""A lock that allows one writer at a time in a folder, on any file system.

A writer puts a mark, named by a random token, into a folder of marks and then lists that folder. It owns the lock if
no other live writer has a mark there. Of two simultaneous writers, the second to write its mark sees the first one's:
this needs no conditional write, only listings that show all earlier writes (POSIX, S3, GCS, Azure).

A mark is dead when its process has ended, which other processes of the same machine see at once, or when it has not
been renewed for EXPIRY_S by the store's own clock. The next writer removes dead marks. A writer whose mark has been
removed has lost the lock: it and its workers call `check` before they publish anything.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from megahour.core.errors import StoreError
from megahour.core.transfer import is_local

LOG = logging.getLogger(__name__)
MARKS = ".writer"  # the folder of marks inside the locked folder
RENEW_S = 20.0
EXPIRY_S = 90.0  # without a renewal, a writer on another machine counts as dead
TRIES = 100  # attempts to write a mark while other writers come and go
TIE_S = 6.0  # of two simultaneous writers, how long the first by token waits for the other to give way
LOOK_S = 0.2  # how often it looks whether that one has
CHECKED_S = 2.0  # least time between two checks of a mark by one process


@contextmanager
def alone(
    fs: Any, folder: str | Path, *, marks: str = MARKS, where: str = "", what: str = "another process writes here"
) -> Iterator[str]:
    """Lock `folder` of the file system `fs` for this process; yields the token for `check`.

    Parameters
    ----------
    marks: folder of marks in `folder`; it exists only while the lock is held, or after its holder was killed.
    where: the folder as messages show it; by default `folder`.
    what: begins the error message.

    Raises
    ------
    StoreError: a live process holds the lock; the message names the process.
    """
    lock = _Lock(fs, f"{str(folder).rstrip('/')}/{marks}", where or str(folder), what)
    lock.take()
    try:
        yield lock.token
    finally:
        lock.release()


def check(fs: Any, folder: str | Path, token: str, *, marks: str = MARKS, where: str = "", fresh: bool = False) -> None:
    """Check that the lock is still ours. The writer and its workers call this before they publish anything.

    fresh: ask the store even if it was asked less than CHECKED_S ago.

    Raises StoreError: another writer has taken over, or the folder is gone.
    """
    path = f"{str(folder).rstrip('/')}/{marks}/{token}"
    now = time.monotonic()
    if not fresh and now - _checked.get(path, float("-inf")) < CHECKED_S:
        return
    fs.invalidate_cache()
    if not fs.exists(path):
        raise StoreError(
            "another run has taken over this folder, or it was removed",
            where=where or str(folder),
            remedy="make sure that only one run writes here; the same command resumes from the committed shards",
        )
    _checked[path] = now


_checked: dict[str, float] = {}  # path of a mark → when it was last seen


@dataclass(frozen=True)
class _Rival:
    token: str
    owner: dict[str, Any]
    age_s: float  # since its last renewal, by the store's clock
    here: bool  # on this machine

    @property
    def dead(self) -> bool:
        if self.here:
            return not _lives(int(self.owner["pid"]), self.owner["started"])
        return self.age_s > EXPIRY_S


class _Lock:
    def __init__(self, fs: Any, folder: str, where: str, what: str) -> None:
        self.token = uuid.uuid4().hex
        self._fs, self._folder, self._where, self._what = fs, folder, where, what
        self._path = f"{folder}/{self.token}"
        self._ended = threading.Event()
        self._renewal = threading.Thread(target=self._renew, daemon=True, name="megahour-lock")
        self._made_parent = False
        self._owner = {
            "host": socket.gethostname(),
            "machine": _machine(),
            "pid": os.getpid(),
            "started": _start_of(os.getpid()),
            "since": datetime.now().astimezone().isoformat(" ", "seconds"),
        }

    def take(self) -> None:
        try:
            self._put()
            deadline_s = time.monotonic() + TIE_S
            while rivals := self._rivals():
                first = min(rivals, key=lambda rival: ("held" not in rival.owner, rival.token))
                if "held" in first.owner or first.token < self.token or time.monotonic() > deadline_s:
                    raise self._refusal(first)
                time.sleep(LOOK_S)
        except BaseException:
            self._remove()
            raise
        self._owner["held"] = True  # others see it from the first renewal on, and then wait for no tie
        self._renewal.start()

    def release(self) -> None:
        self._ended.set()
        self._renewal.join(RENEW_S)
        self._remove()

    def _renew(self) -> None:
        renewed_s = time.time()  # wall time, which runs on while the machine sleeps
        silent = False
        while not self._ended.wait(RENEW_S):
            try:
                if not self._fs.exists(self._path):
                    return
                late = time.time() - renewed_s > EXPIRY_S / 2
                self._put()
                if late and self._rivals():  # others took this writer for dead while the machine slept
                    self._remove()
                    return
                renewed_s, silent = time.time(), False
            except Exception as error:  # the store may be unreachable for a moment; `check` decides
                if not (silent or self._ended.is_set()):
                    LOG.warning("%s cannot be written to (%s); trying again", self._where, error)
                silent = True

    def _put(self) -> None:
        data = json.dumps(self._owner).encode()
        if not is_local(self._fs):
            self._fs.pipe_file(self._path, data)
            return
        self._made_parent |= not Path(self._folder).parent.exists()
        for _ in range(TRIES):
            with contextlib.suppress(FileNotFoundError):  # the folder of marks does not exist, or no longer
                Path(self._path).write_bytes(data)
                return
            # Another run may just have removed an empty folder.
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                if self._moved_in(data):
                    return
        raise StoreError(
            "the mark of this run cannot be written", where=self._where, remedy="run the same command again"
        )

    def _moved_in(self, data: bytes) -> bool:
        """Create the folder of marks with the mark inside (an empty one might be removed); False if one exists."""
        scratch = Path(f"{self._folder}-{self.token}.tmp")
        try:
            scratch.mkdir(parents=True, exist_ok=True)
            (scratch / self.token).write_bytes(data)
            with contextlib.suppress(OSError):  # another writer's mark is there already
                scratch.rename(self._folder)  # replaces an empty folder
                return True
        finally:
            shutil.rmtree(scratch, ignore_errors=True)  # also on a full disk
        return False

    def _remove(self) -> None:
        with contextlib.suppress(Exception):  # a mark that stays is dead once this process is
            self._fs.rm_file(self._path)
        if is_local(self._fs):
            with contextlib.suppress(OSError):  # not empty
                Path(self._folder).rmdir()
                if self._made_parent:
                    Path(self._folder).parent.rmdir()

    def _rivals(self) -> list[_Rival]:
        """Other live writers; the marks of dead ones are removed."""
        self._fs.invalidate_cache()
        marks = {str(info["name"]).rsplit("/", 1)[-1]: info for info in self._fs.ls(self._folder, detail=True)}
        own = marks.pop(self.token, None)
        if own is None:
            raise StoreError("the mark of this run was removed", where=self._where, remedy="run the same command again")
        rivals = []
        for token, info in marks.items():
            rival = self._rival(token, info, own)
            if rival.dead:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rm_file(f"{self._folder}/{token}")
            else:
                rivals.append(rival)
        return rivals

    def _rival(self, token: str, info: dict[str, Any], own: dict[str, Any]) -> _Rival:
        try:
            owner = dict(json.loads(self._fs.cat_file(f"{self._folder}/{token}")))
            here = owner["machine"] == self._owner["machine"] and bool(owner["pid"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):  # being removed, being written, or not ours
            owner, here = {}, False
        return _Rival(token, owner, max(0.0, _modified(own) - _modified(info)), here)

    def _refusal(self, rival: _Rival) -> StoreError:
        owner = rival.owner
        who = f"process {owner.get('pid', '?')} on {owner.get('host', 'an unknown machine')}"
        message = f"{self._what}: {who}, since {owner.get('since', 'an unknown time')}"
        if rival.here:
            remedy = "wait for it, stop it, or choose another output"
        else:
            wait_s = max(1.0, EXPIRY_S - rival.age_s)
            remedy = (
                "wait for it, or choose another output. If it is dead, the same command takes over in "
                f"{wait_s:.0f} s, or at once if you remove {self._folder}/{rival.token}"
            )
        return StoreError(message, where=self._where, remedy=remedy)


def _modified(info: dict[str, Any]) -> float:
    """When a file was written, in seconds by its store's clock; 0 if the store does not report it."""
    for key in ("LastModified", "mtime", "last_modified", "updated", "modified", "created"):
        value = info.get(key)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return 0.0


def _lives(pid: int, started: str) -> bool:
    """Whether the local process with this number and start time is still alive."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        pass
    return not started or _start_of(pid) in (started, "")


def _start_of(pid: int) -> str:
    """A process's start time, which tells it from later processes of the same number; "ended" for a zombie.

    Empty if the system does not report it.
    """
    with contextlib.suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "ended" if state in "ZX" else fields[18]  # clock ticks from the machine's start to the process's
    import psutil

    try:
        process = psutil.Process(pid)
        return "ended" if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.Error:
        return ""


@cache
def _machine() -> str:
    """An identifier shared by processes that see each other's numbers: same machine, same boot, same container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{socket.gethostname()}/{uuid.getnode()}"
