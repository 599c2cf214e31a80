"""Scores of alignments, on a recording small enough to count by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from made_artifacts import write_artifact

from megahour.core.schemas import ALIGNED_SEGMENTS, ALIGNED_WORDS, CUES, RECORDINGS, TRUTH
from megahour.core.store import Artifact
from megahour.score.alignment import Row, Tally, compare, score_alignment, to_markdown
from megahour.score.words import match


def timed(words: str, begin: int = 0) -> list[Row]:
    return [
        {"word": i, "text": word, "start_samples": begin + 1000 * i, "end_samples": begin + 1000 * i + 800}
        for i, word in enumerate(words.split())
    ]


def scored(aligned: list[Row], segments: list[Row], rate_hz: int = 1000, ratio: float = 1.0) -> Row:
    cues = [{"cue": 0, "text": "a b c"}, {"cue": 1, "text": "x y"}, {"cue": 2, "text": "d e"}]
    tally = Tally()
    compare(timed("a b c d e"), cues, aligned, segments, rate_hz, ratio, tally)
    return tally.row("clean")


KEPT = [{"cue": 0, "kept": True}, {"cue": 1, "kept": False}, {"cue": 2, "kept": True}]


def aligned(shifts: dict[tuple[int, int], int]) -> list[Row]:
    true = {(0, 0): 0, (0, 1): 1000, (0, 2): 2000, (2, 0): 3000, (2, 1): 4000}
    return [
        {"cue": cue, "word": word, "start_samples": at + shifts.get((cue, word), 0), "end_samples": at + 700}
        for (cue, word), at in true.items()
    ]


def test_a_perfect_start_and_an_early_end() -> None:
    row = scored(aligned({}), KEPT)
    assert (row["words"], row["start_p95_ms"], row["start_within_50_ms"]) == (5, 0.0, 1.0)
    assert (row["end_median_ms"], row["end_bias_ms"], row["end_within_50_ms"], row["end_within_100_ms"]) == (
        100,
        -100,
        0,
        1,
    )
    assert (row["spoken_cues"], row["spoken_lost"], row["unspoken_cues"], row["unspoken_kept"]) == (2, 0, 1, 0)


def test_far_words_are_counted() -> None:
    row = scored(aligned({(2, 1): 1500, (0, 1): -150}), KEPT)
    assert row["start_far"] == pytest.approx(0.2)
    assert row["start_within_200_ms"] == pytest.approx(0.8)
    assert row["start_within_100_ms"] == pytest.approx(0.6)


def test_kept_unspoken_and_lost_spoken_cues() -> None:
    segments = [{"cue": 0, "kept": False}, {"cue": 1, "kept": True}, {"cue": 2, "kept": True}]
    row = scored([], segments)
    assert (row["spoken_lost"], row["unspoken_kept"], row["refused"]) == (1, 1, 0)
    assert row["start_median_ms"] is None


def test_a_refused_recording_loses_its_spoken_cues() -> None:
    row = scored([], [])
    assert (row["refused"], row["spoken_lost"], row["unspoken_kept"]) == (1, 2, 0)


def test_truth_at_another_rate() -> None:
    words = aligned({})
    doubled = [{**w, "start_samples": 2 * w["start_samples"], "end_samples": 2 * w["end_samples"]} for w in words]
    assert scored(doubled, KEPT, rate_hz=2000, ratio=2.0)["start_p95_ms"] == 0.0


def test_unknown_true_times_are_not_compared() -> None:
    """A composed clip "a b c" has a true start of "a" and a true end of "c" only."""
    truth = timed("a b c")
    for i, word in enumerate(truth):
        truth[i] = {**word, "start_samples": word["start_samples"] if i == 0 else -1}
        truth[i]["end_samples"] = word["end_samples"] if i == 2 else -1
    tally = Tally()
    compare(truth, [{"cue": 0, "text": "a b c"}], aligned({})[:3], KEPT[:1], 1000, 1.0, tally)
    row = tally.row("clean")
    assert (row["words"], row["start_p95_ms"], row["start_far"], row["spoken_cues"]) == (1, 0.0, 0.0, 1)
    assert (row["end_median_ms"], row["end_p95_ms"]) == (100, 100)


def test_words_are_matched_in_order() -> None:
    assert match(["the", "cat", "the", "dog"], ["a", "cat", "the", "big", "dog"]).tolist() == [-1, 1, 2, 4]
    assert match([], ["a"]).tolist() == []
    assert match(["a"], []).tolist() == [-1]


def test_the_table_reads_well() -> None:
    line = to_markdown([scored(aligned({}), KEPT)]).splitlines()[2]
    assert (
        line
        == "| clean | 5 | 0 / 0 / 0 | 100 / 100 / 100 | 100.0% / 100.0% / 100.0% | 0.00% | 0 of 1 | 0 of 2 | 0 of 1 |"
    )


def test_the_truth_may_be_sharded_otherwise_than_the_recordings(tmp_path: Path) -> None:
    """Two recordings of one word in one shard, their truth in two others."""
    names = ["first", "second"]

    def write(name: str, *shards: dict[str, tuple[pa.Schema, list[Row]]]) -> Artifact:
        tables = [{s: pa.Table.from_pylist(rows, schema) for s, (schema, rows) in shard.items()} for shard in shards]
        return write_artifact(tmp_path / name, [({}, shard) for shard in tables], {})

    truth = [
        {"name": name, "word": 0, "text": "a", "start_samples": 100 * i, "end_samples": 900, "sentence": 0}
        for i, name in enumerate(names)
    ]
    raw = write("raw", {}, *({".truth.parquet": (TRUTH, [row])} for row in truth[::-1]))
    index = [{"key": i, "name": name, "rate_hz": 1000, "condition": name} for i, name in enumerate(names)]
    cues = [{"key": i, "cue": 0, "text": "a"} for i in range(2)]
    recordings = write("recordings", {".parquet": (RECORDINGS, index), ".cues.parquet": (CUES, cues)})
    words = [{"key": i, "cue": 0, "word": 0, "text": "a", "start_samples": 150, "end_samples": 900} for i in range(2)]
    segments = [{"key": i, "cue": 0, "kept": True} for i in range(2)]
    tables = {".parquet": (ALIGNED_WORDS, words), ".segments.parquet": (ALIGNED_SEGMENTS, segments)}
    first, second, everything = score_alignment(raw, recordings, write("alignment", tables))
    assert (first["start_median_ms"], second["start_median_ms"]) == (150, 50)
    assert (everything["words"], everything["recordings"]) == (2, 2)
