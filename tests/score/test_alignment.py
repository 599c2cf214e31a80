"""Alignment scores, on a recording small enough to count by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from made_artifacts import write_artifact

from megahour.core.schemas import ALIGNED_SEGMENTS, ALIGNED_WORDS, CUES, RECORDINGS, TRUTH
from megahour.core.store import Artifact
from megahour.corpus.text.edit_distance import match
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage
from megahour.score.alignment import (
    AlignmentCounts,
    Row,
    compare,
    recordings_table,
    score_alignment,
    spread,
    to_markdown,
)
from megahour.score.alignment_stage import ScoreAlignment
from megahour.score.params import ScoreAlignmentParams
from megahour.score.sentences import errors


def timed(words: str, begin: int = 0) -> list[Row]:
    return [
        {"word": i, "text": word, "start_samples": begin + 1000 * i, "end_samples": begin + 1000 * i + 800}
        for i, word in enumerate(words.split())
    ]


def scored(aligned: list[Row], segments: list[Row], rate_hz: int = 1000, ratio: float = 1.0) -> Row:
    tally = AlignmentCounts()
    compare(timed("a b c d e"), CUE_ROWS, aligned, segments, rate_hz, ratio, tally)
    return tally.row("clean")


CUE_ROWS = [{"cue": 0, "text": "a b c"}, {"cue": 1, "text": "x y"}, {"cue": 2, "text": "d e"}]
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


def test_a_cue_is_spoken_when_half_of_its_words_are() -> None:
    """The first word of the truth counts like any other."""

    def row(*texts: str) -> Row:
        tally = AlignmentCounts()
        compare(
            timed("a b c d e"), [{"cue": i, "text": text} for i, text in enumerate(texts)], [], [], 1000, 1.0, tally
        )
        return tally.row("clean")

    assert (row("a x")["spoken_cues"], row("a x")["unspoken_cues"]) == (1, 0)
    assert (row("a x y")["spoken_cues"], row("a x y")["unspoken_cues"]) == (0, 1)
    assert (row("", "b")["spoken_cues"], row("", "b")["unspoken_cues"]) == (1, 0)  # a cue without words is neither


class Numbered(int):
    """The number of a cue that counts how often it is compared."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Numbered.compared += 1
        return int(self) == other


def test_each_word_is_counted_to_its_cue_once_and_not_looked_for_in_all_of_them() -> None:
    cues = [{"cue": Numbered(number), "text": "a b c"} for number in range(40)]
    tally = AlignmentCounts()
    compare(timed("a b c " * 40), cues, [], [{"cue": 3, "kept": True}], 1000, 1.0, tally)
    assert (tally.spoken_cues, tally.spoken_lost, tally.unspoken_cues) == (40, 39, 0)
    assert Numbered.compared < 1000, "40 cues of 120 words: 4,800 pairs"


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
    tally = AlignmentCounts()
    compare(truth, [{"cue": 0, "text": "a b c"}], aligned({})[:3], KEPT[:1], 1000, 1.0, tally)
    row = tally.row("clean")
    assert (row["words"], row["start_p95_ms"], row["start_far"], row["spoken_cues"]) == (1, 0.0, 0.0, 1)
    assert (row["end_median_ms"], row["end_p95_ms"]) == (100, 100)


def test_a_word_that_truly_begins_or_ends_at_zero_is_compared_too() -> None:
    tally = AlignmentCounts()
    truth = [{"word": 0, "text": "a", "start_samples": 0, "end_samples": 0}]
    word = {"cue": 0, "word": 0, "start_samples": 30, "end_samples": 40}
    compare(truth, [{"cue": 0, "text": "a"}], [word], [{"cue": 0, "kept": True}], 1000, 1.0, tally)
    row = tally.row("clean")
    assert (row["refused"], row["start_bias_ms"], row["end_bias_ms"]) == (0, 30, 40)


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
    scores = score_alignment(raw, recordings, write("alignment", tables))
    first, second, everything = scores.table
    assert (first["start_median_ms"], second["start_median_ms"]) == (150, 50)
    assert (everything["words"], everything["recordings"]) == (2, 2)
    assert recordings_table(scores.recordings).select(["key", "name", "start_median_ms"]).to_pylist() == [
        {"key": 0, "name": "first", "start_median_ms": 150},
        {"key": 1, "name": "second", "start_median_ms": 50},
    ]
    edges = scores.histogram["edges_ms"]
    bars = {edge: [edges[i] for i, n in enumerate(scores.histogram[edge]) if n] for edge in ("start", "end")}
    assert bars == {"start": [40, 140], "end": [0]}  # of 20 ms each: 50 and 150 late, and twice on time


