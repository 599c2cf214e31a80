"""A set that no shard has is refused by every stage with `sets`, also where others of the list are there."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_artifacts import features_artifact, utterances, write_artifact

from megahour.core.errors import ConfigError
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.recipes.recipe import load_stage
from megahour.units.texts import input_lines


@pytest.fixture
def features(tmp_path: Path) -> Artifact:
    made = utterances(8, speakers=2)
    return features_artifact(tmp_path / "features", [("labelled", made[:4]), ("test", made[4:])])


@pytest.mark.parametrize("name", ["tokens", "language-model", "lexicon", "score", "train"])
def test_a_misspelt_set_is_no_smaller_one(name: str, tmp_path: Path, features: Artifact) -> None:
    stage = load_stage(name)
    p = stage.params(sets=["labelled", "tset"])
    inputs = {"features": features}
    with pytest.raises(ConfigError, match=r"is in sets \['tset'\]; its sets are \['labelled', 'test'\]"):  # noqa: PT012
        task, *_ = stage.plan(p, inputs)
        with ShardWriter(Artifact(tmp_path / "out"), 0, "made") as out:
            stage.run(p, inputs, task, out, Context(work=tmp_path))


def test_sets_are_those_of_tables_and_not_of_a_text(tmp_path: Path, features: Artifact) -> None:
    text = write_artifact(tmp_path / "text", [({}, {".txt": b"one\ntwo\n"})], {})
    assert [line.strip() for line in input_lines({"text": text}, ["labelled"])] == ["one", "two"]
    with pytest.raises(ConfigError, match=r"is in sets \['more'\]"):
        next(input_lines({"text": text, "features": features}, ["labelled", "more"]))
