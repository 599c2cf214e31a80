"""Folders to a folder of transcripts: what is there already is kept or replaced, as the user says."""

from __future__ import annotations

import cProfile
from pathlib import Path

import soundfile
from click.testing import CliRunner
from exported import model, voice

from megahour.cli.transcribe import command


def test_resume_makes_what_is_missing_and_overwrite_all(tmp_path: Path) -> None:
    (tmp_path / "talks").mkdir()
    for name in ("a", "b"):
        soundfile.write(tmp_path / "talks" / f"{name}.wav", voice(1.5, 1), 8000)
    out = tmp_path / "out"
    asked = [str(tmp_path / "talks"), "--model", model(tmp_path / "model", "tdnn").url, "--out", str(out)]
    assert "2 of 2 transcripts" in CliRunner().invoke(command, asked).output
    text = (out / "a.txt").read_text("utf-8")
    assert text.strip()
    (out / "a.txt").write_text("mine", "utf-8")
    (out / "b.txt").unlink()
    done = CliRunner().invoke(command, [*asked, "--resume"])
    assert "2 of 2 transcripts in" in done.output
    assert "1 of them from before: 1.5 s of audio" in done.output
    assert [(out / f"{name}.txt").read_text("utf-8") for name in ("a", "b")] == ["mine", text]
    assert CliRunner().invoke(command, [*asked, "--overwrite"]).exit_code == 0
    assert (out / "a.txt").read_text("utf-8") == text


def calls_for(folder: Path, files: int) -> int:
    """Function calls until the command refuses to replace the outputs of a folder of `files` files."""
    for place in ("talks", "out"):
        (folder / place).mkdir(parents=True)
    for number in range(files):
        (folder / "talks" / f"{number}.wav").touch()
        (folder / "out" / f"{number}.txt").touch()
    asked = [str(folder / "talks"), "--model", "none", "--out", str(folder / "out")]
    with cProfile.Profile() as profile:
        refused = CliRunner().invoke(command, asked)
    assert f"{files} of {files} outputs already exist" in str(refused.exception)
    return sum(entry.callcount for entry in profile.getstats())


def test_the_names_of_outputs_take_a_time_that_grows_with_the_files_and_not_with_their_square(tmp_path: Path) -> None:
    calls_for(tmp_path / "first", 1)  # imports
    few, more, most = (calls_for(tmp_path / f"{files}", files) for files in (50, 150, 250))
    assert most - more < 1.2 * (more - few)
