"""Addresses whose file system is not installed: the error names the package, wherever the address is used."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec.registry  # noqa: F401
import pytest

from megahour.core.errors import ConfigError
from megahour.core.filesystems import file_system, local_file, version_of
from megahour.core.locks import alone
from megahour.core.store import Artifact

USES: list[Callable[[str], Any]] = [file_system, Artifact, version_of]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes all optional packages impossible to import, whatever is installed here."""
    for package in ("s3fs", "gcsfs", "adlfs", "paramiko"):
        monkeypatch.setitem(sys.modules, package, None)
        for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
            monkeypatch.delitem(sys.modules, name)
    registered = vars(sys.modules["fsspec.registry"])["_registry"]
    for protocol in ("s3", "gs", "abfs", "sftp"):
        monkeypatch.delitem(registered, protocol, raising=False)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.sftp", raising=False)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("use", USES, ids=["address", "artifact", "model"])
@pytest.mark.parametrize(
    ("address", "package"),
    [
        ("s3://bucket/run", '"megahour[s3]"'),
        ("gs://bucket/run", "gcsfs"),
        ("abfs://box/run", "adlfs"),
        ("sftp://h/run", "paramiko"),
    ],
)
def test_a_missing_package_is_named(use: Callable[[str], Any], address: str, package: str) -> None:
    with pytest.raises(ConfigError) as caught:
        use(address)
    assert f"pip install {package}" in str(caught.value)
    assert address in str(caught.value)


@pytest.mark.parametrize("use", USES, ids=["address", "artifact", "model"])
def test_an_unknown_protocol_is_an_error_too(use: Callable[[str], Any]) -> None:
    with pytest.raises(ConfigError, match="Protocol not known: s4"):
        use("s4://bucket/run")


@pytest.mark.parametrize("address", ["s3://", "s3:///demo", "gs://", "s3:/recordings"])
@pytest.mark.parametrize("use", USES, ids=["address", "artifact", "model"])
def test_an_address_without_its_bucket_is_no_local_folder(use: Callable[[str], Any], address: str) -> None:
    """As in `s3://$BUCKET/demo` if BUCKET is not set."""
    with pytest.raises(ConfigError, match=r"no bucket is named\nRemedy: .*variable of the shell"):
        use(address)


@pytest.mark.parametrize("store", ["local", "s3"])
def test_a_file_that_is_written_again_has_another_version(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Local disks by time, S3 by a hash of the bytes; this also holds for a file of the same size."""
    folder = tmp_path if store == "local" else f"{request.getfixturevalue('s3_url')}/{tmp_path.name}"
    path = f"{folder}/list.txt"
    fs, inner = file_system(path)
    fs.pipe_file(inner, b"one")
    first = version_of(path)
    assert version_of(path) == first
    fs.pipe_file(inner, b"two")
    if store == "local":
        os.utime(path, (1, 1))
    fs.invalidate_cache()
    assert version_of(path) != first
    with pytest.raises(ConfigError, match="no such file"):
        version_of(f"{folder}/gone.txt")


def test_two_colons_in_a_local_name_are_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec takes what is before them for a protocol: a run made a folder `talks:`, and found itself locked."""
    monkeypatch.chdir(tmp_path)
    for folder in ("talks::2019", f"{tmp_path}/talks::2019"):
        fs, path = file_system(f"{folder}/run")
        assert (path, fs.protocol) == (f"{tmp_path}/talks::2019/run", ("file", "local"))
        with alone(fs, path):
            pass
    (tmp_path / "talks::2019" / "a.txt").write_text("a")
    assert local_file("talks::2019/a.txt") == f"{tmp_path}/talks::2019/a.txt"
    assert local_file("simplecache::talks::2019/a.txt") is None
    assert file_system(f"simplecache::file://{tmp_path}/a.txt")[0].protocol != fs.protocol, "protocols are still joined"
    assert [each.name for each in tmp_path.iterdir()] == ["talks::2019"]
