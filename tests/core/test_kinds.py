"""Kinds of artifacts: every stage makes one, and every role takes a kind that some stage makes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from made_artifacts import features_artifact, utterances, write_artifact

from megahour.core.errors import ConfigError
from megahour.core.kinds import MAKERS, check_kinds, check_roles, kind_of, made_by, taken_by
from megahour.core.receipts import Counts, Manifest
from megahour.core.store import Artifact, finish
from megahour.core.writer import ShardWriter
from megahour.recipes.recipe import load_stage
from megahour.recipes.stage_table import STAGES

OF_ITS_INPUT = {"apply"}  # what comes out is of the kind that went in


@pytest.mark.parametrize("name", sorted(STAGES))
def test_every_stage_makes_a_kind_and_takes_kinds_that_are_made(name: str) -> None:
    assert made_by(name, {}) in MAKERS or name in OF_ITS_INPUT
    for spec in load_stage(name).inputs:
        assert taken_by(spec), f"{name}: the role {spec.role} is no kind and names none"
        assert set(taken_by(spec)) <= set(MAKERS), f"{name}: {spec.role}"


def test_every_maker_is_a_stage() -> None:
    assert {maker.split()[0] for makers in MAKERS.values() for maker in makers} == set(STAGES) - OF_ITS_INPUT


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


def test_files_tell_a_kind_only_where_no_other_kind_has_them(tmp_path: Path) -> None:
    def kind(*suffixes: str) -> str:
        folder = tmp_path / "-".join(suffixes)
        return kind_of(write_artifact(folder, [({}, {suffix: pa.table({"a": [1]}) for suffix in suffixes})], {}))

    assert kind(".segments.parquet", ".parquet") == "alignment"
    assert kind(".truth.parquet") == "raw"
    assert kind(".parquet") == ""
    both = Artifact(tmp_path / "both")
    with ShardWriter(both, 0, "f") as out:
        out.path(".tar").write_bytes(b"audio")
        out.table(pa.table({"a": [1]}))
        receipt = out.commit()
    finish(both, [receipt], Manifest("somebody-elses", 1, "f", "d", {}, {}, 1, Counts(), {}))
    assert kind_of(both) == "utterances"


def test_roles_that_a_stage_has_not_or_that_it_lacks_are_named() -> None:
    decode, first = load_stage("decode"), load_stage("import-features")
    check_roles(decode, ["features", "model", "graph"])
    check_roles(decode, ["features", "model", "graph", "tuned"])
    check_roles(decode, ["features", "model"])
    with pytest.raises(ConfigError, match=r'stage decode has no input "grahp" – did you mean "graph"\?') as caught:
        check_roles(decode, ["features", "grahp"])
    assert caught.value.remedy == "its inputs are features, model, graph, units, tuned, lm, graph_lm, low_order_lm"
    with pytest.raises(ConfigError, match="stage decode needs the input features and model") as caught:
        check_roles(decode, ["graph"])
    assert (
        caught.value.remedy
        == "features is made by features or import-features; model is made by train or import-aligner"
    )
    with pytest.raises(ConfigError, match="has no input") as caught:
        check_roles(first, ["raw"])
    assert caught.value.remedy == "it has no inputs"


def test_features_are_no_model(tmp_path: Path) -> None:
    targets = load_stage("targets")
    features = made_with(tmp_path, "features", {})
    with pytest.raises(
        ConfigError, match=r"features is an artifact of features \(features\); this input takes model"
    ) as caught:
        check_kinds(targets, {"features": features, "teacher": features})
    assert "stage targets, input teacher" in str(caught.value)
    assert "model is made by train or import-aligner" in str(caught.value)
    unknown = features_artifact(tmp_path / "made", [("labelled", utterances(1))])
    check_kinds(targets, {"features": unknown, "teacher": made_with(tmp_path, "import-aligner", {})})
