"""Error counts are exact, intervals have the right coverage, and the table has the systems' hypotheses."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_artifacts import write_artifact

from megahour.core.errors import ConfigError, StageError
from megahour.core.schemas import FEATURES, HYPOTHESES, RECORDINGS, SELECTION, TRUTH, UTTERANCES
from megahour.core.store import Artifact
from megahour.corpus.text import edit_distance
from megahour.corpus.text.edit_distance import Edits, align, pairs
from megahour.engine.base import TaskFailed
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage
from megahour.score.params import ScoreParams
from megahour.score.references import Reference, read_references, true_references
from megahour.score.stage import Score
from megahour.score.table import Scored, to_markdown
from megahour.score.wer import Bootstrap, character_edits, compare, interval, rate, word_edits

sentences = st.lists(st.sampled_from("abc"), max_size=9)


@given(sentences, sentences)
def test_error_counts_agree_with_kaldialign(reference: list[str], hypothesis: list[str]) -> None:
    kaldialign = pytest.importorskip("kaldialign", reason="pip install kaldialign to compare alignments with it")
    edits = align(reference, hypothesis)
    assert edits.errors == kaldialign.edit_distance(reference, hypothesis)["total"]
    assert edits.insertions - edits.deletions == len(hypothesis) - len(reference)
    assert 0 <= edits.deletions + edits.substitutions <= edits.length == len(reference)


@given(sentences, sentences)
def test_turning_the_question_round_swaps_deletions_and_insertions(a: list[str], b: list[str]) -> None:
    there, back = align(a, b), align(b, a)
    assert there.errors == back.errors
    assert align(a, a).errors == 0
    assert there.errors <= max(len(a), len(b))


def test_counts_of_a_known_alignment() -> None:
    assert word_edits("the old boat sank", "the boat sank slowly") == Edits(0, 1, 1, 4)
    assert character_edits("red  boat", "rad boats") == Edits(1, 0, 1, 8)
    assert word_edits("", "hello").rate != word_edits("", "hello").rate  # NaN: no words to get wrong
    assert word_edits("a b", "").rate == 1.0


@given(sentences, sentences, st.integers(0, 40))
def test_the_alignment_is_the_same_in_blocks_of_rows(reference: list[str], hypothesis: list[str], cells: int) -> None:
    whole = pairs(reference, hypothesis)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edit_distance, "TABLE", cells)
        assert pairs(reference, hypothesis) == whole


def test_long_texts_are_aligned_without_the_whole_table() -> None:
    """That of an hour's transcript, in characters, takes 11 GB."""
    reference = "".join(np.random.default_rng(0).choice(list("abc "), 4000))
    hypothesis = reference[:1000] + "x" + reference[1000:2000] + reference[2001:]
    tracemalloc.start()
    edits = align(reference, hypothesis)
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert edits == Edits(0, 1, 1, 4000)
    assert most_bytes < 16 << 20


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_bootstrap_totals_have_the_mean_of_the_sample(seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 5, (50, 2))
    totals = Bootstrap(50, None, 2000, seed).totals(values)
    spread = values.std(axis=0) * math.sqrt(50)
    assert (np.abs(totals.mean(axis=0) - values.sum(axis=0)) < 0.15 * spread + 1e-9).all()
    np.testing.assert_allclose(totals.std(axis=0), spread, rtol=0.15, atol=1e-9)


def test_draws_in_several_chunks_are_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(20).reshape(10, 2)
    whole = Bootstrap(10, None, 25, 3).totals(values)
    monkeypatch.setattr("megahour.score.wer.CHUNK_CELLS", 70)  # seven draws of ten clusters
    np.testing.assert_array_equal(Bootstrap(10, None, 25, 3).totals(values), whole)
    monkeypatch.setattr("megahour.score.wer.CHUNK_CELLS", 5)
    assert Bootstrap(10, None, 2, 3).totals(values).shape == (2, 2)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng, covered = np.random.default_rng(0), 0
    for trial in range(100):
        errors = rng.binomial(10, 0.2, 80)
        edits = [Edits(int(e), 0, 0, 10) for e in errors]
        low, high = rate(edits, edits, Bootstrap(80, None, 400, trial)).interval
        covered += low <= 0.2 <= high
    assert 87 <= covered <= 100


