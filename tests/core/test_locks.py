"""One writer at a time, on local disk and on S3, among threads and processes that want the same place."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from megahour.core import locks
from megahour.core.errors import StoreError
from megahour.core.locks import MARKS, alone, check
from megahour.core.store import Artifact
from megahour.core.transfer import Disk

HOLD = (
    "import sys, time; from megahour.core.store import Artifact; from megahour.core.locks import alone\n"
    "place = Artifact(sys.argv[1])\n"
    "with alone(place.fs, place.root): print('held', flush=True); time.sleep(600)\n"
)
ELSEWHERE = {"host": "far-away", "machine": "another/boot", "pid": 7, "started": "1", "since": "2026-01-01 00:00:00"}


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Artifact:
    if request.param == "local":
        return Artifact(tmp_path / "place")
    return Artifact(f"{request.getfixturevalue('s3_url')}/{tmp_path.name}")


def marks(place: Artifact) -> list[str]:
    place.fs.invalidate_cache()
    folder = place.path(MARKS)
    return [str(path) for path in place.fs.ls(folder, detail=False)] if place.fs.exists(folder) else []


def put(place: Artifact, token: str, **owner: Any) -> str:
    path = place.path(f"{MARKS}/{token}")
    if "://" not in place.url:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    place.fs.pipe_file(path, json.dumps({**ELSEWHERE, **owner}).encode())
    return path


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.01)


def test_of_many_that_come_at_once_one_gets_the_place(place: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder keeps it until all others have been refused, so a second holder would be noticed."""
    monkeypatch.setattr(locks, "TIE_S", 240.0)
    monkeypatch.setattr(locks, "RENEW_S", 0.5)  # from the first renewal on, others see who has the place
    for _ in range(3):
        start, outcomes = threading.Barrier(4), []

        def contend(start: threading.Barrier, outcomes: list[str]) -> None:
            start.wait()
            try:
                with alone(place.fs, place.root):
                    outcomes.append("held")
                    until(lambda: len(outcomes) == 4)
            except StoreError:
                outcomes.append("refused")

        threads = [threading.Thread(target=contend, args=(start, outcomes)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["held", "refused", "refused", "refused"]
        assert marks(place) == [], "nothing is left when all have gone"


@pytest.fixture
def no_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one does not wait for the first to give way."""
    monkeypatch.setattr(locks, "TIE_S", 0.1)


@pytest.mark.usefixtures("no_ties")
def test_the_second_is_told_who_the_first_is(place: Artifact) -> None:
    with alone(place.fs, place.root):
        who = rf"writes here: process {os.getpid()} on .+, since 20\d\d-.*\nRemedy: wait for it, stop it"
        with pytest.raises(StoreError, match=who), alone(place.fs, place.root):
            pass
    with alone(place.fs, place.root):
        assert len(marks(place)) == 1


@pytest.mark.usefixtures("no_ties")
def test_the_place_of_a_killed_process_is_free_at_once(place: Artifact) -> None:
    """Even if its parent has not collected its exit status yet."""
    with subprocess.Popen([sys.executable, "-c", HOLD, place.url], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        with pytest.raises(StoreError, match=f"process {owner.pid} on"), alone(place.fs, place.root):
            pass
        owner.kill()
        until(lambda: not locks._lives(owner.pid, locks._start_of(owner.pid)) or locks._start_of(owner.pid) == "ended")
        with alone(place.fs, place.root) as token:
            assert [path.rsplit("/", 1)[-1] for path in marks(place)] == [token]


def test_a_number_that_another_process_has_by_now_is_no_owner(place: Artifact) -> None:
    put(place, "0" * 32, machine=locks._machine(), pid=os.getpid(), started="12")
    with alone(place.fs, place.root):
        assert len(marks(place)) == 1


def test_another_machines_mark_counts_until_it_expires(place: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "TIE_S", 0.1)
    path = put(place, "0" * 32)
    refused = rf"process 7 on far-away, since 2026(.|\n)*takes over in \d+ s, or at once if you remove .*{'0' * 32}"
    with pytest.raises(StoreError, match=refused), alone(place.fs, place.root):
        pass
    assert marks(place) == [path], "the refused one leaves the owner's mark alone"
    monkeypatch.setattr(locks, "EXPIRY_S", 0.5)
    time.sleep(1.6)  # the clock of S3 shows whole seconds
    with alone(place.fs, place.root):
        assert path not in marks(place)


def test_nobody_waits_for_one_that_has_the_place_for_some_time(
    place: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "TIE_S", 240.0)
    put(place, "f" * 32, held=True)  # as from the first renewal on; by its token it would have to give way
    began_s = time.monotonic()
    with pytest.raises(StoreError, match="process 7 on far-away"), alone(place.fs, place.root):
        pass
    assert time.monotonic() - began_s < locks.TIE_S / 2


def test_the_owner_renews_its_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "RENEW_S", 0.02)
    place = Artifact(tmp_path / "place")
    with alone(place.fs, place.root):
        (mark,) = map(Path, marks(place))
        first = mark.stat().st_mtime_ns
        until(lambda: mark.stat().st_mtime_ns > first)
        until(lambda: json.loads(mark.read_text() or "{}").get("held") is True)


def test_a_store_that_does_not_answer_is_named_once_in_each_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A store's client tries again for minutes, in which the run has nothing else to say; the lock is kept."""
    monkeypatch.setattr(locks, "RENEW_S", 0.02)
    place, asked = Artifact(tmp_path / "place"), list[str]()

    def silent(path: str) -> bool:
        asked.append(path)
        raise OSError("no route to host")

    with alone(place.fs, place.root, where="s3://b/run") as token:
        for outage in (1, 2):
            with monkeypatch.context() as patch:
                patch.setattr(place.fs, "exists", silent)
                asked.clear()
                until(lambda: len(asked) > 2)
            (mark,) = map(Path, marks(place))
            renewed = mark.stat().st_mtime_ns
            until(lambda mark=mark, renewed=renewed: mark.stat().st_mtime_ns > renewed)
            assert caplog.messages == ["s3://b/run cannot be written to (no route to host); trying again"] * outage
        check(place.fs, place.root, token)


def test_who_comes_back_to_life_late_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine slept and it was presumed dead, so it must not restore its mark."""
    monkeypatch.setattr(locks, "RENEW_S", 0.2)
    monkeypatch.setattr(locks, "EXPIRY_S", 0.3)
    place = Artifact(tmp_path / "place")
    with alone(place.fs, place.root) as token:
        path = put(place, "f" * 32)
        Path(path).touch()
        os.utime(path, (time.time() + 60, time.time() + 60))
        until(lambda: marks(place) == [path])
        with pytest.raises(StoreError, match="another run has taken over this folder"):
            check(place.fs, place.root, token)


def test_a_writer_that_has_lost_its_place_is_told(place: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "CHECKED_S", 600.0)
    with alone(place.fs, place.root) as token:
        check(place.fs, place.root, token)
        (mark,) = marks(place)
        place.fs.rm_file(mark)
        check(place.fs, place.root, token)  # asked a moment ago
        with pytest.raises(StoreError, match="another run has taken over this folder"):
            check(place.fs, place.root, token, fresh=True)


def test_others_that_leave_at_the_same_moment_take_no_folder_away(tmp_path: Path) -> None:
    """A process that leaves removes the empty folder of marks, even just after another one created it."""
    place, ended = Artifact(tmp_path / "place"), threading.Event()
    folder = Path(place.path(MARKS))

    def leave() -> None:
        while not ended.is_set():
            with suppress(OSError):
                folder.rmdir()

    leaver = threading.Thread(target=leave)
    leaver.start()
    try:
        for _ in range(300):
            with alone(place.fs, place.root) as token:
                assert [Path(mark).name for mark in marks(place)] == [token]
    finally:
        ended.set()
        leaver.join()


def test_a_mark_that_cannot_be_read_counts_until_it_expires(place: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be another version's, or being written."""
    path = put(place, "0" * 32)
    for junk in (b"", b"[]", b"3", b'{"pid": 1}', b"\xff"):
        place.fs.pipe_file(path, junk)
        who = r"writes here: process .+ on an unknown machine, since an unknown time\nRemedy: wait for it"
        with pytest.raises(StoreError, match=who), alone(place.fs, place.root):
            pass
    monkeypatch.setattr(locks, "EXPIRY_S", 0.5)
    time.sleep(1.6)
    with alone(place.fs, place.root):
        assert path not in marks(place)


def test_the_first_by_token_waits_until_the_others_have_given_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "TIE_S", 0.3)
    place = Artifact(tmp_path / "place")
    path = put(place, "f" * 32)
    began_s = time.monotonic()
    with pytest.raises(StoreError, match="process 7 on far-away"), alone(place.fs, place.root):
        pass
    assert time.monotonic() - began_s > 0.3, "the other had the time to go"
    monkeypatch.setattr(locks, "TIE_S", 240.0)
    goes = threading.Timer(0.2, Path(path).unlink)
    goes.start()
    began_s = time.monotonic()
    with alone(place.fs, place.root):
        assert time.monotonic() - began_s < locks.TIE_S / 2, "it is not waited for once it has gone"
    goes.join()


def test_a_writer_whose_mark_is_gone_does_not_write_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "RENEW_S", 0.02)
    place = Artifact(tmp_path / "place")
    with alone(place.fs, place.root):
        (mark,) = map(Path, marks(place))
        mark.unlink()
        until(lambda: not renewals())
        assert marks(place) == []
    with alone(place.fs, place.root):
        assert len(renewals()) == 1
    assert renewals() == [], "the thread ends with the lock"


