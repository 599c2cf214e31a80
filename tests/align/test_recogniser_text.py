"""What a recogniser wrote: second reading of a right transcript, and the transcript where none is right."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from speech import UNITS
from test_bad_transcripts import PARAMS, align, import_model, only_reason, spoken
from tone_models import onnx_model
from tones import RATE_HZ, write

from megahour.align.choice import BESIDE_FRAMES, confirmed_cues, reading_of
from megahour.align.document import Document, spell
from megahour.align.tables import Clock, Timed
from megahour.core.stage import Context, Task
from megahour.core.store import Artifact
from megahour.cut.params import CutParams
from megahour.cut.second_reading import Reading
from megahour.cut.stage import Cut

MACHINE = -1
Cue = tuple[int, int, str]


@pytest.fixture(scope="module")
def aligner(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("aligner")
    return import_model(folder, onnx_model(folder / "tones.onnx", RATE_HZ, 320))


def cues(texts: list[str], number: int = 0, start: int = -1) -> list[Cue]:
    return [(start, number, text) for text in texts]


def heard(alignment: Artifact) -> tuple[list[str], list[int]]:
    (row,) = alignment.read_table(0, ".heard.parquet").to_pylist()
    return row["tokens"], row["start_samples"]


def utterances(folder: Path, alignment: Artifact) -> list[dict[str, Any]]:
    inputs = {"recordings": Artifact(folder / "recordings"), "alignment": alignment}
    p = CutParams(min_s=0.5, min_snr_db=-100)
    made = write(folder / "utterances", lambda out: Cut().run(p, inputs, Task({"shard": 0}), out, Context(folder)))
    return list(made.read_table(0).to_pylist())


def words(alignment: Artifact) -> list[str]:
    return list(alignment.read_table(0)["text"].to_pylist())


def test_its_words_are_the_second_reading_at_times_of_our_own(tmp_path: Path, aligner: Artifact) -> None:
    """Its own times are all wrong, and one of its sentences was never said."""
    samples, texts = spoken(1, 12)
    written = [*texts[:4], *spoken(7, 1)[1], *texts[4:]]
    machine = [(start, MACHINE, text) for start, text in zip(range(0, 13 * 100, 100), written, strict=True)]
    alignment = align(tmp_path, aligner, [("talk", samples, [*cues(texts), *machine], [])])
    said = " ".join(texts).split()
    assert words(alignment) == said
    tokens, starts = heard(alignment)
    assert tokens == [f" {word}" for word in said]
    truth = alignment.read_table(0)["start_samples"].to_numpy()
    assert np.abs(np.array(starts) - truth).max() <= 0.1 * RATE_HZ
    stats = alignment.receipts()[0].stats
    assert (stats["transcripts"], stats["transcripts_left_out"], stats["read_by_recogniser"]) == (1, 0, 1)
    assert stats["transcripts_by_recogniser"] == 0
    cut = utterances(tmp_path, alignment)
    assert cut
    assert all((row["heard"], row["cer"], row["transcript"]) == (row["text"], 0.0, 0) for row in cut)


@pytest.mark.parametrize("wrong", [True, False])
def test_it_is_the_transcript_where_no_other_stands(tmp_path: Path, aligner: Artifact, wrong: bool) -> None:
    samples, texts = spoken(1, 12)
    given = [*(cues(spoken(2, 12)[1]) if wrong else []), *cues(texts, MACHINE)]
    alignment = align(tmp_path / "a", aligner, [("talk", samples, given, [])])
    assert words(alignment) == " ".join(texts).split()
    assert alignment.read_table(0)["cue"].to_numpy().min() == (12 if wrong else 0)
    stats = alignment.receipts()[0].stats
    assert (stats["transcripts_by_recogniser"], stats["transcripts_left_out"]) == (1, int(wrong))
    assert all(len(token) == 1 for token in heard(alignment)[0]), "it does not read itself: that is the aligner's"
    cut = utterances(tmp_path / "a", alignment)
    assert {row["transcript"] for row in cut} == {MACHINE}
    assert " ".join(row["text"] for row in cut) == " ".join(texts)
    only = PARAMS.model_copy(update={"recognised": "reading"})
    refused = align(tmp_path / "b", aligner, [("talk", samples, given, [])], only)
    assert only_reason(refused) == ("wrong-transcript" if wrong else "no-transcript")


@pytest.mark.parametrize(("recognised", "chosen"), [("missing", 0), ("better", 1)])
def test_the_better_of_two(tmp_path: Path, aligner: Artifact, recognised: str, chosen: int) -> None:
    """Of the people's transcript every third sentence is another one."""
    samples, texts = spoken(1, 12)
    loose = [b if i % 3 == 2 else a for i, (a, b) in enumerate(zip(texts, spoken(4, 12)[1], strict=True))]
    p = PARAMS.model_copy(update={"recognised": recognised})
    alignment = align(tmp_path, aligner, [("talk", samples, [*cues(loose), *cues(texts, MACHINE)], [])], p)
    assert alignment.receipts()[0].stats["transcripts_by_recogniser"] == chosen
    assert len(words(alignment)) == len(" ".join(texts if chosen else [*texts[::3], *texts[1::3]]).split())


