"""Flaws of a composed recording's transcript: unspoken lines, untranscribed speech, other languages."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from megahour.core.errors import ConfigError
from megahour.core.receipts import Counts, Manifest
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.corpus.generate.compose_stage import Compose
from megahour.corpus.generate.params import ComposeParams
from megahour.corpus.media.tar import tar_writer
from megahour.corpus.text.normalise import normalise
from megahour.engine.base import TaskFailed
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage

RATE_HZ = 8000
WORDS = ["river", "stone", "cloud", "table", "window", "garden", "paper", "silver", "orange", "thunder"]
Row = dict[str, Any]


def tone(hz: float, seconds: float) -> bytes:
    """A wav of a tone with 50 ms of silence before and after it."""
    samples = np.zeros(int((seconds + 0.1) * RATE_HZ))
    middle = slice(int(0.05 * RATE_HZ), -int(0.05 * RATE_HZ))
    samples[middle] = 0.3 * np.sin(2 * np.pi * hz / RATE_HZ * np.arange(len(samples[middle])))
    target = io.BytesIO()
    soundfile.write(target, samples, RATE_HZ, format="WAV", subtype="PCM_16")
    return target.getvalue()


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Clips in three languages as `fetch-prompts` writes them; "en" and "es" are one voice, "fr" is at 2 kHz."""
    artifact = Artifact(tmp_path_factory.mktemp("clips"))
    receipts = []
    for shard, (language, voice, hz) in enumerate((("en", "Ann", 500), ("es", "Ann", 900), ("fr", "Bob", 2000))):
        with ShardWriter(artifact, shard, "made") as out:
            with out.open(".tar") as file, tar_writer(file) as tar:
                for i, (one, other) in enumerate((a, b) for a in WORDS for b in WORDS[:6]):
                    tar.add(f"{language}/{i:02d}.wav", tone(hz, 0.5 + 0.01 * i))
                    tar.add(f"{language}/{i:02d}.txt", f"{one} {other}".encode())
            out.tags.update(language=language, licence="CC-BY-3.0", attribution=voice)
            receipts.append(out.commit())
    finish(
        artifact,
        receipts,
        Manifest("made", 1, "made", content_digest(receipts, {}), {}, {}, len(receipts), Counts(), {}),
    )
    return artifact


def composed(engine: LocalEngine, clips: Artifact, folder: Path, **values: object) -> Artifact:
    known: Row = {"rate_hz": RATE_HZ, "share": (0, 0.6), "recording_minutes": 10, "forms": ["srt"]}
    output = Artifact(folder / "raw")
    run_stage(
        Compose(), ComposeParams.model_validate(known | values), {"clips": clips}, output, engine, work=folder / "work"
    )
    return output


def rows(artifact: Artifact, suffix: str) -> list[Row]:
    return [row for r in artifact.receipts() for row in artifact.read_table(r.shard, suffix).to_pylist()]


def member(artifact: Artifact, suffix: str) -> bytes:
    with artifact.open(0, ".tar") as file, tarfile.open(fileobj=file) as tar:
        found = next(item for item in tar if item.name.endswith(suffix))
        return tar.extractfile(found).read()  # type: ignore[union-attr]


FLAWS: Row = {"unspoken_share": (0.6, 1.0), "extra": 0.3, "missing": 0.3}


def test_lines_say_which_sentence_they_stand_for(engine: LocalEngine, clips: Artifact, tmp_path: Path) -> None:
    artifact = composed(engine, clips, tmp_path, **FLAWS, drift_s=0, jitter_s=0)
    lines, sentences = rows(artifact, ".lines.parquet"), rows(artifact, ".sentences.parquet")
    there = [sentence for sentence in sentences if sentence["in_transcript"]]
    assert [line["sentence"] for line in lines if line["sentence"] >= 0] == [s["sentence"] for s in there]
    assert all(line["text"] == sentences[line["sentence"]]["raw"] for line in lines if line["sentence"] >= 0)
    assert 0 < len(there) < len(sentences)


def test_unspoken_lines_are_true_texts_that_occur_nowhere(engine: LocalEngine, clips: Artifact, tmp_path: Path) -> None:
    artifact = composed(engine, clips, tmp_path, **FLAWS)
    sentences = {sentence["spoken"] for sentence in rows(artifact, ".sentences.parquet")}
    unspoken = [line["text"] for line in rows(artifact, ".lines.parquet") if line["sentence"] < 0]
    texts = {" ".join(normalise(text).tokens) for text in unspoken}
    assert len(unspoken) >= 3
    assert not texts & sentences
    assert len(texts) == len(unspoken)  # each once, as long as there are enough
    assert texts <= {f"{a} {b}" for a in WORDS for b in WORDS[:6]}
    assert all(text in member(artifact, ".srt").decode() for text in unspoken)


def test_passages_are_other_voices_without_text(engine: LocalEngine, clips: Artifact, tmp_path: Path) -> None:
    """The passage sounds at 2 kHz where the table says; Spanish is left out, since its voice is the recording's own."""
    plain = composed(engine, clips, tmp_path / "plain", hours=0.01)
    artifact = composed(
        engine, clips, tmp_path, hours=0.02, passages=2, passage_s=5, passage_languages=["en", "es", "fr"]
    )
    passages = rows(artifact, ".passages.parquet")
    assert [passage["language"] for passage in passages] == ["fr", "fr"]
    assert rows(plain, ".passages.parquet") == []
    samples, _ = soundfile.read(io.BytesIO(member(artifact, ".flac")))
    for passage in passages:
        start, end = passage["start_samples"], passage["end_samples"]
        assert 5 <= (end - start) / RATE_HZ < 7
        spectrum = np.abs(np.fft.rfft(samples[start:end]))
        assert abs(spectrum.argmax() * RATE_HZ / (end - start) - 2000) < 5
        for sentence in rows(artifact, ".sentences.parquet"):
            assert sentence["end_samples"] <= start or sentence["start_samples"] >= end


def test_a_transcript_without_times(engine: LocalEngine, clips: Artifact, tmp_path: Path) -> None:
    """`forms` changes how the transcript is written, not the audio."""
    timed = composed(engine, clips, tmp_path / "timed", **FLAWS)
    untimed = composed(engine, clips, tmp_path / "untimed", **FLAWS, forms=["lines"])
    assert rows(timed, ".lines.parquet") == rows(untimed, ".lines.parquet")
    assert member(timed, ".flac") == member(untimed, ".flac")
    assert member(untimed, ".txt").decode().splitlines() == [line["text"] for line in rows(untimed, ".lines.parquet")]


def test_wrong_parameters_are_named(engine: LocalEngine, clips: Artifact, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="overlap"):
        ComposeParams(share=(0, 0.6), unspoken_share=(0.5, 1))
    with pytest.raises(ValueError, match="need passage_languages"):
        ComposeParams(passages=1)
    with pytest.raises(TaskFailed, match="no other voice"):
        composed(engine, clips, tmp_path, passages=1, passage_languages=["es"])
    with pytest.raises(ConfigError, match="not from `source`"):
        run_stage(
            Compose(),
            ComposeParams(source=str(tmp_path), passages=1, passage_languages=["fr"]),
            {},
            Artifact(tmp_path / "x"),
            engine,
            work=tmp_path,
        )
