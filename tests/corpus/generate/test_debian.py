"""Prompts from Debian packages: a real package is built and unpacked; only the download is a copy from a folder."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile

from megahour.core.errors import StageError
from megahour.corpus.generate.debian import prompts

pytestmark = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not on this machine")

SAMPLES = np.sin(np.arange(800, dtype=np.float32))


def build(package: str, files: dict[str, bytes], pool: Path) -> None:
    root = pool / package
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "DEBIAN").mkdir()
    control = f"Package: {package}\nVersion: 1\nArchitecture: all\nMaintainer: nobody <a@b.c>\nDescription: clips\n"
    (root / "DEBIAN" / "control").write_text(control)
    subprocess.run(["dpkg-deb", "-b", str(root), str(pool / f"{package}_1_all.deb")], check=True, capture_output=True)


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program `apt-get` that "downloads" packages from a folder, as apt does: into the directory that it runs in."""
    pool, programs = tmp_path / "pool", tmp_path / "bin"
    pool.mkdir()
    programs.mkdir()
    script = f'#!/bin/sh\nset -e\nshift\nfor name in "$@"; do cp "{pool}/${{name}}_1_all.deb" .; done\n'
    (programs / "apt-get").write_text(script)
    (programs / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    return pool


def test_prompts_are_unpacked_below_a_relative_folder(
    apt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile.write(tmp_path / "clip.wav", SAMPLES, 8000)
    clip = (tmp_path / "clip.wav").read_bytes()
    sounds = "usr/share/asterisk/sounds/it_IT_voice"
    build("asterisk-core-sounds-it-wav", {f"{sounds}/ciao.wav": clip, f"{sounds}/digits/1.wav": clip}, apt)
    listing = gzip.compress(b"; comment\nciao: Ciao, come stai?\n")
    build("asterisk-core-sounds-it", {"usr/share/doc/asterisk-core-sounds-it/core-sounds-it.txt.gz": listing}, apt)
    monkeypatch.chdir(tmp_path)
    assert list(prompts("it", Path("work"))) == [
        ("it_IT_voice/ciao.wav", clip),
        ("it_IT_voice/ciao.txt", b"Ciao, come stai?"),
        ("it_IT_voice/digits/1.wav", clip),
    ]


def test_a_failed_download_says_what_to_do(apt: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="apt-get update"):
        list(prompts("ru", tmp_path / "work"))
