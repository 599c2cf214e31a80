"""`megahour align-file`: one recording and one text, aligned with a small real network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner
from command_line import command
from tones import RATE_HZ, Timed, sentences, speak, train_listener

from megahour.cli.align_file import AlignedFile, written
from megahour.cli.main import app
from megahour.core.errors import ConfigError

UNSPOKEN = "feed fade cafe dead bead face"


def run(folder: Path, text: str, *more: str, aligner: str = "aligner") -> str:
    given = [str(folder / "my talk.flac"), str(folder / text), "--aligner", str(folder / aligner), "--format", "json"]
    done = CliRunner().invoke(app, ["align-file", *given, *more], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@dataclass
class Talk:
    """A folder with an aligner and a recording, the lines of its text (one is not spoken), the spoken words, and the
    command's output."""

    folder: Path
    lines: list[str]
    words: list[Timed]
    made: dict[str, Any]


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Talk:
    folder, rng = tmp_path_factory.mktemp("file"), np.random.default_rng(4)
    train_listener(folder / "aligner")
    spoken = sentences(8, rng)
    samples, words, _ = speak(spoken, rng)
    soundfile.write(folder / "my talk.flac", samples, RATE_HZ)
    lines = [*spoken[:3], UNSPOKEN, *spoken[3:]]
    (folder / "words of it.md").write_text("\n".join(lines), "utf-8")
    assert run(folder, "words of it.md", "--out", str(folder / "out.json")) == ""
    return Talk(folder, lines, words, json.loads((folder / "out.json").read_text("utf-8")))


def test_every_spoken_line_and_word_gets_its_time(talk: Talk) -> None:
    lines, words = talk.made["lines"], talk.made["words"]
    assert [line["text"] for line in lines] == talk.lines
    assert [line["text"] for line in lines if line["reason"]] == [UNSPOKEN]
    assert [word["word"] for word in words] == [word for word, _, _ in talk.words]
    errors_s = [abs(word["start"] - start / RATE_HZ) for word, (_, start, _) in zip(words, talk.words, strict=True)]
    assert max(errors_s) < 0.15
    for number, line in enumerate(lines, 1):
        own = [word for word in words if word["line"] == number]
        assert [line["start"], line["end"]] == ([own[0]["start"], own[-1]["end"]] if own else [None, None])


