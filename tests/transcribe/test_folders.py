"""Folders to a folder of transcripts: what is there already is kept or replaced, as the user says."""

from __future__ import annotations

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
