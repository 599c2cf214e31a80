"""Files shared by the processes of a machine: made once, complete, and bounded in size."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from megahour.batches.cache import Cache
from megahour.core.errors import StoreError

KB = 1 << 10


def writing(content: bytes, made: list[str] | None = None, wait_s: float = 0.0):
    def make(path: Path) -> None:
        if made is not None:
            made.append(path.name)
        time.sleep(wait_s)
        path.write_bytes(content)

    return make


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"}


def test_of_all_who_ask_for_a_file_one_makes_it_and_the_others_wait(tmp_path: Path) -> None:
    made: list[str] = []
    with ThreadPoolExecutor(8) as pool:  # each with a cache of its own, as processes have
        opened = [pool.submit(Cache(tmp_path, KB).open, "a", writing(b"abc", made, 0.2)) for _ in range(8)]
        assert {future.result().read() for future in opened} == {b"abc"}
    assert made == ["a.part"]


def test_processes_wait_for_each_other_and_one_that_is_killed_holds_nothing_up(tmp_path: Path) -> None:
    holds = (
        "import sys, time; from pathlib import Path; from megahour.batches.cache import Cache\n"
        "def make(path):\n    path.write_bytes(b'half'); print('making', flush=True); time.sleep(600)\n"
        "Cache(Path(sys.argv[1]), 1024).open('a', make)\n"
    )
    with subprocess.Popen([sys.executable, "-c", holds, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"making\n"
        found: list[bytes] = []
        waiting = threading.Thread(target=lambda: found.append(Cache(tmp_path, KB).open("a", writing(b"whole")).read()))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        process.kill()
    waiting.join()
    assert found == [b"whole"]


def test_what_was_used_longest_ago_goes_when_the_limit_is_passed(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 130 * KB)
    held = {}
    for number, name in enumerate("abc"):
        held[name] = cache.open(name, writing(bytes([number]) * 40 * KB))
        os.utime(tmp_path / name, ns=(number, number))
    assert cache.held("a") is not None  # used last, by now
    cache.open("d", writing(b"d" * 40 * KB))
    assert names(tmp_path) == {"a", "c", "d"}
    assert held["b"].read() == b"\x01" * 40 * KB  # who has it keeps it
    assert cache.held("b") is None
    cache.open("e", writing(b"e" * 500 * KB))
    assert {path.name for path in tmp_path.iterdir()} == {"e", "e.lock"}


def test_holes_take_no_room(tmp_path: Path) -> None:
    def make(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(1 << 30)
            file.write(b"x")

    cache = Cache(tmp_path, 100 * KB)
    cache.open("sparse", make)
    cache.open("other", writing(b"y" * 40 * KB))
    assert names(tmp_path) == {"sparse", "other"}


def test_what_an_ended_process_left_is_removed_and_what_is_being_made_is_not(tmp_path: Path) -> None:
    (tmp_path / "old.part").write_bytes(b"x" * 40 * KB)
    os.utime(tmp_path / "old.part", ns=(1, 1))
    began, go_on = threading.Event(), threading.Event()

    def make(path: Path) -> None:
        path.write_bytes(b"y" * 40 * KB)
        began.set()
        go_on.wait(240)

    thread = threading.Thread(target=Cache(tmp_path, KB).open, args=("slow", make))
    thread.start()
    assert began.wait(240)
    Cache(tmp_path, KB).open("new", writing(b"z"))
    assert "old.part" not in names(tmp_path)
    assert "slow.part" in names(tmp_path)
    go_on.set()
    thread.join()


def test_an_error_leaves_no_file_and_a_full_disk_names_the_parameter(tmp_path: Path) -> None:
    def broken(path: Path) -> None:
        path.write_bytes(b"half")
        raise ConnectionError("gone")

    def full(path: Path) -> None:
        with Path("/dev/full").open("wb", buffering=0) as file:
            file.write(b"x")

    cache = Cache(tmp_path, KB)
    with pytest.raises(ConnectionError):
        cache.open("a", broken)
    assert cache.held("a") is None
    with pytest.raises(StoreError, match="cache_gb"):
        cache.open("a", full)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        Cache(tmp_path / "file", KB).open("a", writing(b""))
