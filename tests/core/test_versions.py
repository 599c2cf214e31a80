"""What a run was made with is known of every package that shapes results, and names no machine."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

import megahour
from megahour.core.versions import PACKAGES, versions


def test_versions_are_those_of_the_packages() -> None:
    found = versions()
    assert set(found) == {"megahour", "commit", "python", *PACKAGES, "machine", "processor", "cores"}
    assert found["python"] == platform.python_version()
    assert found["pyarrow"] == metadata.version("pyarrow")
    assert found["cores"] == str(os.cpu_count())
    assert found["machine"] == f"{platform.system()} {platform.machine()}"
    assert socket.gethostname() not in found.values()


def test_the_commit_is_that_of_the_checkout() -> None:
    root = Path(megahour.__file__).parent.parent
    if not (root / ".git").exists():
        assert versions()["commit"] == "unknown"
        return
    head = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    assert head.startswith(versions()["commit"].removesuffix("-dirty")[:12])


def test_the_processor_is_that_of_the_first_core() -> None:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    assert versions()["processor"] == (names[0] if names else platform.processor() or "unknown")


def test_what_is_not_there_is_unknown_or_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megahour.core.versions.PACKAGES", ("numpy", "no-such-package"))
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.setattr(megahour, "__file__", str(tmp_path / "site-packages" / "megahour" / "__init__.py"))
    found = versions.__wrapped__()
    assert (found["no-such-package"], found["cores"], found["commit"]) == ("missing", "unknown", "unknown")
    (tmp_path / "site-packages" / ".git").mkdir(parents=True)
    assert versions.__wrapped__()["commit"] == "unknown", "no repository after all"
    monkeypatch.setenv("PATH", "")
    assert versions.__wrapped__()["commit"] == "unknown", "no git"
