"""Outputs of commands: a file appears whole; a pipe, a device or standard output is written to and stays."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from megahour.cli.main import app
from megahour.core.errors import StoreError
from megahour.core.filesystems import file_system
from megahour.core.output import is_sink, prepare_output, write_output
from megahour.core.transfer import publish_lines


def piped(pipe: Path, *command: str | Path) -> bytes:
    """What a reader of `pipe` gets of a command."""
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        CliRunner().invoke(app, [str(word) for word in command], catch_exceptions=False)
        return reader.communicate(timeout=240)[0]


def test_a_named_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    page = piped(pipe, "docs", pipe)
    assert page.startswith(b"# Stages\n")
    assert pipe.is_fifo()
    write_output(tmp_path / "stages.md", page.decode())
    assert (tmp_path / "stages.md").read_bytes() == page


@pytest.mark.parametrize("out", ["-", "/dev/stdout", "/dev/fd/1"])
def test_standard_output_is_appended_to_where_a_shell_redirected_it(out: str, tmp_path: Path) -> None:
    """`/dev/stdout` is then a link to a regular file: opened again, it would lose what was there before."""
    with (tmp_path / "file").open("wb") as file:
        file.write(b"before ")
        file.flush()
        code = f"from megahour.core.output import write_output; write_output({out!r}, 'text\\n')"
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert (tmp_path / "file").read_bytes() == b"before text\n"
    assert os.path.lexists("/dev/stdout")


def test_what_is_written_to_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    sinks = [
        "-",
        "/dev/stdout",
        "/dev/null",
        "/dev/full",
        "/dev/fd/9",
        "/proc/self/fd/2",
        tmp_path / "pipe",
        tmp_path / "link",
    ]
    assert [path for path in sinks if not is_sink(path)] == []
    files = ["a", "s3://bucket/-", "/dev/shm/a", "/dev/shm", tmp_path, tmp_path / "file", tmp_path / "none"]
    assert [path for path in files if is_sink(path)] == []


def test_an_output_that_cannot_be_written_is_found_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for path, words in [(tmp_path / "file" / "a.srt", "file"), (tmp_path / "folder", "folder: Is a directory")]:
        with pytest.raises(StoreError, match=words):
            prepare_output(path)
    for good in (str(tmp_path / "new" / "a.srt"), str(tmp_path / "file"), "-", "/dev/null", "s3://bucket/a.srt"):
        prepare_output(good)
    assert (tmp_path / "new").is_dir()
    aligned = ["align-file", "file", "file", "--aligner", "none", "--out", "folder"]
    with contextlib.chdir(tmp_path):
        assert isinstance(CliRunner().invoke(app, aligned).exception, StoreError)


def test_lines_that_end_in_an_error_leave_no_part_of_a_file(tmp_path: Path) -> None:
    def lines() -> Iterator[str]:
        yield "one"
        raise ValueError("no more")

    fs, target = file_system(str(tmp_path / "lines.txt"))
    with pytest.raises(ValueError, match="no more"):
        publish_lines(fs, target, lines())
    assert not list(tmp_path.iterdir())
    publish_lines(fs, target, ["one", "two"])
    assert [path.read_text() for path in tmp_path.iterdir()] == ["one\ntwo\n"]
