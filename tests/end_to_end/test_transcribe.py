"""A run transcribes files with the words of `decode`, from the command line, Python and a pipe."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner
from command_line import forked
from numpy.typing import NDArray
from small_run import megahour

from megahour.cli.main import app
from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.corpus.media.tar import ShardAudio
from megahour.transcribe.parts import parts_of
from megahour.transcribe.recogniser import Recogniser
from megahour.transcribe.session import stream, transcribe


def first_utterances(run: Path) -> list[tuple[int, NDArray[np.int16], int]]:
    """(key, samples, rate) of each test speaker's first utterance: no other one has moved the speaker's mean."""
    selection, utterances = Artifact(run / "selection"), Artifact(run / "utterances")
    rows: list[dict[str, Any]] = []
    for receipt in selection.receipts():
        if receipt.tags["set"] == "test":
            rows += selection.read_table(receipt.shard).to_pylist()
    first = {row["speaker"]: row for row in reversed(rows)}
    found = []
    for row in first.values():
        with ShardAudio(utterances, row["shard"]) as audio:
            found.append((row["key"], audio.read(row["offset"], row["size"]), row["rate_hz"]))
    return found


def decoded(run: Path) -> dict[int, str]:
    hypotheses = Artifact(run / "student-hypotheses")
    tables = [hypotheses.read_table(receipt.shard) for receipt in hypotheses.receipts()]
    return {
        key: text
        for table in tables
        for key, text in zip(*table.select(["key", "text"]).to_pydict().values(), strict=True)
    }


def test_a_file_has_the_words_of_decode(undisturbed: Path, tmp_path: Path) -> None:
    """Front end, model, graph and scale are those of the run's last `decode`."""
    recogniser = Recogniser(parts_of(str(undisturbed)))
    texts = decoded(undisturbed)
    found = first_utterances(undisturbed)
    assert len(found) == 2
    for key, samples, rate_hz in found:
        transcript = transcribe(samples, recogniser, rate_hz=rate_hz, whole=True)
        soundfile.write(tmp_path / "utterance.flac", samples, rate_hz)
        assert transcribe(str(tmp_path / "utterance.flac"), recogniser, whole=True).text == transcript.text
        assert transcript.text == texts[key]
        assert not transcript.lost
        ends = [time for word in transcript.words for time in (word.start_s, word.end_s)]
        assert ends == sorted(ends), "words follow each other"
        assert all(0 < word.confidence <= 1 for word in transcript.words)


def test_the_best_texts_of_a_graph(undisturbed: Path) -> None:
    (_, samples, rate_hz), *_ = first_utterances(undisturbed)
    parts = parts_of(str(undisturbed))
    wanted = replace(parts, search=parts.search.model_copy(update={"nbest": 4}))
    transcript = transcribe(samples, Recogniser(wanted), rate_hz=rate_hz, whole=True)
    (piece,) = transcript.nbest
    texts = [text for text, _, _ in piece.texts]
    assert texts[0] == transcript.text
    assert len(set(texts)) == 4
    assert (piece.start_s, piece.end_s) == (0.0, pytest.approx(len(samples) / rate_hz, abs=0.03))


def test_from_files_and_folders(undisturbed: Path, tmp_path: Path) -> None:
    texts, (found, *_) = decoded(undisturbed), first_utterances(undisturbed)
    talks = tmp_path / "talks" / "one"
    talks.mkdir(parents=True)
    soundfile.write(talks / "a.flac", found[1], found[2])
    (talks / "b.wav").write_bytes(b"RIFF no audio")
    (talks / f"{'a' * 251}.wav").symlink_to(talks / "a.flac")  # of its transcript's name no file can be
    (talks / "notes.txt").write_text("not audio")
    command = [
        "transcribe",
        str(tmp_path / "talks"),
        "--model",
        str(undisturbed),
        "--format",
        "json",
        "--whole",
    ]
    done = forked(*command, "--out", str(tmp_path / "out"))
    assert done.returncode == 1, done.stderr
    assert "b.wav: unreadable-audio" in done.stderr or "b.wav: " in done.stderr
    assert "long-name: its transcript's name would have 256 bytes" in done.stderr
    assert "1 of 3 transcripts in" in done.stdout
    assert "Traceback" not in done.stderr
    made = json.loads((tmp_path / "out" / "one" / "a.json").read_text())
    assert made["text"] == texts[found[0]]
    assert [path.name for path in (tmp_path / "out").rglob("*.*")] == ["a.json"]


def test_a_long_recording_shows_how_much_of_it_was_heard(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megahour.runner.progress.LINE_EVERY_S", -1.0)
    (_, samples, rate_hz), *_ = first_utterances(undisturbed)
    soundfile.write(tmp_path / "talk.flac", np.tile(samples, 1 + 30 * rate_hz // len(samples))[: 30 * rate_hz], rate_hz)
    done = CliRunner().invoke(app, ["transcribe", str(tmp_path / "talk.flac"), "--model", str(undisturbed)])
    assert re.search(r"talk\.flac: \S+/30 s of audio, \S+/s", done.output), done.output


def test_from_a_pipe_as_it_comes(undisturbed: Path) -> None:
    """The final words are those of the whole file, cut or not, if its mean starts like a stream's."""
    (_, samples, rate_hz), *_ = first_utterances(undisturbed)
    command = [
        "transcribe",
        "-",
        "--model",
        str(undisturbed),
        "--stream",
        "--format",
        "json",
        "--rate-hz",
        str(rate_hz),
    ]
    done = subprocess.run(megahour(*command), input=samples.tobytes(), capture_output=True, check=True)
    news = [json.loads(line) for line in done.stdout.splitlines()]
    recogniser = Recogniser(parts_of(str(undisturbed)))
    blocks = (samples[start : start + 1600].astype(np.float32) for start in range(0, len(samples), 1600))
    updates = list(stream(recogniser, blocks))
    assert [(new["final"], new["text"]) for new in news] == [
        (update.final, " ".join(word.text for word in update.words)) for update in updates
    ]
    assert b"s of audio, real-time factor" in done.stderr
    assert news[-1]["final"]
    assert any(not new["final"] for new in news)
    finals = [new["text"] for new in news if new["final"]]
    assert " ".join(finals).split() == transcribe(samples, recogniser, rate_hz=rate_hz, settled=False).text.split()


def test_a_run_that_has_moved_is_still_whole(undisturbed: Path, tmp_path: Path) -> None:
    (tmp_path / "moved").symlink_to(undisturbed)
    parts = parts_of(str(tmp_path / "moved"))
    assert all(str(tmp_path) in url for url in (parts.model, parts.graph, parts.units, parts.lexicon))


def test_what_recognises_nothing_is_named(undisturbed: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="an artifact of stage select, not a model"):
        parts_of(str(undisturbed / "selection"))
    with pytest.raises(ConfigError, match="neither a model nor a run"):
        parts_of(str(tmp_path))
    with pytest.raises(ConfigError, match='the step "lm" is not one that recognises speech'):
        parts_of(str(undisturbed), "lm")
    with pytest.raises(ConfigError, match="outputs senones, which need a graph"):
        Recogniser(parts_of(str(undisturbed / "student")))
    with pytest.raises(ConfigError, match="an artifact of stage language-model, not a graph"):
        Recogniser(replace(parts_of(str(undisturbed)), graph=str(undisturbed / "lm")))
    assert Recogniser(parts_of(str(undisturbed), "aligner")).tokens
