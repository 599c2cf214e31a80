"""`align`, `cut` and `score-alignment` on recordings of tones, with a small real network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tones import RATE_HZ, sentences, speak, train_listener, write, write_recordings

from megahour.align.params import AlignParams
from megahour.align.posteriors import listen
from megahour.align.stage import Align
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.corpus.media.tar import ShardAudio
from megahour.cut.params import CutParams
from megahour.cut.stage import Cut
from megahour.features.frontend import FrontEnd, Source
from megahour.score.alignment_stage import ScoreAlignment
from megahour.score.params import ScoreAlignmentParams
from megahour.serve.local import serve_in_process

PARAMS = AlignParams(window_s=8.0, margin_s=0.5, anchor_every_s=10.0, anchor_length=6)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tones")


@pytest.fixture(scope="module")
def listener(work: Path) -> Artifact:
    return train_listener(work / "model")


@pytest.fixture(scope="module")
def corpus(work: Path) -> Any:
    """Three recordings: one with a flawed transcript, one with another recording's, one with none."""
    rng = np.random.default_rng(9)
    spoken = sentences(14, rng)
    samples, words, _ = speak(spoken, rng)
    written = [*spoken[:3], "feed fade cafe dead bead", *spoken[3:8], *spoken[10:]]
    other, other_words, _ = speak(sentences(14, rng), rng)
    foreign = sentences(14, rng)
    silent, silent_words, _ = speak(sentences(2, rng), rng)
    made = [("flawed", samples, written, words), ("foreign", other, foreign, other_words)]
    return write_recordings(work, [*made, ("bare", silent, [], silent_words)])


def run(stage: Any, p: Any, folder: Path, **inputs: Artifact) -> Artifact:
    (task,) = stage.plan(p, inputs)
    return write(folder, lambda out: stage.run(p, inputs, task, out, Context(folder)))


@pytest.fixture(scope="module")
def alignment(work: Path, corpus: Any, listener: Artifact) -> Artifact:
    return run(Align(), PARAMS, work / "alignment", recordings=corpus[0], aligner=listener)


def test_windows_join_without_a_seam(corpus: Any, listener: Artifact) -> None:
    recordings, spec = corpus[0], Align().accelerator(PARAMS, {"aligner": listener})
    row = recordings.read_table(0).to_pylist()[0]
    config = listener.read_json(0, ".model.json")
    with ShardAudio(recordings, 0) as audio, serve_in_process(spec) as session:
        source = Source(row["samples"], RATE_HZ, lambda a, b: audio.read(row["offset"], row["size"], a, b))
        heard = []
        for window_s in (3.0, 200.0):
            front = FrontEnd.of(config, window_s=window_s, margin_s=0.5)
            heard += list(listen([source], front, session))
    cut, whole = heard
    assert cut.posteriors.shape == whole.posteriors.shape
    assert np.abs(cut.posteriors.astype(int) - whole.posteriors).max() <= 1
    assert np.array_equal(cut.level, whole.level)


def test_untrusted_recordings_are_refused_and_counted(alignment: Artifact) -> None:
    (receipt,) = alignment.receipts()
    assert (receipt.counts.came_in, receipt.counts.kept) == (3, 1)
    assert receipt.counts.dropped == {"wrong-transcript": 1, "no-transcript": 1}


def test_audio_is_counted_whether_it_is_trusted_or_not(work: Path, corpus: Any, alignment: Artifact) -> None:
    """The closing table's hours: recordings that were heard by `align`, all recordings by `cut`."""
    rows = corpus[0].read_table(0).to_pylist()
    written = set(corpus[0].read_table(0, ".cues.parquet")["key"].to_pylist())
    seconds = [row["samples"] / row["rate_hz"] for row in rows if row["key"] in written]
    assert len(seconds) == 2
    assert alignment.receipts()[0].stats["audio_s"] == pytest.approx(sum(seconds), abs=0.01)
    cut = run(Cut(), CutParams(), work / "counted", recordings=corpus[0], alignment=alignment)
    every = sum(row["samples"] / row["rate_hz"] for row in rows)
    assert cut.receipts()[0].stats["audio_s"] == pytest.approx(every, abs=0.01)


def test_segments_say_what_was_not_spoken_and_what_was_not_written(alignment: Artifact) -> None:
    segments = alignment.read_table(0, ".segments.parquet").to_pylist()
    left_out = sorted((s["cue"], s["reason"]) for s in segments if not s["kept"])
    whole = [(-1, "no-transcript"), (-1, "untranscribed"), (-1, "wrong-transcript")]
    assert left_out == [*whole, (3, "unspoken")]
    assert sum(s["kept"] for s in segments) == 12


def test_words_are_where_they_were_said(work: Path, corpus: Any, alignment: Artifact) -> None:
    recordings, raw = corpus
    p = ScoreAlignmentParams()
    scores = run(ScoreAlignment(), p, work / "scores", raw=raw, recordings=recordings, alignment=alignment)
    row = scores.read_json(0, ".json")["table"][0]
    assert row["start_p95_ms"] <= 60
    assert row["end_p95_ms"] <= 100
    assert row["unspoken_kept"] == 0
    assert b"| clean |" in scores.read_bytes(0, ".md")


def test_utterances_hold_whole_words_and_never_span_missing_text(work: Path, corpus: Any, alignment: Artifact) -> None:
    recordings = corpus[0]
    p = CutParams(max_s=6.0)
    cut = run(Cut(), p, work / "utterances", recordings=recordings, alignment=alignment)
    rows = cut.read_table(0).to_pylist()
    receipt = cut.receipts()[0]
    assert receipt.counts.came_in == receipt.counts.kept + sum(receipt.counts.dropped.values())
    aligned = alignment.read_table(0).to_pylist()
    assert [word for row in rows for word in row["words"]] == [word["text"] for word in aligned]
    segments = alignment.read_table(0, ".segments.parquet").to_pylist()
    (gap,) = [s for s in segments if s["reason"] == "untranscribed"]
    with ShardAudio(cut, 0) as audio:
        for row in rows:
            assert row["end_samples"] <= gap["start_samples"] or row["start_samples"] >= gap["end_samples"]
            assert len(audio.read(row["offset"], row["size"])) == row["samples"] <= 6.0 * RATE_HZ
            assert row["word_start_samples"][0] >= 0
            assert row["word_end_samples"][-1] <= row["samples"]
            assert row["raw"] == row["text"].upper()
            assert 0.5 <= row["confidence"] <= 1


def test_without_an_alignment_short_recordings_are_utterances(work: Path, corpus: Any) -> None:
    cut = run(Cut(), CutParams(max_s=40.0), work / "whole", recordings=corpus[0])
    rows = cut.read_table(0).to_pylist()
    assert cut.receipts()[0].counts.dropped["no-transcript"] == 1
    assert all(row["start_samples"] == 0 and set(row["word_start_samples"]) == {-1} for row in rows)


def test_the_same_bytes_again(work: Path, corpus: Any, listener: Artifact, alignment: Artifact) -> None:
    again = run(Align(), PARAMS, work / "again", recordings=corpus[0], aligner=listener)
    assert again.receipts()[0].files == alignment.receipts()[0].files