def test_lines_and_speech_without_text_are_scored_where_the_truth_knows_them(tmp_path: Path) -> None:
    """Truth at 1000 samples a second, the recording at 2000: "b" and a passage in French are not in the transcript."""

    def write(name: str, tables: dict[str, pa.Table]) -> Artifact:
        return write_artifact(tmp_path / name, [({}, tables)], {})

    def rows(*rows: Row) -> pa.Table:
        return pa.Table.from_pylist([{"name": "tape", **row} for row in rows])

    truth = {
        ".truth.parquet": rows(
            *(
                {"word": i, "text": text, "start_samples": at, "end_samples": at + 500, "sentence": i}
                for i, (text, at) in enumerate([("a", 1000), ("b", 3000), ("c", 6000)])
            )
        ),
        ".sentences.parquet": rows(
            *(
                {
                    "sentence": i,
                    "spoken": text,
                    "in_transcript": text != "b",
                    "start_samples": at,
                    "end_samples": at + 500,
                }
                for i, (text, at) in enumerate([("a", 1000), ("b", 3000), ("c", 6000)])
            )
        ),
        ".lines.parquet": rows({"line": 1, "text": "C!", "sentence": 2}, {"line": 0, "text": "A.", "sentence": 0}),
        ".passages.parquet": rows({"language": "fr", "start_samples": 8000, "end_samples": 9000}),
    }
    index = [{"key": 0, "name": "tape", "rate_hz": 2000, "condition": "clean", "language": "en"}]
    cues = [{"key": 0, "cue": i, "text": text} for i, text in enumerate("ac")]
    recordings = {
        ".parquet": pa.Table.from_pylist(index, RECORDINGS),
        ".cues.parquet": pa.Table.from_pylist(cues, CUES),
    }
    words = [
        {"key": 0, "cue": i, "word": 0, "text": text, "start_samples": at, "end_samples": at + 1000}
        for i, (text, at) in enumerate([("a", 2100), ("c", 12_000)])
    ]
    segments = [
        *({"key": 0, "cue": i, "kept": True, "reason": "", "start_samples": 0, "end_samples": 0} for i in range(2)),
        {"key": 0, "cue": -1, "kept": False, "reason": "untranscribed", "start_samples": 6000, "end_samples": 7000},
        {"key": 0, "cue": -1, "kept": False, "reason": "untranscribed", "start_samples": 16_000, "end_samples": 17_000},
    ]
    aligned = {
        ".parquet": pa.Table.from_pylist(words, ALIGNED_WORDS),
        ".segments.parquet": pa.Table.from_pylist(segments, ALIGNED_SEGMENTS),
    }
    scores = score_alignment(write("raw", truth), write("recordings", recordings), write("alignment", aligned), 1000)
    row, everything = scores.table
    assert (row["condition"], everything["condition"]) == ("clean", "all")
    assert (row["words"], row["start_bias_ms"], row["end_bias_ms"]) == (2, 25, 25)
    assert (row["sentences"], row["sentence_start_mean_ms"], row["spoken_lines"], row["unspoken_lines"]) == (
        2,
        25,
        2,
        0,
    )
    assert (row["untranscribed_precision"], row["untranscribed_recall"]) == (1.0, round(1.0 / 1.5, 4))
    assert (row["passages"], row["passages_kept"]) == (1, 0)
    assert "| clean | 2 | 100.0% | 0.00% | 0/0 | 0/2 | 100.0% / 66.7% | 0/1 | 25 |" in to_markdown(scores.table)
    (plain,) = score_alignment(
        write("words", {".truth.parquet": truth[".truth.parquet"]}), write("r", recordings), write("w", aligned), 1000
    ).recordings
    assert (plain["words"], plain["spoken_lines"], plain["untranscribed_recall"], plain["passages"]) == (2, 0, None, 0)


def test_recordings_without_a_truth_are_left_out(tmp_path: Path) -> None:
    word = {"name": "tape", "word": 0, "text": "a", "start_samples": 0, "end_samples": 900, "sentence": 0}
    raw = write_artifact(tmp_path / "raw", [({}, {".truth.parquet": pa.Table.from_pylist([word], TRUTH)})], {})
    index = [{"key": i, "name": name, "rate_hz": 1000, "condition": "x"} for i, name in enumerate(["other", "tape"])]
    tables = {".parquet": pa.Table.from_pylist(index, RECORDINGS), ".cues.parquet": pa.Table.from_pylist([], CUES)}
    empty = {
        ".parquet": pa.Table.from_pylist([], ALIGNED_WORDS),
        ".segments.parquet": pa.Table.from_pylist([], ALIGNED_SEGMENTS),
    }
    recordings = write_artifact(tmp_path / "recordings", [({}, tables)], {})
    scores = score_alignment(raw, recordings, write_artifact(tmp_path / "alignment", [({}, empty)], {}))
    assert [(row["name"], row["recordings"], row["refused"], row["words"]) for row in scores.recordings] == [
        ("tape", 1, 1, 0)
    ]
    assert (
        to_markdown(scores.table).splitlines()[2]
        == "| x | 0 | – / – / – | – / – / – | – / – / – | – | 0 of 0 | 0 of 0 | 1 of 1 |"
    )


