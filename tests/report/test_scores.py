"""The report's sections on errors: rates, intervals, speakers, confusions, hypotheses, and alignments."""

from pathlib import Path

import pyarrow as pa
import pytest
from made_run import artifact, make_run, said

from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.engine.local import LocalEngine
from megahour.report.alignment import alignment
from megahour.report.errors import errors, speakers, tags
from megahour.report.hypotheses import payload, read
from megahour.report.params import ReportParams
from megahour.report.stage import Report
from megahour.report.tables import count
from megahour.runner.runner import run_stage
from megahour.score.references import Reference
from megahour.score.table import Scored

SYSTEMS = ["baseline", "student"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return make_run(tmp_path_factory.mktemp("run"))


def test_confusions_add_up_to_the_errors_that_score_counts(run: dict[str, Artifact]) -> None:
    """Of the same texts, the stage `score` counts as many substitutions, deletions and insertions."""
    table = run["score"].read_table(0).to_pylist()
    references = [Reference(row["key"], row["reference"], row["condition"], row["speaker"]) for row in table]
    systems = {name: {row["key"]: row[name] for row in table} for name in SYSTEMS}
    truth = Scored(references, systems).table(10, 0)[-1]
    found = read(run["score"], most=50, seed=0)
    for system, counts in found.confusions.items():
        for kind, name in {"sub": "substitutions", "del": "deletions", "ins": "insertions"}.items():
            assert sum(n for step, n in counts.items() if step[0] == kind) == truth[f"{name}_{system}"]
    assert found.confusions["baseline"]["sub", "saw", "votes"] > 2
    rows = payload(found.rows, {})
    assert sum(rows["numbers"]["words"]) == truth["words"]
    assert sum(rows["errors"]["student"]) / truth["words"] == pytest.approx(truth["wer_student"], abs=1e-6)


def test_rows_hold_every_hypothesis_word_by_word(run: dict[str, Artifact]) -> None:
    """Steps and the words that differ are enough to write each hypothesis again."""
    found = read(run["score"], most=50, seed=0)
    data = payload(found.rows, {10: 3})
    assert data["sound"].count(3) == 1
    for i, key in enumerate(map(int, data["key"])):
        for system in SYSTEMS:
            words, wrong = iter(data["texts"]["reference"][i].split()), iter(data["texts"][system][i].split())
            again = []
            for step in data["steps"][system][i]:
                word = next(words) if step != "i" else ""
                again += [word] if step == "=" else [next(wrong)] if step in "si" else []
            assert again == said(key, system).split()
            rate = data["numbers"][f"wer_{system}"][i]
            assert rate == pytest.approx(data["errors"][system][i] / data["numbers"]["words"][i], abs=1e-4)


def test_of_a_very_long_utterance_the_page_holds_the_beginning(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(3000)]

    def fill(out: ShardWriter) -> None:
        texts = {"reference": [" ".join(words)], "baseline": [""], "student": [" ".join(words[1:])]}
        out.table(pa.table({"key": [1], "condition": [""], "speaker": [""], **texts}))

    data = payload(read(artifact(tmp_path, "score", "score", [fill]), most=1, seed=0).rows, {})
    assert data["texts"]["reference"][0].split() == words[:400]
    assert data["steps"] == {"baseline": ["d" * 400], "student": ["d" + "=" * 399]}
    assert data["errors"] == {"baseline": [3000], "student": [1]}
    assert data["numbers"]["wer_baseline"] == [1.0]


def test_more_hypotheses_than_a_page_holds_go_into_a_file_beside_it(run: dict[str, Artifact], tmp_path: Path) -> None:
    given = {"score": run["score"]}
    with LocalEngine(workers=1) as engine:
        few, whole = Artifact(tmp_path / "few"), Artifact(tmp_path / "whole")
        run_stage(Report(), ReportParams(hypotheses=20), given, few, engine)
        run_stage(Report(), ReportParams(hypotheses=50), given, whole, engine)
    assert set(whole.receipts()[0].files) == {".html"}
    assert "All 50 utterances" in whole.read_bytes(0, ".html").decode()
    lines = few.read_bytes(0, ".hypotheses.tsv").decode().splitlines()
    assert lines[0].split("\t") == ["key", "condition", "speaker", "reference", *SYSTEMS]
    assert [line.split("\t")[0] for line in lines[1:]] == [str(key) for key in range(10, 60)]
    assert {len(line.split("\t")) for line in lines} == {6}
    page = few.read_bytes(0, ".html").decode()
    assert "A sample of 20 of 50 utterances" in page
    assert 'href="00000.hypotheses.tsv"' in page
    assert len(read(run["score"], most=20, seed=0).rows) == 20
    assert [row["key"] for row in read(run["score"], most=20, seed=0).rows] != list(range(10, 30))


def test_the_page_of_a_single_model_compares_it_with_none(run: dict[str, Artifact]) -> None:
    table = run["score"].read_table(0).to_pylist()
    references = [Reference(row["key"], row["reference"], row["condition"], row["speaker"]) for row in table]
    alone = Scored(references, {"student": {row["key"]: row["student"] for row in table}})
    shown = str(errors(alone.table(10, 0), ["student"], 10)) + str(speakers(alone.speakers(), ["student"]))
    assert "WER student" in shown
    assert f"{100 * alone.table(10, 0)[-1]['wer_student']:.2f}" in shown
    for word in ("WERR", "P(better)", "baseline", "paired", "The student makes fewer errors"):
        assert word not in shown


def test_the_meaning_of_intervals_is_explained_with_the_figures_of_the_run() -> None:
    row = {"condition": "far", "speakers": 8, "utterances": 5, "words": 50, "wer_baseline": 0.5, "wer_student": 0.4}
    row |= {"wer_baseline_interval": [0.4, 0.6], "wer_student_interval": [0.3, 0.5], "werr": 0.2}
    sure = row | {"werr_interval": [0.1, 0.3], "probability_of_improvement": 0.999}
    words = str(errors([sure], SYSTEMS, draws=1234))
    assert "The 8 test speakers" in words
    assert "1,234 draws" in words
    assert "With only 8 speakers" in words
    assert "“far” is an example: its bars overlap, and P(better) is 0.999" in words
    unsure = row | {"werr_interval": [-0.1, 0.3], "probability_of_improvement": 0.9}
    assert "is an example" not in str(errors([unsure], SYSTEMS, draws=1234))
    apart = sure | {"wer_student_interval": [0.3, 0.39]}
    assert "is an example" not in str(errors([apart], SYSTEMS, draws=1234))
    assert "With only" not in str(errors([sure | {"speakers": 20}], SYSTEMS, draws=1234))


def test_each_speaker_has_all_error_rates_and_their_reduction() -> None:
    rows = [
        {"speaker": f"s{i}", "utterances": 3, "words": 100 + i, "wer_baseline": 0.2, "wer_student": wer}
        for i, wer in enumerate([0.1, 0.3, 0.2])
    ]
    words = str(speakers(rows, SYSTEMS))
    assert "fewer errors for 1 of 3 speakers, more for 1." in words
    assert 'class="win" data-value="0.5">50.0 %' in words
    assert 'class="loss" data-value="-0.5">-50.0 %' in words
    many = [rows[0] | {"speaker": f"s{i}", "words": i} for i in range(300)]
    words = str(speakers(many, SYSTEMS))
    assert "The table has the 200 of 300 speakers with the most words" in words
    assert ">s100<" in words
    assert ">s99<" not in words


def test_the_worst_recordings_come_first(run: dict[str, Artifact]) -> None:
    words = str(alignment(run["score_alignment"])).partition("The worst 3 of 3 recordings")[2]
    places = [words.index(name) for name in (" refused</small>", ">900 ms", ">right")]
    assert places == sorted(places)


def test_scores_of_older_alignments_have_a_table_alone(run: dict[str, Artifact], tmp_path: Path) -> None:
    rows = run["score_alignment"].read_json(0, ".json")["table"]
    old = artifact(tmp_path, "old", "score-alignment", [lambda out: out.json({"table": rows}, ".json")])
    assert "Start, median" in str(alignment(old))
    assert "worst" not in str(alignment(old))
    assert "<svg" not in str(alignment(old))


def test_a_table_says_how_often_the_language_was_right() -> None:
    heard = [["de", "de", 7], ["de", "ru", 2], ["de", "", 1], ["ru", "ru", 5]]
    shown = str(tags({"student": {"column": "text_language", "utterances": 15, "accuracy": 0.8, "heard": heard}}))
    for part in ("Text language", "70.0 %", "ru 2, nothing 1", "100.0 %", "80.0 %", "student"):
        assert part in shown
    assert tags({}) is None


def test_counts_above_a_million_sort_by_all_their_digits() -> None:
    cells = [count(n).markup() for n in (12_345_678, 12_345_999)]
    assert [f'data-value="{n}"' in cell for n, cell in zip((12345678, 12345999), cells, strict=True)] == [True, True]
