"""`pool-scores`: folds of a corpus as one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_line import megahour
from made_artifacts import write_artifact

from megahour.core.errors import ConfigError
from megahour.core.schemas import FEATURES, HYPOTHESES
from megahour.core.store import Artifact
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage
from megahour.score.params import ScoreParams
from megahour.score.pooled import pooled
from megahour.score.stage import Score


def fold(folder: Path, engine: LocalEngine, key: int, speaker: str, **said: str) -> Artifact:
    """A score of one utterance, "a b c d", and what each system heard."""

    def table(schema: Any, row: dict[str, Any]) -> Any:
        return schema.empty_table().from_pylist([row], schema)

    about = {"key": key, "text": "a b c d", "condition": "clean", "speaker": speaker, "set": "test"}
    inputs = {"features": write_artifact(folder / "f", [({"set": "test"}, {".arrow": table(FEATURES, about)})], {})}
    for system, text in said.items():
        rows = table(HYPOTHESES, {"key": key, "text": text})
        inputs[system] = write_artifact(folder / system, [({}, {".parquet": rows})], {})
    run_stage(Score(), ScoreParams(), inputs, Artifact(folder / "score"), engine, work=folder / "work")
    return Artifact(folder / "score")


def test_errors_are_added_up_and_speakers_stand_side_by_side(tmp_path: Path, engine: LocalEngine) -> None:
    one = fold(tmp_path / "1", engine, 1, "ann", baseline="a b", student="a b c x")
    other = fold(tmp_path / "2", engine, 2, "bob", baseline="a b c", student="a b c d")
    scored = pooled([one, other])
    (_, row) = scored.table(100, 0)
    assert (row["words"], row["speakers"], row["wer_baseline"], row["wer_student"]) == (8, 2, 3 / 8, 1 / 8)
    assert [speaker["wer_student"] for speaker in scored.speakers()] == [0.25, 0.0]
    assert "| all | 2 | 8 | 37.50 | 12.50 | 66.7 |" in megahour("pool-scores", one.url, other.url)
    with pytest.raises(ConfigError, match=r"speaker 'ann' is tested in .*1/score, too"):
        pooled([one, fold(tmp_path / "3", engine, 3, "ann", baseline="a", student="a")])
    with pytest.raises(ConfigError, match=r"utterance 1 is tested in .*1/score, too"):
        pooled([one, fold(tmp_path / "4", engine, 1, "cem", baseline="a", student="a")])
    with pytest.raises(ConfigError, match=r"utterance 1 is tested in .*1/score, too"):
        pooled([one, one])


def test_several_seeds_give_means_over_the_same_speakers(tmp_path: Path, engine: LocalEngine) -> None:
    said = {"1": "a b c", "2": "a b c d", "3": "a b"}
    ann = [fold(tmp_path / f"ann-{seed}", engine, 1, "ann", baseline="a", student=said[seed]) for seed in "123"]
    bob = [fold(tmp_path / f"bob-{seed}", engine, 2, "bob", baseline="a", student="a b c d") for seed in "123"]
    scored = pooled([*ann, *bob], seeds=3)
    (_, row) = scored.table(100, 0)
    assert (row["speakers"], row["utterances"], row["words"]) == (2, 6, 24)
    assert (row["wer_baseline"], row["wer_student"]) == (3 / 4, (1 + 0 + 2) / 24)
    assert row["wer_student_interval"] == [0.0, 0.25], "one speaker or the other, each with all seeds"
    assert [speaker["wer_student"] for speaker in scored.speakers()] == [0.25, 0.0]
    assert "| all | 6 | 24 | 75.00 | 12.50 |" in megahour(
        "pool-scores", *(one.url for one in ann + bob), "--seeds", "3"
    )
    with pytest.raises(ConfigError, match="1 of 2 utterances are not tested 3 times"):
        pooled([*ann, *bob[:2]], seeds=3)
    with pytest.raises(ConfigError, match="given twice"):
        pooled([*ann[:2], ann[0]], seeds=3)


def test_speakers_without_a_name_are_not_taken_for_one_who_is_in_two_folds(tmp_path: Path, engine: LocalEngine) -> None:
    one, other = (fold(tmp_path / str(key), engine, key, "", baseline="a b", student="a b c") for key in (1, 2))
    (_, row) = pooled([one, other]).table(100, 0)
    assert (row["words"], row["speakers"], row["wer_student"]) == (8, 1, 1 / 4)


def test_what_cannot_be_pooled_is_named(tmp_path: Path, engine: LocalEngine) -> None:
    one = fold(tmp_path / "1", engine, 1, "ann", baseline="a", student="a")
    more = fold(tmp_path / "2", engine, 2, "bob", baseline="a", student="a", teacher="a")
    with pytest.raises(ConfigError, match=r"the first has \['baseline', 'student'\]"):
        pooled([one, more])
    with pytest.raises(ConfigError, match="give artifacts of `score`"):
        pooled([one, Artifact(tmp_path / "1" / "f")])
