"""Folders to a folder of transcripts: what is there already is kept or replaced, as the user says."""

from __future__ import annotations

import cProfile
import errno
import io
import os
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner
from exported import model, voice

from megahour.cli.transcribe import command
from megahour.core.errors import StoreError
from megahour.transcribe.recogniser import TimedWord
from megahour.transcribe.session import Transcription


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


def test_a_transcript_whose_name_is_too_long_does_not_end_a_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where --out is there already: to look for a file of such a name is an OSError then."""
    (tmp_path / "out").mkdir()
    longest, longer = "é" * 125, "é" * 125 + "b"  # 255 and 256 bytes with .json
    for name in ("a", longest, longer):
        soundfile.write(tmp_path / f"{name}.wav", voice(0.5, 1), 8000)
    asked = [*(str(path) for path in tmp_path.glob("*.wav")), "--model", model(tmp_path / "model", "tdnn").url]
    asked += ["--format", "json", "--out", str(tmp_path / "out")]
    for more in ([], ["--resume"], ["--overwrite"]):
        done = CliRunner().invoke(command, [*asked, *more])
        assert "2 of 3 transcripts in" in done.output, done.exception
        assert {path.stem for path in (tmp_path / "out").iterdir()} == {"a", longest}
    assert caplog.text.count("long-name: its transcript's name would have 256 bytes") == 3


def test_a_command_that_is_stopped_says_what_is_made_and_how_to_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        soundfile.write(tmp_path / f"{name}.wav", voice(0.5, 1), 8000)
    out, trained = tmp_path / "out", model(tmp_path / "model", "tdnn").url
    asked = [*(str(tmp_path / f"{name}.wav") for name in ("a", "b")), "--model", trained, "--out", str(out)]
    one = Transcription("a", "model", 0.5)
    with patch("megahour.cli.transcribe._transcribe", side_effect=[one, KeyboardInterrupt]):
        CliRunner().invoke(command, asked)
    assert f"1 of 2 transcripts are in {out}" in caplog.text
    assert "--resume" in caplog.text
    assert [path.name for path in out.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("words", "told"), [([], "with --resume makes the missing ones"), (["--overwrite"], "starts again")]
)
def test_a_full_disk_names_a_command_that_goes_on(tmp_path: Path, words: list[str], told: str) -> None:
    """Without --resume the same command is refused for the transcripts that were made."""
    for name in ("a", "b"):
        soundfile.write(tmp_path / f"{name}.wav", voice(0.5, 1), 8000)
    out, trained = tmp_path / "out", model(tmp_path / "model", "tdnn").url
    asked = [*(str(tmp_path / f"{name}.wav") for name in ("a", "b")), "--model", trained, "--out", str(out), *words]
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with patch("megahour.core.output.publish_bytes", side_effect=[None, full]):
        error = CliRunner().invoke(command, asked).exception
    assert isinstance(error, StoreError)
    assert error.remedy == f"free some space, or choose another disk; the same command {told}"


def test_a_folder_in_place_of_a_transcript_is_not_one(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", voice(0.2, 1), 8000)
    (tmp_path / "out" / "a.txt").mkdir(parents=True)
    done = CliRunner().invoke(
        command, [str(tmp_path / "a.wav"), "--model", "none", "--out", str(tmp_path / "out"), "--resume"]
    )
    assert "a.txt: a folder where a transcript would be" in str(done.exception)


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


def test_what_cannot_be_opened_is_reported_and_the_others_are_transcribed(tmp_path: Path) -> None:
    (tmp_path / "talks").mkdir()
    (tmp_path / "talks" / "a.wav").symlink_to("nowhere.wav")
    soundfile.write(tmp_path / "talks" / "b.wav", voice(1.5, 1), 8000)
    asked = [str(tmp_path / "talks"), "--model", model(tmp_path / "model", "tdnn").url, "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(command, asked)
    assert done.exit_code == 1
    assert "a.wav: unreadable-file: No such file or directory" in done.output
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.txt"]


def test_a_place_that_cannot_be_written_is_found_before_anything_is_recognised(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", voice(1.5, 1), 8000)
    (tmp_path / "file").touch()
    asked = [str(tmp_path / "a.wav"), "--model", model(tmp_path / "model", "tdnn").url, "--out"]
    with patch("megahour.cli.transcribe._transcribe") as transcribed:
        done = CliRunner().invoke(command, [*asked, str(tmp_path / "file" / "out")])
    assert isinstance(done.exception, StoreError)
    transcribed.assert_not_called()


def test_a_pipe_without_samples_or_header_says_what_to_do(tmp_path: Path) -> None:
    asked = ["-", "--model", model(tmp_path / "model", "tdnn").url]
    raw = voice(1.5, 1).tobytes()
    assert "give their sampling rate with --rate-hz" in CliRunner().invoke(command, asked, input=raw).output
    none = CliRunner().invoke(command, [*asked, "--rate-hz", "8000"], input=b"")
    assert none.exit_code == 1
    assert "no audio arrived" in none.output
    live = CliRunner().invoke(command, [*asked, "--rate-hz", "8000", "--stream"], input=b"")
    assert "no audio arrived" in str(live.exception)
    assert CliRunner().invoke(command, [*asked, "--rate-hz", "8000"], input=raw).exit_code == 0


def test_a_file_of_any_kind_is_a_stream_and_what_is_wrong_with_it_is_named(tmp_path: Path) -> None:
    """A FLAC, floats or 24 bits were refused with --stream."""
    asked, sound = ["--model", model(tmp_path / "model", "tdnn").url, "--stream"], voice(1.5, 1)
    soundfile.write(tmp_path / "a.wav", sound, 8000)
    soundfile.write(tmp_path / "a.flac", np.stack([sound, sound], axis=1), 8000)
    soundfile.write(tmp_path / "a.w64", sound / 32768, 8000, subtype="DOUBLE")
    said = CliRunner().invoke(command, ["-", *asked], input=(tmp_path / "a.wav").read_bytes())
    assert said.stdout.strip()
    for name in ("a.wav", "a.flac", "a.w64"):
        assert CliRunner().invoke(command, [str(tmp_path / name), *asked]).stdout == said.stdout

    cut = (tmp_path / "a.wav").read_bytes()[:20_000]
    (tmp_path / "cut.wav").write_bytes(cut)
    done = CliRunner().invoke(command, [str(tmp_path / "cut.wav"), *asked])
    assert (done.exit_code, done.stdout != "") == (0, True)
    assert "cut.wav: the file ends early" in done.output
    for name, data in {"empty.wav": b"", "a.txt": b"hello", "nan.wav": nan_wave()}.items():
        (tmp_path / name).write_bytes(data)
    for name, reason in {"empty.wav": "zero-length-audio", "a.txt": "unreadable-audio", "nan.wav": "nan-audio"}.items():
        done = CliRunner().invoke(command, [str(tmp_path / name), *asked])
        assert (done.exit_code, f"{tmp_path / name}: {reason}" in done.output) == (1, True)


def nan_wave() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.array([0.1] * 4000 + [np.nan], np.float32), 8000, format="WAV", subtype="FLOAT")
    return file.getvalue()


def test_one_channel_of_two(tmp_path: Path) -> None:
    one, other = voice(1.5, 1), voice(1.5, 2)
    soundfile.write(tmp_path / "call.wav", np.stack([one, other], axis=1), 8000)
    soundfile.write(tmp_path / "other.wav", other, 8000)
    asked = ["--model", model(tmp_path / "model", "tdnn").url]
    heard = CliRunner().invoke(command, [str(tmp_path / "call.wav"), *asked, "--channel", "2"]).output
    assert heard.strip()
    assert heard == CliRunner().invoke(command, [str(tmp_path / "other.wav"), *asked]).output
    sides = (
        CliRunner().invoke(command, [str(tmp_path / "call.wav"), *asked, "--channel", "2", "--format", "ctm"]).output
    )
    assert {line.split()[1] for line in sides.splitlines()} == {"2"}
    both = [*asked, "--channel", "each", "--format", "ctm"]
    lines = CliRunner().invoke(command, [str(tmp_path / "call.wav"), *both]).output.splitlines(keepends=True)
    assert "".join(line for line in lines if line.split()[1] == "2") == sides
    assert {line.split()[1] for line in lines} == {"1", "2"}
    alone = CliRunner().invoke(command, ["-", *asked, "--channel", "each"], input=(tmp_path / "other.wav").read_bytes())
    assert alone.output == heard, "a file with one channel is as usual"
    for given in ("left", "Each", "-1"):
        wrong = CliRunner().invoke(command, [str(tmp_path / "call.wav"), *asked, "--channel", given]).output
        assert f"'--channel': '{given}': give its number, from 1; 0 is the mix of all; or each" in wrong
    none = CliRunner().invoke(command, [str(tmp_path / "call.wav"), *asked, "--channel", "3"])
    assert "no-such-channel: channel 3 of 2" in none.output
    live = CliRunner().invoke(command, ["-", *asked, "--channel", "1", "--rate-hz", "8000"], input=b"")
    assert "--channel applies to files" in str(live.exception)


def test_a_transcript_without_words_is_named(tmp_path: Path) -> None:
    """Silence, or a channel on which nobody speaks, gets a warning instead of an empty answer."""
    soundfile.write(tmp_path / "still.wav", np.zeros(24_000), 8000)
    soundfile.write(tmp_path / "voice.wav", voice(1.5, 1), 8000)
    asked = [str(tmp_path), "--model", model(tmp_path / "model", "tdnn").url, "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(command, asked)
    assert done.exit_code == 0
    assert [line for line in done.output.splitlines() if "no words" in line] == [
        f"{tmp_path / 'still.wav'}: no words recognised"
    ]


def test_each_line_of_several_files_on_standard_output_names_its_file(tmp_path: Path) -> None:
    """Texts of several files came without the files' names."""
    paths = [str(tmp_path / name) for name in ("a.wav", "b\tc.wav")]
    for path in paths:
        soundfile.write(path, voice(0.2, 1), 8000)
    texts = {paths[0]: [TimedWord("one", 0.0, 0.1, 0.5), TimedWord("two", 5.0, 5.1, 0.5)], paths[1]: []}

    def heard(*_: object, name: str, **__: object) -> Transcription:
        return Transcription(name, "", 6.0, texts[name])

    asked = ["--model", model(tmp_path / "model", "tdnn").url]
    with patch("megahour.transcribe.channels.transcribe", side_effect=heard):
        both = CliRunner().invoke(command, [*paths, *asked]).stdout
        assert both == f"{paths[0]}\tone\n{paths[0]}\ttwo\n{tmp_path}/b\\tc.wav\t\n"
        assert CliRunner().invoke(command, [paths[0], *asked]).stdout == "one\ntwo\n"


def test_a_warning_counts_the_words_that_a_ctm_leaves_out(tmp_path: Path) -> None:
    """As of senones with a graph but no lexicon: the CTM was empty."""
    soundfile.write(tmp_path / "a.wav", voice(0.2, 1), 8000)
    asked = [str(tmp_path / "a.wav"), "--model", model(tmp_path / "model", "tdnn").url, "--format"]
    made = Transcription("a.wav", "", 0.2, [TimedWord("one"), TimedWord("two", 0.0, 0.1, 0.5)])
    with patch("megahour.transcribe.channels.transcribe", return_value=made):
        assert (
            "a.wav: 1 words have no times and are not in the CTM" in CliRunner().invoke(command, [*asked, "ctm"]).output
        )
        assert CliRunner().invoke(command, [*asked, "txt"]).output == "one two\n"