def test_the_interval_holds_the_middle_95_percent() -> None:
    draws = np.arange(1001.0)
    assert interval(draws) == pytest.approx((25.0, 975.0))
    assert interval(draws, 0.9) == pytest.approx((50.0, 950.0))
    assert interval(np.concatenate([draws, [np.nan, np.inf]])) == pytest.approx((25.0, 975.0))  # rates of no words


def test_drawing_speakers_widens_the_interval_of_what_speakers_share() -> None:
    edits = [Edits(4 * (i % 2), 0, 0, 10) for i in range(40)]
    speakers = [f"s{i % 2}" for i in range(40)]
    alone = rate(edits, edits, Bootstrap(40, None, 1000, 0)).interval
    together = rate(edits, edits, Bootstrap(40, speakers, 1000, 0)).interval
    assert together == (0.0, 0.4)
    assert alone[1] - alone[0] < 0.2


def test_a_clear_win_is_sure_and_a_tie_is_even() -> None:
    good, bad = [Edits(0, 0, 0, 10)] * 30, [Edits(2, 0, 0, 10)] * 30
    bootstrap = Bootstrap(30, None, 200, 0)
    assert (compare(bad, good, bootstrap).werr, compare(bad, good, bootstrap).probability) == (1.0, 1.0)
    assert compare(good, bad, bootstrap).probability == 0.0
    assert compare(bad, bad, bootstrap).probability == 0.5
    assert math.isnan(compare(good, good, bootstrap).werr)
    with pytest.raises(ValueError, match="different references"):
        compare(good, [Edits(0, 0, 0, 9)] * 30, bootstrap)
    assert math.isnan(interval(np.array([np.nan]))[0])


def test_the_table_has_a_row_per_condition_and_one_for_all() -> None:
    references = [
        Reference(1, "red boat", "clean", "ann"),
        Reference(2, "old boat", "noisy", "ann"),
        Reference(3, "old red boat", "noisy", "bob"),
    ]
    systems = {
        "baseline": {1: "red boat", 2: "cold boat", 3: "boat"},
        "student": {1: "red boat", 2: "old boat", 3: "old boat"},
    }
    scored = Scored(references, systems)
    clean, noisy, everything = scored.table(draws=200, seed=0)
    assert (clean["condition"], clean["words"], clean["wer_baseline"], clean["werr"]) == ("clean", 2, 0.0, None)
    assert (noisy["wer_baseline"], noisy["wer_student"]) == (0.6, 0.2)
    assert noisy["werr"] == pytest.approx(2 / 3, abs=1e-6)
    assert (everything["utterances"], everything["deletions_baseline"], everything["substitutions_baseline"]) == (
        3,
        2,
        1,
    )
    assert [row["wer_student"] for row in scored.speakers()] == [0.0, pytest.approx(1 / 3, abs=1e-6)]
    lines = to_markdown([clean, noisy, everything]).splitlines()
    assert lines[0].startswith("| condition | utterances | words | WER baseline % | WER student % | WERR % |")
    assert lines[1] == "| --- |" + " ---: |" * 7
    assert lines[3].startswith("| noisy | 2 | 5 | 60.00 | 20.00 | 66.7 |")
    assert lines[2].split("|")[6].strip() == "–"  # no relative reduction of no errors


def scored(*utterances: tuple[str, str, str, str, str]) -> Scored:
    """Of utterances given as (reference, condition, speaker, baseline, student)."""
    references = [Reference(key, said, where, who) for key, (said, where, who, _, _) in enumerate(utterances)]
    baseline = {key: found for key, (*_, found, _) in enumerate(utterances)}
    return Scored(references, {"baseline": baseline, "student": {key: u[4] for key, u in enumerate(utterances)}})