def test_a_full_standard_output_is_named_and_nothing_is_said_to_stay(talk: Talk) -> None:
    given = ["my talk.flac", "words of it.md", "--aligner", "aligner"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command("align-file", *given), cwd=talk.folder, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert "error: standard output: No space left on device\n" in done.stderr
    assert done.stderr.endswith("the same command starts again\n")


def test_the_formats_hold_the_same_times(talk: Talk) -> None:
    def in_samples(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            row | {key: -1 if row[key] is None else round(row[key] * RATE_HZ) for key in ("start", "end")}
            for row in rows
        ]

    lines, words = in_samples(talk.made["lines"]), in_samples(talk.made["words"])
    aligned = AlignedFile("my talk.flac", round(talk.made["seconds"] * RATE_HZ), RATE_HZ, lines, words)
    srt, ctm, grid, as_json = (written(aligned, form) for form in ("srt", "ctm", "textgrid", "json"))
    assert json.loads(as_json) == talk.made
    blocks = srt.strip().split("\n\n")
    assert [block.split("\n")[2] for block in blocks] == [line for line in talk.lines if line != UNSPOKEN]
    assert blocks[0].split("\n")[1].startswith(f"00:00:0{talk.made['lines'][0]['start']:.3f}".replace(".", ","))
    fields = [line.split() for line in ctm.splitlines()]
    assert [(row[0], float(row[2]), row[4]) for row in fields] == [
        ("my_talk", word["start"], word["word"]) for word in talk.made["words"]
    ]
    assert all(f'text = "{line}"' in grid for line in talk.lines if line != UNSPOKEN)
    assert UNSPOKEN not in grid


def test_a_name_that_is_no_utf8_makes_valid_json_and_ctm() -> None:
    word = {"word": "a", "start": 0, "end": 80, "confidence": 1.0}
    aligned = AlignedFile(os.fsdecode(b"\xff talk.wav"), RATE_HZ, RATE_HZ, [], [word])
    assert json.loads(written(aligned, "json").encode("utf-8"))["file"] == r"\xff talk.wav"
    assert written(aligned, "ctm").encode("utf-8").startswith(rb"\xff_talk 1 0.000")


def test_a_recording_cut_short_is_aligned_as_far_as_it_goes(talk: Talk) -> None:
    samples, _ = soundfile.read(talk.folder / "my talk.flac", dtype="int16")
    soundfile.write(talk.folder / "cut.wav", samples, RATE_HZ)
    data = (talk.folder / "cut.wav").read_bytes()
    (talk.folder / "cut.wav").write_bytes(data[: 44 + len(samples)])  # half of them
    given = [str(talk.folder / name) for name in ("cut.wav", "words of it.md", "aligner")]
    done = CliRunner().invoke(app, ["align-file", *given[:2], "--aligner", given[2], "--format", "ctm"])
    assert f"cut.wav: the file ends early, after {len(samples)} of {2 * len(samples)} bytes" in done.stderr
    said = [line.split()[4] for line in done.stdout.splitlines()]
    assert said == [word for word, _, _ in talk.words][: len(said)]
    assert 0.2 < len(said) / len(talk.words) < 0.6


def test_the_text_of_a_book_beside_one_of_its_chapters(talk: Talk) -> None:
    others = sentences(32, np.random.default_rng(9))
    (talk.folder / "book.txt").write_text("\n".join([*others[:16], *talk.lines, *others[16:]]), "utf-8")
    with pytest.raises(ConfigError, match=r"text-mismatch|wrong-transcript") as error:
        run(talk.folder, "book.txt")
    assert "lower --min-spoken" in error.value.remedy
    found = json.loads(run(talk.folder, "book.txt", "--min-spoken", "0.1"))["lines"]
    assert [line["text"] for line in found if not line["reason"]] == [x for x in talk.lines if x != UNSPOKEN]


def test_nothing_stays_in_the_temporary_folder(talk: Talk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stages' scratch folders stayed, two of each call."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert json.loads(run(talk.folder, "words of it.md")) == talk.made
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_aligned_is_named(talk: Talk, caplog: pytest.LogCaptureFixture) -> None:
    (talk.folder / "other.txt").write_text("\n".join(sentences(8, np.random.default_rng(77))), "utf-8")
    (talk.folder / "empty.txt").write_text("", "utf-8")
    for text, aligner, message in [
        ("other.txt", "aligner", "wrong-transcript: no line of the text was found"),
        ("empty.txt", "aligner", "empty-transcript"),
        ("none.txt", "aligner", "no such file"),
        ("words of it.md", "none", "not an aligner"),
    ]:
        with pytest.raises(ConfigError, match=message) as caught:
            run(talk.folder, text, aligner=aligner)
        assert caught.value.remedy
        assert "its language" not in caught.value.remedy, "the warning says so"
    (doubt,) = [record.message for record in caplog.records if "hardly anything is aligned" in record.message]
    assert re.search(r"It recognised '[a-z ]{60}' …$", doubt)


def test_a_model_that_cannot_align_is_named(talk: Talk) -> None:
    """One of phones: texts are aligned by letters."""
    shutil.copytree(talk.folder / "aligner", talk.folder / "of-phones")
    (file,) = (talk.folder / "of-phones").rglob("*.model.json")
    config = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({**config, "phones": True}), "utf-8")
    with pytest.raises(ConfigError, match="the model has phones") as caught:
        run(talk.folder, "words of it.md", aligner="of-phones")
    assert caught.value.where.endswith("of-phones")
    assert "without the input `lexicon`" in caught.value.remedy