def test_a_text_of_another_recording_reads_nothing(tmp_path: Path, aligner: Artifact) -> None:
    samples, texts = spoken(1, 12)
    given = [*cues(texts), *cues(spoken(2, 12)[1], MACHINE)]
    alignment = align(tmp_path, aligner, [("talk", samples, given, [])])
    assert words(alignment) == " ".join(texts).split()
    assert all(len(token) == 1 for token in heard(alignment)[0])
    assert "read_by_recogniser" not in alignment.receipts()[0].stats


def test_lines_that_the_aligner_is_unsure_of_stay_where_both_have_them(tmp_path: Path, aligner: Artifact) -> None:
    """An aligner that would have to be surer than any is of short lines."""
    samples, texts = spoken(1, 12)
    strict = PARAMS.model_copy(update={"false_accept": 1e-80, "false_reject": 0.0})
    alone = align(tmp_path / "a", aligner, [("talk", samples, cues(texts), [])], strict)
    both = align(tmp_path / "b", aligner, [("talk", samples, [*cues(texts), *cues(texts, MACHINE)], [])], strict)
    assert alone.receipts()[0].stats["cues_low-confidence"] > 0
    assert both.receipts()[0].stats["cues_kept"] == 12


# -- a cue that the aligner is unsure of, and the recogniser has ------------------------------------------------------


def placed(*texts: str, starts: list[int]) -> tuple[Document, Timed]:
    """Words of 30 frames of 10 ms that begin at `starts`; -1: not on the path."""
    document = spell([(number, np.nan, text) for number, text in enumerate(texts)], UNITS)
    start = np.array(starts, np.int64)
    return document, Timed(start, np.where(start < 0, -1, start + 30), np.ones(len(start), np.float32))


def test_both_have_the_same_words_at_one_place() -> None:
    own = placed("good night", "all", "alpha", "never", starts=[100, 140, 200, 300, 900])
    other = placed("and good night to all", "alpha", starts=[60, 95, 150, 180, 210, 300 + 30 + BESIDE_FRAMES])
    assert confirmed_cues(*own, *other).tolist() == [True, False, False, False], (
        "short, too late by a frame, and not there"
    )
    near = placed("alpha", starts=[300 + 29 + BESIDE_FRAMES])
    assert confirmed_cues(*own, *near).tolist() == [False, False, True, False]


def test_other_words_or_words_that_the_path_leaves_out_bear_nothing_out() -> None:
    own = placed("good night", "alpha", starts=[100, 140, -1])
    assert confirmed_cues(*own, *placed("good knight", "alpha", starts=[100, 140, 300])).tolist() == [False, False]
    assert confirmed_cues(*own, *placed("good night", starts=[100, -1])).tolist() == [False, False]


def test_what_the_recogniser_skipped_is_read_by_the_aligner() -> None:
    """Whisper skips windows of half a minute; all that people had written down of them was lost."""
    words = SimpleNamespace(words=["one", "two", "three"])
    times = SimpleNamespace(start=np.array([0, 100, 4000]), end=np.array([50, 150, 4050]))  # of 10 ms
    at = np.array([10, 120, 155, 1000, 1010, 3990, 4010, 4400, 4600]) * 80
    letters = pa.table({"tokens": [list("abcdefghi")], "start_samples": [at.tolist()]})
    row = reading_of(words, times, Clock(0.03, 8000, 80 * 4500), letters)
    reading = dict(zip(row["start_samples"][0].as_py(), row["tokens"][0].as_py(), strict=True))
    expected = {0: " one", 100: " two", 155: " c", 1000: "d", 1010: "e", 3990: "f", 4000: " three"}
    assert reading == {80 * frame: token for frame, token in expected.items()}, "after the last word 4.5 s are a pause"
    assert Reading.of(row.add_column(0, "key", [[1]])).between(80 * 150, 80 * 4000) == "cdef"