def test_every_figure_of_a_row_is_of_its_own_utterances() -> None:
    made = scored(
        ("one two three four", "clean", "ann", "one two tree", "one two three four"),
        ("five six", "clean", "bob", "five six seven", "five six"),
        ("a b", "noisy", "ann", "a b", "x b"),
    )
    clean, noisy, everything = made.table(draws=50, seed=1)
    assert {name: clean[name] for name in clean if "interval" not in name} == {
        **{"condition": "clean", "utterances": 2, "speakers": 2, "words": 6},
        **{"wer_baseline": 0.5, "cer_baseline": round((1 + 5 + 6) / 26, 6)},
        **{"substitutions_baseline": 1, "deletions_baseline": 1, "insertions_baseline": 1},
        **{"wer_student": 0.0, "cer_student": 0.0},
        **{"substitutions_student": 0, "deletions_student": 0, "insertions_student": 0},
        **{"werr": 1.0, "probability_of_improvement": 1.0},
    }
    assert (noisy["utterances"], noisy["speakers"], noisy["words"]) == (1, 1, 2)
    assert (noisy["wer_baseline"], noisy["wer_student"], noisy["substitutions_student"]) == (0.0, 0.5, 1)
    assert (noisy["werr"], noisy["werr_interval"], noisy["probability_of_improvement"]) == (None, [None, None], None)
    assert (everything["condition"], everything["words"], everything["werr"]) == ("all", 8, round(2 / 3, 6))
    assert made.speakers() == [
        {
            "speaker": "ann",
            "utterances": 2,
            "words": 6,
            "wer_baseline": round(2 / 6, 6),
            "wer_student": round(1 / 6, 6),
        },
        {"speaker": "bob", "utterances": 1, "words": 2, "wer_baseline": 0.5, "wer_student": 0.0},
    ]


def test_speakers_are_drawn_where_there_are_several() -> None:
    """Two very different speakers, whose share of a draw is 0, 1/2 or 1; a single speaker has varied utterances."""
    said = [("a b", "x", who, "a b" if who == "ann" else "a", "a b") for who in ("ann", "bob") for _ in range(20)]
    (_, two) = scored(*said).table(draws=200, seed=0)
    assert two["wer_baseline_interval"] == [0.0, 0.5]
    (_, one) = scored(*[(text, where, "ann", *found) for text, where, _, *found in said]).table(draws=200, seed=0)
    low, high = one["wer_baseline_interval"]
    assert 0.1 < low < 0.25 < high < 0.4
    (_, again) = scored(*[(text, where, "ann", *found) for text, where, _, *found in said]).table(draws=200, seed=1)
    assert again["wer_baseline_interval"] != one["wer_baseline_interval"], "another seed, other draws"


def test_a_hypothesis_that_is_missing_is_an_empty_one() -> None:
    references = [Reference(1, "a b", "clean", "ann"), Reference(2, "c", "clean", "ann")]
    made = Scored(references, {"baseline": {1: "a b", 3: "z"}, "student": {}})
    assert made.missing == {"baseline": 1, "student": 2}
    assert made.texts == {"baseline": ["a b", ""], "student": ["", ""]}
    assert [edits.deletions for edits in made.words["student"]] == [2, 1]


def test_the_table_reads_well_for_one_row() -> None:
    said = [("a b c d", "clean", "ann", "a b", "a b c"), ("a b", "clean", "ann", "a", "a b")]
    (row, _) = scored(*said).table(20, 0)
    head, rule, line = to_markdown([row]).splitlines()
    assert head.endswith("| WER baseline % | WER student % | WERR % | 95 % interval | P(better) |")
    assert rule == "| --- |" + " ---: |" * 7
    low, high = (f"{100 * value:.1f}" for value in row["werr_interval"])
    assert line == f"| clean | 2 | 6 | 50.00 | 16.67 | 66.7 | {low} … {high} | 1.000 |"
    (alone, _) = scored(said[0]).table(20, 0)
    assert alone["wer_student_interval"] == [None, None], "draws of one utterance are all the same"
    assert to_markdown([alone]).splitlines()[2] == "| clean | 1 | 4 | 50.00 | 25.00 | 50.0 | – | – |"


def table(schema: pa.Schema, rows: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema=schema)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    """One recording of 10 words of 100 samples each, cut into [0, 450) and [450, 1000); the transcripts are wrong."""
    folder = tmp_path_factory.mktemp("score")

    def write(name: str, suffix: str, schema: pa.Schema, rows: list[dict[str, object]], **tags: str) -> Artifact:
        return write_artifact(folder / name, [(tags, {suffix: table(schema, rows)})], {})

    words = list("abcdefghij")
    truth = [
        {"name": "tape", "word": i, "text": word, "start_samples": 100 * i, "end_samples": 100 * i + 100}
        for i, word in enumerate(words)
    ]
    spans = [(1, 0, 450, "a b c x"), (2, 450, 1000, "f g h i j k")]
    about = {"condition": "clean", "speaker": "ann", "set": "test"}
    return {
        "raw": write("raw", ".truth.parquet", TRUTH, truth[::-1]),
        "recordings": write("recordings", ".parquet", RECORDINGS, [{"key": 9, "name": "tape", "rate_hz": 16000}]),
        "utterances": write(
            "utterances",
            ".parquet",
            UTTERANCES,
            [{"key": k, "recording": 9, "start_samples": a, "end_samples": b} for k, a, b, _ in spans],
        ),
        "features": write(
            "features", ".arrow", FEATURES, [{"key": k, "text": text, **about} for k, _, _, text in spans], set="test"
        ),
        "baseline": write("baseline", ".parquet", HYPOTHESES, [{"key": 1, "text": "a b c x"}]),
        "student": write(
            "student", ".parquet", HYPOTHESES, [{"key": 1, "text": "a b c d"}, {"key": 2, "text": "e f g h i j"}]
        ),
    }


