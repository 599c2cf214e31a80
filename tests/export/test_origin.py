"""A bundle names the licences of all speech that its model learnt from."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from made_artifacts import write_artifact

from megahour.export.origin import origin_of


@pytest.mark.parametrize("role", ["targets", "pseudo_labels"])
def test_speech_without_transcripts_and_shuffled_features_are_traced_too(tmp_path: Path, role: str) -> None:
    columns = {"licence": ["CC0-1.0", "CC-BY-4.0", "CC0-1.0"], "attribution": ["", "Ann", ""]}
    columns |= {"samples": [2_880_000] * 3, "rate_hz": [8000] * 3, "set": ["labelled", "unlabelled", "test"]}
    columns = {name: [*values, values[1]] for name, values in columns.items()} | {"language": ["en", "de", "en", "de"]}
    steps = {
        "selection": {"stage": "select", "inputs": {"utterances": f"{tmp_path}/utterances"}},
        "features": {
            "stage": "features",
            "inputs": {"selection": f"{tmp_path}/selection", "utterances": f"{tmp_path}/utterances"},
        },
        "partitions": {"stage": "repartition", "inputs": {"features": f"{tmp_path}/features"}},
        "model": {"stage": "train", "inputs": {"features": f"{tmp_path}/partitions"}},
    }
    (tmp_path / "recipe.resolved.yaml").write_text(yaml.safe_dump({"run": str(tmp_path), "steps": steps}))
    for name in ("utterances", "features", "partitions"):
        write_artifact(tmp_path / name, [], {})
    write_artifact(tmp_path / "selection", [({}, {".parquet": pa.table(columns)})], {})
    params = {"sets": ["labelled"], "unlabelled_sets": ["unlabelled"]}
    made = write_artifact(tmp_path / "model", [], {}, inputs={"features": "x", role: "y"}, params=params)
    found = origin_of(made)
    assert found.sets == ("labelled", "unlabelled")
    named = [(each["licence"], each["attribution"], each["hours"]) for each in found.licences]
    assert named == [("CC-BY-4.0", "Ann", 0.2), ("CC0-1.0", "", 0.1)]
    assert found.language == "de", "of two of the three utterances of these sets"
