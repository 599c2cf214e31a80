"""A set that no shard has is refused by every stage with `sets`, also where others of the list are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_artifacts import features_artifact, utterances, write_artifact

from megahour.core.errors import ConfigError
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.recipes.recipe import load_stage


@pytest.fixture
def features(tmp_path: Path) -> Artifact:
    made = utterances(8, speakers=2)
    return features_artifact(tmp_path / "features", [("labelled", made[:4]), ("test", made[4:])])


def planned(name: str, inputs: dict[str, Artifact], **values: Any) -> int:
    """The number of tasks of a stage's plan, which is made before a finished artifact of other values is removed."""
    stage = load_stage(name)
    return len(stage.plan(stage.params(**values), inputs))


@pytest.mark.parametrize("name", ["tokens", "language-model", "lexicon", "train"])
def test_a_misspelt_set_is_no_smaller_one(name: str, features: Artifact) -> None:
    assert planned(name, {"features": features}, sets=["labelled", "test"]) == 1
    with pytest.raises(ConfigError, match=r"is in sets \['tset'\]; its sets are \['labelled', 'test'\]") as refused:
        planned(name, {"features": features}, sets=["labelled", "tset"])
    assert (refused.value.where, refused.value.remedy) == (name, "set `sets` to some of them")


def test_a_misspelt_set_is_no_smaller_one_to_score(tmp_path: Path, features: Artifact) -> None:
    stage = load_stage("score")
    p = stage.params(sets=["labelled", "tset"])
    with (
        ShardWriter(Artifact(tmp_path / "out"), 0, "made") as out,
        pytest.raises(ConfigError, match=r"is in sets \['tset'\]"),
    ):
        stage.run(p, {"features": features}, *stage.plan(p, {"features": features}), out, Context(work=tmp_path))


def test_sets_are_those_of_tables_and_not_of_a_text(tmp_path: Path, features: Artifact) -> None:
    text = write_artifact(tmp_path / "text", [({}, {".txt": b"one\ntwo\n"})], {})
    selection = write_artifact(tmp_path / "selection", [({"set": "dev"}, {})], {})
    assert planned("language-model", {"text": text}, sets=["more"]) == 1
    tables = {"text": text, "features": features, "selection": selection}
    assert planned("language-model", tables, sets=["labelled", "dev"]) == 1, "one table has the one, one the other"
    with pytest.raises(ConfigError, match=r"selection is in sets \['more'\]; their sets are"):
        planned("language-model", tables, sets=["labelled", "more"])


def test_the_default_of_sets_is_no_wish(tmp_path: Path) -> None:
    """Tokens of a file are not learnt from `labelled`, and pseudo-labels may be all the labels that there are."""
    features = features_artifact(tmp_path / "features", [("unlabelled", utterances(4)), ("test", utterances(4))])
    inputs = {"features": features, "pseudo_labels": features}
    assert planned("tokens", {"features": features}, file="tokens.txt") == 1
    assert planned("train", inputs) == 1
    for name, values, given in (
        ("tokens", {}, {"features": features}),
        ("tokens", {"file": "tokens.txt", "sets": ["more"]}, {"features": features}),
        ("train", {}, {"features": features}),
        ("train", {"sets": ["more"]}, inputs),
        ("train", {"unlabelled_sets": ["unlabelled", "more"]}, inputs),
        ("train", {"sets": ["test"], "unlabelled_sets": ["more"]}, {"features": features, "targets": features}),
    ):
        with pytest.raises(ConfigError, match="no shard of"):
            planned(name, given, **values)
    with pytest.raises(ConfigError) as refused:
        planned("train", inputs, unlabelled_sets=["more"])
    assert refused.value.remedy == "set `unlabelled_sets` to some of them"