def test_the_stage_scores_against_the_words_that_were_really_said(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    output = Artifact(tmp_path / "score")
    manifest = run_stage(Score(), ScoreParams(), made, output, engine, work=tmp_path / "work")
    row = manifest.summary["table"][-1]
    assert (manifest.counts.came_in, manifest.counts.kept) == (2, 2)
    found = output.read_json(0, ".json")
    assert (found["table"], found["references"]) == (manifest.summary["table"], "truth")
    assert [(row["speaker"], row["words"]) for row in found["speakers"]] == [("ann", 10)]
    # `e` spans [400, 500): its middle, 450, lies in the second utterance, which the baseline says nothing about
    assert (row["words"], row["wer_student"], row["wer_baseline"]) == (10, 0.0, 0.7)
    assert (row["deletions_baseline"], row["substitutions_baseline"]) == (6, 1)
    assert output.summary["missing_hypotheses"] == {"baseline": 1, "student": 0}
    utterances = output.read_table(0).to_pylist()
    assert [u["reference"] for u in utterances] == ["a b c d", "e f g h i j"]
    assert [(u["key"], u["condition"], u["speaker"]) for u in utterances] == [(1, "clean", "ann"), (2, "clean", "ann")]
    assert [u["student"] for u in utterances] == ["a b c d", "e f g h i j"]
    assert [u["errors_baseline"] for u in utterances] == [1, 6]
    assert output.read_bytes(0, ".md").decode().splitlines()[-1].startswith("| all | 2 | 10 | 70.00 | 0.00 | 100.0 |")


def test_truth_at_another_rate_is_rescaled(made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path) -> None:
    output = Artifact(tmp_path / "score")
    params = ScoreParams(truth_rate_hz=8000)  # each word then lasts 200 samples of the recording
    run_stage(Score(), params, made, output, engine, work=tmp_path / "work")
    assert output.read_table(0)["reference"].to_pylist() == ["a b", "c d e"]


def test_without_truth_the_transcripts_are_the_references(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    inputs = {name: made[name] for name in ("baseline", "student", "features")}
    output = Artifact(tmp_path / "score")
    summary = run_stage(Score(), ScoreParams(), inputs, output, engine, work=tmp_path / "work").summary
    assert summary["references"] == "text"
    assert output.read_table(0)["reference"].to_pylist() == ["a b c x", "f g h i j k"]


def test_with_a_selection_utterances_are_named_by_recording_and_time(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    span = {"name": "the talk.flac", "channel": 1, "start_samples": 24_000, "end_samples": 40_000, "rate_hz": 16_000}
    row = {"key": 1, "text": "a b c x", "condition": "clean", "speaker": "ann", "set": "test", **span}
    shards = [({"set": "test"}, {".parquet": table(SELECTION, [row])})]
    selection = write_artifact(tmp_path / "selection", shards, {})
    output, inputs = Artifact(tmp_path / "score"), {"student": made["student"], "selection": selection}
    run_stage(Score(), ScoreParams(), inputs, output, engine, work=tmp_path / "work")
    (found,) = output.read_table(0).to_pylist()
    assert (found["recording"], found["start_s"], found["end_s"]) == ("the%20talk.flac.1", 1.5, 2.5)


def test_a_single_model_is_scored_without_a_baseline(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    output = Artifact(tmp_path / "score")
    inputs = {name: made[name] for name in ("student", "features")}
    (_, row) = run_stage(Score(), ScoreParams(), inputs, output, engine, work=tmp_path / "work").summary["table"]
    assert (row["words"], row["wer_student"]) == (10, 0.3)  # d for x, e inserted, k missed
    assert not any("werr" in name or "probability" in name or "baseline" in name for name in row)
    head, _, _, last = output.read_bytes(0, ".md").decode().splitlines()
    low, high = (f"{100 * value:.1f}" for value in row["wer_student_interval"])
    assert head == "| condition | utterances | words | WER student % | 95 % interval |"
    assert last == f"| all | 2 | 10 | 30.00 | {low} … {high} |"
    assert [row.keys() for row in output.read_json(0, ".json")["speakers"]] == [
        {"speaker", "utterances", "words", "wer_student"}
    ]


def test_a_selection_goes_before_features_and_only_its_wanted_sets_count(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    rows = {name: {"key": key, "text": "z", "condition": "x", "speaker": "bob", "set": name} for key, name in SETS}
    shards = [({"set": name}, {".parquet": table(SELECTION, [row])}) for name, row in rows.items()]
    selection = write_artifact(tmp_path / "selection", shards, {})
    inputs = {**{name: made[name] for name in ("baseline", "student", "features")}, "selection": selection}
    output = Artifact(tmp_path / "score")
    run_stage(Score(), ScoreParams(sets=["dev"]), inputs, output, engine, work=tmp_path / "work")
    assert output.read_table(0).select(["key", "reference"]).to_pylist() == [{"key": 1, "reference": "z"}]


SETS = [(2, "test"), (1, "dev")]


def test_a_truth_that_lacks_an_utterance_or_a_recording_is_named(made: dict[str, Artifact], tmp_path: Path) -> None:
    known = read_references(made["features"], ".arrow", ["test"])
    places = made["recordings"], made["utterances"]
    assert [r.text for r in true_references(known, made["raw"], *places)] == ["a b c d", "e f g h i j"]
    with pytest.raises(StageError, match="utterance 77 is not in the utterances"):
        true_references([*known, Reference(77, "", "clean", "ann")], made["raw"], *places)
    other = {"name": "other", "word": 0, "text": "a", "start_samples": 0, "end_samples": 9}
    shards = [({}, {}), ({}, {".truth.parquet": table(TRUTH, [other])})]  # the first shard has no truth at all
    with pytest.raises(StageError, match="no truth for recording tape"):
        true_references(known, write_artifact(tmp_path / "raw", shards, {}), *places)
    nothing = write_artifact(tmp_path / "none", [({}, {".parquet": table(RECORDINGS, [])})], {})
    with pytest.raises(StageError, match="no truth for recording 9"):
        true_references(known, made["raw"], nothing, made["utterances"])


def test_a_truth_that_does_not_know_the_words_times_is_refused(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    """A composed clip of several words has only outer times, and no word may be lost from the reference."""
    truth = [{"name": "tape", "word": i, "text": "a", "start_samples": 0, "end_samples": 9 - 10 * i} for i in (0, 1)]
    raw = write_artifact(tmp_path / "raw", [({}, {".truth.parquet": table(TRUTH, truth)})], {})
    with pytest.raises(TaskFailed, match="tape does not say when each word is spoken"):
        run_stage(Score(), ScoreParams(), {**made, "raw": raw}, Artifact(tmp_path / "score"), engine, work=tmp_path)


def test_a_system_without_any_hypothesis_is_an_error_not_a_word_error_rate(
    made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path
) -> None:
    other = write_artifact(tmp_path / "other", [({}, {".parquet": table(HYPOTHESES, [{"key": 7, "text": "a"}])})], {})
    with pytest.raises(TaskFailed, match=r"\['baseline'\] have no hypothesis for any of the 2 utterances"):
        run_stage(Score(), ScoreParams(), {**made, "baseline": other}, Artifact(tmp_path / "s"), engine, work=tmp_path)


def test_missing_inputs_are_named(made: dict[str, Artifact], engine: LocalEngine, tmp_path: Path) -> None:
    systems = {name: made[name] for name in ("baseline", "student")}
    for inputs, params, error, message in [
        (systems, ScoreParams(), ConfigError, "no references"),
        ({**systems, "features": made["features"], "raw": made["raw"]}, ScoreParams(), ConfigError, "truth needs"),
        ({**systems, "features": made["features"]}, ScoreParams(sets=["best"]), TaskFailed, r"in sets \['best'\]"),
    ]:
        with pytest.raises(error, match=message):
            run_stage(Score(), params, inputs, Artifact(tmp_path / "score"), engine, work=tmp_path / "work")