def renewals() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "megahour-lock"]


def test_a_writer_whose_mark_is_gone_before_it_has_the_place_is_refused(tmp_path: Path) -> None:
    place = Artifact(tmp_path / "place")
    lock = locks._Lock(place.fs, place.path(MARKS), "there", "somebody writes here")
    lock._put()
    Path(lock._path).unlink()
    with pytest.raises(
        StoreError, match=r"there: the mark of this run was removed\nRemedy: run the same command again"
    ):
        lock._rivals()


def test_the_store_is_asked_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Artifact(tmp_path / "place")
    with alone(place.fs, place.root) as token:
        check(place.fs, place.root, token)
        (mark,) = map(Path, marks(place))
        mark.unlink()
        monkeypatch.setattr(locks, "CHECKED_S", 0.0)
        with pytest.raises(StoreError, match=rf"{place.root}: another run has taken over this folder"):
            check(place.fs, place.root, token)
        with pytest.raises(StoreError, match=r"^the run: another run has taken"):
            check(place.fs, place.root, token, where="the run")


def test_listings_that_a_file_system_keeps_hide_no_writer(s3_url: str, tmp_path: Path) -> None:
    """s3fs remembers listings unless it is asked not to."""
    s3fs = pytest.importorskip("s3fs", reason="pip install s3fs to test object stores")
    place = Artifact(f"{s3_url}/{tmp_path.name}")
    keeping = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=True)
    with alone(keeping, place.root) as token:
        keeping.ls(place.path(MARKS))
        (mark,) = marks(place)
        place.fs.rm_file(mark)
        with pytest.raises(StoreError, match="another run has taken over this folder"):
            check(keeping, place.root, token)
        put(place, "0" * 32, held=True)
        with pytest.raises(StoreError, match="process 7 on far-away"), alone(keeping, place.root):
            pass


