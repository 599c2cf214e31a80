"""What `transcribe` cannot take is named with its remedy before any model is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from megahour.cli.main import app
from megahour.core.errors import ConfigError


def refused(*words: str) -> ConfigError:
    error = CliRunner().invoke(app, ["transcribe", *words]).exception
    assert isinstance(error, ConfigError), error
    return error


def test_a_recipe_that_was_not_run_says_how_to_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the first command of the README has it, in a fresh checkout."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk.wav").write_bytes(b"")
    error = refused("talk.wav", "--model", "demo")
    assert "the recipe demo was not run here" in str(error)
    assert error.remedy.startswith("`megahour run demo` makes it")


def test_a_pipe_in_place_of_a_file_is_sent_to_standard_input(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.wav")
    error = refused(str(tmp_path / "pipe.wav"), "--model", "demo")
    assert "a pipe or a device" in str(error)
    assert "standard input" in error.remedy
    assert "no such file" in str(refused(str(tmp_path / "none.wav"), "--model", "demo"))
