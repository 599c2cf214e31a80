"""Inputs that `transcribe` cannot use are named with a remedy before any model is read."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from megahour.cli.main import app
from megahour.core.errors import ConfigError


def refused(*words: str, cwd: Path | None = None) -> ConfigError:
    with contextlib.chdir(cwd or Path.cwd()):
        error = CliRunner().invoke(app, ["transcribe", *words]).exception
    assert isinstance(error, ConfigError), error
    return error


def test_a_recipe_that_was_not_run_says_how_to_run_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like the first command of the README in a fresh checkout."""
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


def test_what_is_there_is_not_written_over_unasked(tmp_path: Path) -> None:
    """In a corpus the text beside a recording was written by people."""
    (tmp_path / "talk.wav").write_bytes(b"")
    (tmp_path / "talk.txt").write_text("by people", "utf-8")
    error = refused(str(tmp_path), "--model", "demo", "--out", str(tmp_path))
    assert "1 of 1 outputs already exist, such as talk.txt" in str(error)
    assert {"--resume", "--overwrite"} <= set(error.remedy.split())
    for option in ("--resume", "--overwrite"):  # goes on to the model, which is not there
        assert "demo was not run here" in str(
            refused(str(tmp_path), "--model", "demo", "--out", str(tmp_path), option, cwd=tmp_path)
        )
        assert "without --out" in str(refused(str(tmp_path), "--model", "demo", option))
    assert (tmp_path / "talk.txt").read_text("utf-8") == "by people"


def test_hidden_files_of_a_folder_are_left_out(tmp_path: Path) -> None:
    """On foreign disks macOS writes `._talk.wav` beside talk.wav, which is not audio."""
    (tmp_path / "._talk.wav").write_bytes(b"\0\5\x16\7")
    assert "no audio files in this folder" in str(refused(str(tmp_path), "--model", "demo"))
    assert "demo was not run" in str(refused(str(tmp_path / "._talk.wav"), "--model", "demo", cwd=tmp_path))


def test_a_rate_is_of_raw_samples_on_standard_input(tmp_path: Path) -> None:
    """It used to be ignored for files, or with --stream to read an MP3's bytes as samples."""
    (tmp_path / "talk.mp3").write_bytes(b"")
    for live in ([], ["--stream"]):
        error = refused(str(tmp_path / "talk.mp3"), "--model", "demo", "--rate-hz", "16000", *live)
        assert error.remedy == "send it to standard input: megahour transcribe - --rate-hz 16000 < FILE"


def test_an_address_is_not_read_from_elsewhere() -> None:
    assert "copy it to this machine" in refused("s3://bucket/talk.wav", "--model", "demo").remedy


def test_standard_input_is_read_once() -> None:
    assert "standard input twice" in str(refused("-", "-", "--model", "demo"))


def test_a_store_does_not_become_a_local_folder(tmp_path: Path) -> None:
    """`s3://bucket/x` used to make the folders `s3:/bucket/x` here."""
    (tmp_path / "talk.wav").write_bytes(b"")
    assert "local folder" in refused("talk.wav", "--model", "demo", "--out", "s3://bucket/x", cwd=tmp_path).remedy
    assert [path.name for path in tmp_path.iterdir()] == ["talk.wav"]


def test_a_broken_link_to_audio_is_an_input(tmp_path: Path) -> None:
    """It used to be passed over: "no audio files in this folder"."""
    (tmp_path / "talk.wav").symlink_to("/disk/that/is/not/there.wav")
    assert "demo was not run" in str(refused(str(tmp_path), "--model", "demo", cwd=tmp_path))


def test_a_stream_has_no_whole(tmp_path: Path) -> None:
    """--whole used to be ignored."""
    (tmp_path / "talk.wav").write_bytes(b"")
    assert "--whole with --stream" in str(refused(str(tmp_path), "--model", "demo", "--whole", "--stream"))


@pytest.mark.parametrize("more", [["--format", "srt"], ["--format", "json", "--stream"]])
def test_lists_of_texts_are_in_json_of_files(tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "talk.wav").write_bytes(b"")
    asked = [str(tmp_path / "talk.wav"), "--model", "demo", "--set", "nbest=5", *more]
    assert "--set nbest lists texts in JSON" in str(refused(*asked))


@pytest.mark.parametrize("form", ["srt", "vtt"])
def test_subtitles_of_two_files_need_a_folder(tmp_path: Path, form: str) -> None:
    """One after the other, with times and numbers from the start, they are not a file of subtitles."""
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).write_bytes(b"")
    error = refused(str(tmp_path), "--model", "demo", "--format", form)
    assert f"{form} of 2 inputs on standard output" in str(error)
    assert "--out" in error.remedy
    for others in (["--format", form, "--out", "subtitles"], ["--format", "json"]):
        assert "demo was not run" in str(refused(str(tmp_path), "--model", "demo", *others, cwd=tmp_path))
