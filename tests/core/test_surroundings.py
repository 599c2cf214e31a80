"""Errors of disks, file systems and stores become a line with a place and a remedy; those of the program do not."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from megahour.core.errors import BadRecord, MegahourError, StoreError
from megahour.core.store import Artifact
from megahour.core.surroundings import explained, explaining, is_of_a_store
from megahour.recipes.recipe import resolve
from megahour.recipes.run import plan
from megahour.transcribe.bundle import Bundle


def remedy(error: BaseException) -> str:
    known = explained(error)
    assert isinstance(known, StoreError)
    return known.remedy


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some space"),
        (errno.EACCES, "a path that you may write to"),
        (errno.EROFS, "a path that you may write to"),
        (errno.ENOTDIR, "a path that you may write to"),
        (errno.ENAMETOOLONG, "give another path"),
        (errno.ELOOP, "give another path"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENOENT, "check the path"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EIO, "check the disk and the network"),
    ],
)
def test_each_error_has_its_remedy(number: int, words: str) -> None:
    assert words in remedy(OSError(number, os.strerror(number), "/data/x"))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (FileNotFoundError, "check the path"),
        (PermissionError, "a path that you may write to"),
        (FileExistsError, "a path that you may write to"),
        (IsADirectoryError, "a path that you may write to"),
        (ConnectionError, "check the disk and the network"),
        (TimeoutError, "check the disk and the network"),
    ],
)
def test_stores_raise_kinds_of_errors_without_numbers(kind: type[OSError], words: str) -> None:
    assert words in remedy(kind("the bucket"))


def test_the_place_and_the_words_are_those_of_the_error() -> None:
    known = explained(FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/x"))
    assert str(known).startswith("/data/x: No such file or directory\nRemedy:")
    assert str(explained(FileNotFoundError("bucket/key"))).startswith("bucket/key\nRemedy:")


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/data/.7139120e.tmp", "/data: "),
        ("/data/.bundle.writer-f7fc.tmp", "/data: "),
        ("out/.bundle.8888.partial/golden/000.wav", "out: "),
        (".7139120e.tmp", ""),
        ("/data/x.tmp", "/data/x.tmp: "),
        ("/data/.hidden/x", "/data/.hidden/x: "),
    ],
)
def test_a_scratch_file_is_not_named_but_its_folder(path: str, where: str) -> None:
    """Nobody knows `.7139120e.tmp`, which is gone by then."""
    known = explained(OSError(errno.EROFS, "Read-only file system", path))
    assert str(known).startswith(f"{where}Read-only file system\n")


def test_a_stores_client_is_named_as_the_store() -> None:
    error = type("NoCredentialsError", (Exception,), {"__module__": "botocore.exceptions"})("no keys")
    assert is_of_a_store(error)
    assert not is_of_a_store(ValueError("no"))
    assert str(explained(error)) == (
        "the store cannot be used: no keys\nRemedy: check the address, the credentials and the network"
    )


@pytest.mark.parametrize(("kind", "words"), [(PermissionError, "the credentials"), (OSError, "the address")])
def test_the_answer_of_a_store_is_no_matter_of_a_disk(kind: type[OSError], words: str) -> None:
    """s3fs raises an OSError for it, also where nothing is written: "choose a path that you may write to" misleads."""
    answer = kind(errno.EIO if kind is OSError else errno.EACCES, "Forbidden")
    answer.__cause__ = type("ClientError", (Exception,), {"__module__": "botocore.exceptions"})("403")
    assert words in remedy(answer)
    assert "disk" not in remedy(answer)
    full = OSError(errno.ENOSPC, "full")
    full.__cause__ = answer.__cause__
    assert "free some space" in remedy(full)


def test_a_store_that_answers_no_is_named_with_what_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is a bare "Forbidden"; `verify` asks for a bundle first, `status`, `plan` and `run` for history."""

    def forbidden(self: object, path: str, *more: object, **options: object) -> bool:
        raise PermissionError(errno.EACCES, "Forbidden")

    for request in ("exists", "cat_file", "ls", "info"):
        monkeypatch.setattr(MemoryFileSystem, request, forbidden)
    recipe = resolve({"steps": {"ingest": {"source": "talks"}}, "run": "memory://run"}, name="r", where="r")
    asked: dict[str, Callable[[], object]] = {
        "memory://bucket": lambda: Bundle.at("memory://bucket"),
        "memory://numbers": lambda: Artifact("memory://numbers").complete,
        "memory://run": lambda: plan(recipe),
    }
    for place, ask in asked.items():
        with pytest.raises(StoreError, match=f"{place}[^:]*: Forbidden"):
            ask()


def test_an_endpoint_without_a_protocol_is_the_stores_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore raises a plain ValueError for it."""
    s3fs = pytest.importorskip("s3fs")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "127.0.0.1:9000")
    with pytest.raises(StoreError, match="cannot be used: Invalid endpoint: 127"), explaining("r"):
        s3fs.S3FileSystem(skip_instance_cache=True, key="k", secret="s").exists("bucket/file")


def test_too_little_memory_is_no_fault_of_the_program() -> None:
    """numpy's error is a MemoryError that says how much was asked for, Python's own says nothing."""
    with pytest.raises(MemoryError) as caught:
        np.empty(1 << 60, np.int8)
    assert str(explained(caught.value)).startswith("not enough memory: Unable to allocate 1.00 EiB")
    known = explained(MemoryError())
    assert str(known).startswith("not enough memory\nRemedy: use fewer workers or smaller shards")


def test_what_explains_itself_stays_as_it_is() -> None:
    own = BadRecord("nan-audio")
    assert explained(own) is own
    with pytest.raises(BadRecord) as caught, explaining("here"):
        raise own
    assert caught.value is own
    assert caught.value.where == ""


def where(number: int, *disks: str | Path, filename: str | None = None) -> str:
    with pytest.raises(MegahourError) as caught, explaining("here", *disks):
        raise OSError(number, os.strerror(number), filename)
    return caught.value.where


def test_an_error_without_a_path_gets_one(tmp_path: Path) -> None:
    """Of a full disk that of the fullest; `/proc` has no room at all."""
    below = tmp_path / "not" / "there" / "yet"
    assert where(errno.EIO) == "here"
    assert where(errno.EIO, filename="/data/x") == "/data/x"
    assert where(errno.ENOSPC) == "here"
    assert where(errno.ENOSPC, below, "/proc") == "/proc"
    assert where(errno.ENOSPC, "/proc/not/there", below) == "/proc/not/there"
    assert where(errno.EDQUOT, below, "/proc") == "/proc"
    assert where(errno.ENOSPC, "/proc", below, filename="/data/x") == "/data/x"


def test_of_a_rename_the_path_is_the_one_asked_for(tmp_path: Path) -> None:
    """Not that of the temporary file, of which the user never heard."""
    (tmp_path / "out.txt").mkdir()
    (tmp_path / ".tmp").touch()
    with pytest.raises(StoreError, match=r"out\.txt: Is a directory"), explaining("here"):
        (tmp_path / ".tmp").replace(tmp_path / "out.txt")