def test_recordings_of_which_little_is_known_have_the_same_columns() -> None:
    unknown = {"key": 1, "name": "a", **AlignmentCounts(refused=1, recordings=1).row("far")}
    known = {"key": 2, "name": "b", **scored(aligned({}), KEPT)}
    assert recordings_table([unknown]).schema == recordings_table([known]).schema == recordings_table([]).schema
    assert recordings_table([unknown, known])["start_p95_ms"].to_pylist() == [None, 0.0]


def test_errors_beyond_the_histogram_are_in_its_last_bars() -> None:
    assert (sum(spread([np.array([-9e3, 9e3, 3.0])], [-20, 0, 20])), spread([], [-20, 0, 20])) == (3, [0, 0])


def test_figures_are_robust_to_the_side_and_count_the_tolerances_in() -> None:
    """Sizes 50, 100 and 200 are within 50, 100 and 200 ms; 1000 ms is not yet far."""
    errors_ms = np.array([-50.0, 100.0, -200.0, 1000.0, 1001.0])
    row = errors("start", errors_ms, 1000)
    assert row == {
        **{"start_median_ms": 200.0, "start_mean_ms": 470.2, "start_p95_ms": 1000.8, "start_bias_ms": 100.0},
        **{"start_within_50_ms": 0.2, "start_within_100_ms": 0.4, "start_within_200_ms": 0.6, "start_far": 0.2},
    }


def test_tallies_add_up_as_if_all_was_one() -> None:
    """Figures of two recordings together are those of their errors together, in the order of the recordings."""
    both, total = AlignmentCounts(), AlignmentCounts()
    for shifts in ({(2, 1): 1500}, {(0, 1): -150}):
        one = AlignmentCounts()
        for tally in (one, both):
            compare(timed("a b c d e"), CUE_ROWS, aligned(shifts), KEPT, 1000, 1.0, tally)
        one.by_line.spoken, one.by_line.start_ms = 2, [float(len(shifts))]
        total.add(one)
    assert {k: v for k, v in total.row("x").items() if "line" not in k and "sentence" not in k} == {
        k: v for k, v in both.row("x").items() if "line" not in k and "sentence" not in k
    }
    assert (total.recordings, total.row("x")["spoken_lines"], total.row("x")["sentences"]) == (2, 4, 2)


def test_the_stage_writes_the_table_for_people_and_for_programs(tmp_path: Path) -> None:
    names = ["tape", "call"]
    word = {"word": 0, "text": "a", "start_samples": 0, "end_samples": 450, "sentence": 0}
    index = [{"key": i, "name": name, "rate_hz": 1000, "condition": name} for i, name in enumerate(names)]
    aligned = {"cue": 0, "word": 0, "text": "a", "start_samples": 30, "end_samples": 900}
    tables = {
        "raw": {".truth.parquet": pa.Table.from_pylist([{"name": name, **word} for name in names], TRUTH)},
        "recordings": {
            ".parquet": pa.Table.from_pylist(index, RECORDINGS),
            ".cues.parquet": pa.Table.from_pylist([{"key": i, "cue": 0, "text": "a"} for i in range(2)], CUES),
        },
        "alignment": {
            ".parquet": pa.Table.from_pylist([{"key": i, **aligned} for i in range(2)], ALIGNED_WORDS),
            ".segments.parquet": pa.Table.from_pylist(
                [{"key": i, "cue": 0, "kept": True} for i in range(2)], ALIGNED_SEGMENTS
            ),
        },
    }
    inputs = {name: write_artifact(tmp_path / name, [({}, made)], {}) for name, made in tables.items()}
    output = Artifact(tmp_path / "score")
    with LocalEngine(workers=1) as engine:
        params = ScoreAlignmentParams(truth_rate_hz=500)
        manifest = run_stage(ScoreAlignment(), params, inputs, output, engine, work=tmp_path / "work")
    found = output.read_json(0, ".json")
    assert [row["condition"] for row in found["table"]] == ["call", "tape", "all"]
    assert manifest.summary["table"] == found["table"]
    assert found["histogram"]["start"][found["histogram"]["edges_ms"].index(20)] == 2
    assert found["table"][-1]["end_p95_ms"] == 0.0
    assert output.read_bytes(0, ".md").decode() == to_markdown(found["table"])
    assert output.read_table(0)["start_median_ms"].to_pylist() == [30.0, 30.0]
    assert (manifest.counts.came_in, manifest.counts.kept) == (2, 2)