@pytest.mark.parametrize(
    ("info", "written_s"),
    [
        ({"LastModified": datetime(2026, 1, 1, tzinfo=UTC)}, 1767225600.0),  # s3fs
        ({"mtime": 12.5}, 12.5),  # local disk
        ({"updated": "2026-01-01T00:00:00.000Z"}, 1767225600.0),  # gcsfs
        ({"last_modified": "long ago", "created": 7}, 7.0),
        ({"mtime": None}, 0.0),
        ({}, 0.0),
    ],
)
def test_each_store_says_in_its_own_way_when_a_file_was_written(info: dict[str, Any], written_s: float) -> None:
    assert locks._modified(info) == written_s


def test_a_process_is_known_by_its_number_and_its_start() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        started = locks._start_of(child.pid)
        assert int(started) > 0
        assert locks._lives(child.pid, started)
        assert locks._lives(child.pid, ""), "where the system does not say when it began, its number counts"
        assert not locks._lives(child.pid, "12")
    finally:
        child.kill()
        child.wait()
    assert not locks._lives(child.pid, started)
    assert locks._start_of(child.pid) == ""


def test_operations_can_rely_on_the_times_in_the_handbook() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
    assert f"after {locks.EXPIRY_S:g} s on another one" in text
    assert locks.RENEW_S * 4 < locks.EXPIRY_S, "a renewal or three may fail"
    assert locks.CHECKED_S < locks.TIE_S < locks.RENEW_S, "a renewal tells others that they need not wait for a tie"


def test_only_a_folder_that_the_lock_has_made_goes_with_it(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("mine", "new"):
        place = Artifact(tmp_path / name)
        with alone(place.fs, place.root):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_holding_a_place_on_s3_takes_three_requests(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    calls: list[str] = []
    call = s3fs.S3FileSystem._call_s3

    async def counted(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
        calls.append(method)
        return await call(self, method, *arguments, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counted)
    monkeypatch.setattr(locks, "CHECKED_S", 600.0)
    place = Artifact(f"{s3_url}/{tmp_path.name}")
    with alone(place.fs, place.root) as token:
        for _ in range(100):
            check(place.fs, place.root, token)
    assert len(calls) <= 5, calls


def test_the_plain_disk_locks_against_fsspec_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "TIE_S", 0.1)
    with (
        alone(Disk(), tmp_path),
        pytest.raises(StoreError, match="another process"),
        alone(LocalFileSystem(), tmp_path),
    ):
        pass
    with (
        alone(LocalFileSystem(), tmp_path),
        pytest.raises(StoreError, match="another process"),
        alone(Disk(), tmp_path),
    ):
        pass
    with alone(Disk(), tmp_path) as token:
        check(Disk(), tmp_path, token, fresh=True)
        (tmp_path / MARKS / token).unlink()
        with pytest.raises(StoreError, match="taken over"):
            check(Disk(), tmp_path, token, fresh=True)
    assert not list(tmp_path.iterdir())


def test_a_mark_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk still has room for a folder's name: `.writer-….tmp` stayed, beside what was to be written."""

    def full(path: Path, data: bytes) -> int:
        number = errno.ENOSPC if path.parent.exists() else errno.ENOENT
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"), alone(Disk(), tmp_path, marks=".bundle.writer", where="bundle"):
        pass
    assert not list(tmp_path.iterdir())
