"""Kinds of artifacts: every stage makes one, and every role of every stage takes one that some stage makes."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_artifacts import features_artifact, utterances, write_artifact

from megahour.cli.recipe import load_stage
from megahour.cli.stage_table import STAGES
from megahour.core.errors import ConfigError
from megahour.core.kinds import MAKERS, check_kinds, kind_of, made_by, taken_by
from megahour.core.store import Artifact, Counts, Manifest, finish


@pytest.mark.parametrize("name", sorted(STAGES))
def test_every_stage_makes_a_kind_and_takes_kinds_that_are_made(name: str) -> None:
    assert made_by(name, {}) in MAKERS
    for spec in load_stage(name).inputs:
        assert taken_by(spec), f"{name}: the role {spec.role} is no kind and names none"
        assert set(taken_by(spec)) <= set(MAKERS), f"{name}: {spec.role}"


def test_every_maker_is_a_stage() -> None:
    assert {maker.split()[0] for makers in MAKERS.values() for maker in makers} == set(STAGES)


def test_what_import_makes_is_a_parameter() -> None:
    assert made_by("import", {"kind": "recordings"}) == "recordings"
    assert made_by("import", {"kind": "utterances"}) == made_by("import", {}) == "utterances"


def made_with(tmp_path: Path, stage: str, params: dict[str, str]) -> Artifact:
    artifact = Artifact(f"{tmp_path}/{stage}")
    finish(artifact, [], Manifest(stage, 1, "f", "d", params, {}, 0, Counts(), {}))
    return artifact


def test_the_stage_that_made_an_artifact_tells_its_kind_and_its_files_where_the_stage_is_not_known(
    tmp_path: Path,
) -> None:
    assert kind_of(made_with(tmp_path, "train", {})) == "model"
    assert kind_of(made_with(tmp_path, "import", {"kind": "recordings"})) == "recordings"
    assert kind_of(made_with(tmp_path, "somebody-elses", {})) == ""
    cues = write_artifact(tmp_path / "cues", [({}, {".cues.parquet": {}})], {})
    assert kind_of(cues) == "recordings"


def test_features_are_no_model(tmp_path: Path) -> None:
    targets = load_stage("targets")
    features = made_with(tmp_path, "features", {})
    with pytest.raises(ConfigError, match=r"features is an artifact of features \(features\), no model") as caught:
        check_kinds(targets, {"features": features, "teacher": features})
    assert "stage targets, input teacher" in str(caught.value)
    assert "model is made by train or import-aligner" in str(caught.value)
    unknown = features_artifact(tmp_path / "made", [("labelled", utterances(1))])
    check_kinds(targets, {"features": unknown, "teacher": made_with(tmp_path, "import-aligner", {})})
